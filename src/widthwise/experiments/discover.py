"""Finding a shape for a budget, and comparing it with its rivals, retrained from scratch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from widthwise.config_io import Config, UserError, parse, to_data
from widthwise.experiments.growing import GrowingMethod, GrowingSearch
from widthwise.files import read_text, write_atomic
from widthwise.recipe.design import ShapeRequest, fitting_d_model
from widthwise.recipe.recipe import parse_recipe
from widthwise.recipe.train_section import Seeds
from widthwise.records.discovery import DISCOVERED, Curve, DiscoveredShape, Discovery
from widthwise.records.run import changes_in_words
from widthwise.run_dir import RunDir
from widthwise.shape.kinds import Match
from widthwise.shape.profile import along
from widthwise.shape.template import ModelTemplate
from widthwise.training.launch import interruption_adds
from widthwise.training.observer import Observer
from widthwise.yaml_io import dump_yaml, merge, parse_yaml, read_recipe, recipe_name

COMPARISON = "comparison"
N_PERMUTED = 2
N_TRIES = 100
"""Orders drawn before giving up on finding another."""


class DiscoverConfig(Config):
    """The `discover:` section of a recipe: the search for sizes of layers, and the comparison of its result."""

    method: GrowingMethod = GrowingMethod()
    steps: pydantic.PositiveInt | None = None
    """Training steps of the search; null: as many as the recipe has."""
    match: Match = "params"
    """The quantity in which the shape that is found equals the uniform model."""
    seeds: Seeds = (1, 2, 3)
    """Seeds of the comparison with rivals; the search has the recipe's own."""


@dataclass(frozen=True)
class DiscoveryPlan:
    """A discovery before it is run."""

    title: str
    data: dict[str, Any]
    """The recipe of the uniform model, as data."""
    config: DiscoverConfig
    search: GrowingSearch


def plan_discovery(
    path: Path,
    overrides: Sequence[str] = (),
    budget: str | None = None,
    steps: int | None = None,
    match: str | None = None,
    seeds: Sequence[int] = (),
) -> DiscoveryPlan:
    """Return the discovery that a recipe and the command line ask for. budget: such as "30M", of the matched quantity;
    the uniform model is then sized to it. Raises UserError."""
    data, given = read_recipe(path, overrides), {"steps": steps, "match": match, "seeds": list(seeds)}
    section = data.pop("discover", {})
    if isinstance(section, dict):
        section |= {key: each for key, each in given.items() if each}
    config = parse(DiscoverConfig, section, f"{path}: discover")
    base = parse_recipe(data, str(path))
    template = base.model
    if not isinstance(template, ModelTemplate) or template.layers:
        raise UserError("model.layers: a discovery finds the sizes of layers; leave changes to single layers out")
    if template.shape.kind != "uniform":
        raise UserError(f"model.shape.kind: got {template.shape.kind!r}; a discovery starts from the uniform model")
    if base.growth:
        raise UserError("growth: discover starts from a model without growth events; remove the section")
    if budget is not None:
        d_model = fitting_d_model(base, ShapeRequest(budget=budget, match=config.match))
        data = merge(data, {"model": {"d_model": d_model}})
        base = parse_recipe(data, str(path))
    search = GrowingSearch(config.method, base, config.steps or base.train.steps, config.match)
    return DiscoveryPlan(recipe_name(path), data, config, search)


def discover(plan: DiscoveryPlan, folder: Path, observer: Observer, command: str | None = None) -> Discovery:
    """Search, or resume the search, and write discovery.json, the found recipe (discovered.yaml) and that of its
    comparison with rivals (rivals.yaml). Raises UserError if the folder holds another search."""
    from widthwise.runs.speed import chosen_precision  # needs torch, which a recipe's schema does not

    config, data, search = plan.config, plan.data, plan.search
    base = search.base.settled(partial(chosen_precision, folder, observer))
    if base is not search.base:
        data = merge(data, {"train": {"precision": base.train.precision}})
        search = GrowingSearch(config.method, base, search.steps, config.match)
    _begin(
        {"match": config.match, "steps": search.steps, "method": to_data(config.method), "recipe": to_data(base)},
        folder,
    )
    with interruption_adds("the same command resumes the discovery"):
        found = search.find(folder / "search", observer)
    discovery = Discovery(
        title=plan.title,
        method=config.method.kind,
        how="grown in random order" if config.method.order == "random" else "grown where it gained most",
        options=to_data(config.method),
        match=config.match,
        budget=search.budget,
        seed=base.train.seed,
        command=command,
        environment=RunDir(folder / "search" / "stage-1").environment(),
        found=found,
        comparison=COMPARISON,
    )
    variants = rivals(found, search)
    adjust = {name: "ffn" for name in variants if name != "uniform"}
    compare = {"seeds": list(config.seeds), "match": {"quantity": config.match, "adjust": adjust}, "variants": variants}
    for name, change in ((DISCOVERED, variants[DISCOVERED]), ("rivals", {"compare": compare})):
        write_atomic(folder / f"{name}.yaml", dump_yaml(merge(data, change)))
    discovery.write(folder)
    return discovery


def _begin(search: dict[str, Any], folder: Path) -> None:
    """Write what a search was begun with. Raises UserError if the folder has another; of an older file, what is newer
    than it counts as the same."""
    path = folder / "search.yaml"
    if not path.exists():
        write_atomic(path, dump_yaml(search))
        return
    before = parse_yaml(read_text(path), str(path))
    if not isinstance(before, dict):
        raise UserError(f"{path}: is not a search")
    if changes := changes_in_words(merge(search, before), search):
        raise UserError(f"{folder}: holds another search ({', '.join(changes[:3])}); choose another folder with --out")


def rivals(found: DiscoveredShape, search: GrowingSearch) -> dict[str, dict[str, Any]]:
    """Return for each variant its changes to the recipe of the uniform model, which is the first.

    `even` gives all layers the mean of the found sizes, to tell the profile from the shares of attention and
    feed-forward; it is left out if those are the uniform model's to a tenth. `reversed` has the last layer first,
    `permuted_1` and `permuted_2` have the layers in drawn orders, to test whether the order matters; there are fewer of
    them if there are not so many orders. They have the found layers, scaled to the budget: the first layer reads and
    the last one writes no more than d_model, so orders differ in cost.
    """
    n_layers, shape = search.template.n_layers, {"match": search.match, "rounding": "balanced"}
    variants: dict[str, dict[str, Any]] = {"uniform": {}}
    variants |= {kind: {"model": {"shape": {"kind": kind, **shape}}} for kind in ("x", "diamond")}
    points, even = found.curve.points, found.curve.even()
    curves = {DISCOVERED: found.curve}
    if any(abs(each[0] - 1) > 0.1 for name, each in even.points.items() if name != "widths"):
        curves["even"] = even
    curves["reversed"] = Curve.model_validate({name: each[::-1] for name, each in points.items()})
    rows = list(zip(*(along(each, n_layers).tolist() for each in points.values()), strict=True))
    orders, generator = [rows, rows[::-1]], np.random.default_rng(search.base.train.seed)
    for _ in range(N_TRIES):
        drawn = [rows[place] for place in generator.permutation(n_layers)]
        if drawn not in orders and len(orders) < 2 + N_PERMUTED:
            orders.append(drawn)
            curves[f"permuted_{len(orders) - 2}"] = Curve.model_validate(dict(zip(points, zip(*drawn))))
    return variants | {name: {"model": {"shape": own.section(search.match)}} for name, own in curves.items()}
