"""Finding a shape for a budget, and comparing it with its rivals, retrained from scratch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from widthwise.computing import Precision
from widthwise.config_io import Config, UserError, parse, to_data
from widthwise.experiments.compare import read_plan
from widthwise.experiments.experiment import Experiment
from widthwise.experiments.growing import GrowingMethod, GrowingSearch, Task
from widthwise.files import read_text, write_atomic
from widthwise.recipe.design import ShapeRequest, fitting_d_model
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.train_section import Seeds
from widthwise.records.discovery import DISCOVERED, Curve, DiscoveredShape, Discovery
from widthwise.records.run import changes_in_words
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
    """Training steps of the search; null: those of the recipe."""
    match: Match = "params"
    """The quantity in which the shape that is found equals the uniform model."""
    seeds: Seeds = (1, 2, 3)
    """Seeds of the comparison with rivals; the search has the recipe's own."""


class _Section(Config):
    """The part of a recipe about discovery, so that errors name keys as overrides do."""

    discover: DiscoverConfig


@dataclass(frozen=True)
class DiscoveryPlan:
    """A discovery before it is run."""

    title: str
    data: dict[str, Any]
    """The recipe of the uniform model, as data."""
    config: DiscoverConfig
    task: Task

    def settled(self, choose: Callable[[], Precision]) -> "DiscoveryPlan":
        """Return the discovery in the chosen precision if its recipe says `auto`."""
        base = self.task.base.settled(choose)
        if base is self.task.base:
            return self
        data = merge(self.data, {"train": {"precision": base.train.precision}})
        return replace(self, data=data, task=replace(self.task, base=base))


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
    data = read_recipe(path, overrides)
    config = parse(_Section, {"discover": data.pop("discover", {})}, str(path)).discover
    asked = {"steps": steps, "match": match, "seeds": list(seeds)}
    config = parse(DiscoverConfig, to_data(config) | {key: each for key, each in asked.items() if each}, "discover")
    base = parse_recipe(data, str(path))
    _check_uniform(base)
    if budget is not None:
        d_model = fitting_d_model(base, ShapeRequest(budget=budget, match=config.match))
        data = merge(data, {"model": {"d_model": d_model}})
        base = parse_recipe(data, str(path))
    task = Task(base, config.steps or base.train.steps, config.match)
    GrowingSearch(config.method, task)
    return DiscoveryPlan(recipe_name(path), data, config, task)


def _check_uniform(recipe: Recipe) -> None:
    """Raises UserError if the recipe is not that of a uniform model, with one rule for all layers."""
    template = recipe.model
    if not isinstance(template, ModelTemplate) or template.layers:
        raise UserError("model.layers: a discovery finds the sizes of layers; leave changes to single layers out")
    if template.shape.kind != "uniform":
        raise UserError(f"model.shape.kind: got {template.shape.kind!r}; a discovery starts from the uniform model")
    if recipe.growth:
        raise UserError("growth: a discovery starts from a model that does not grow by itself; leave it out")


def discover(plan: DiscoveryPlan, folder: Path, observer: Observer, command: str | None = None) -> Discovery:
    """Search, or resume the search, and write discovery.json, the found recipe (discovered.yaml) and that of its
    comparison with rivals (rivals.yaml). Raises UserError if the folder holds another search."""
    from widthwise.runs.environment import environment  # needs torch, which a recipe's schema does not
    from widthwise.runs.speed import chosen_precision

    plan = plan.settled(partial(chosen_precision, folder, observer))
    task, config = plan.task, plan.config
    _begin(plan, folder)
    with interruption_adds("the same command resumes the discovery"):
        found = GrowingSearch(config.method, task).find(folder / "search", observer)
    discovery = Discovery(
        title=plan.title,
        method=config.method.kind,
        how=config.method.in_words,
        options=to_data(config.method),
        match=config.match,
        budget=task.budget,
        seed=task.base.train.seed,
        command=command,
        environment=environment(),
        found=found,
        comparison=COMPARISON,
    )
    variants = rivals(found, task)
    adjust = {name: "ffn" for name in variants if name != "uniform"}
    compare = {"seeds": list(config.seeds), "match": {"quantity": config.match, "adjust": adjust}, "variants": variants}
    for name, change in ((DISCOVERED, variants[DISCOVERED]), ("rivals", {"compare": compare})):
        write_atomic(folder / f"{name}.yaml", dump_yaml(merge(plan.data, change)))
    discovery.write(folder)
    return discovery


class _SearchSpec(Config):
    """The task of a folder's search, written there before anything is trained."""

    match: Match
    steps: pydantic.PositiveInt
    method: GrowingMethod
    recipe: dict[str, Any]


def _begin(plan: DiscoveryPlan, folder: Path) -> None:
    """Write the task of the search. Raises UserError if the folder has another."""
    path, task = folder / "search.yaml", plan.task
    asked = _SearchSpec(match=task.match, steps=task.steps, method=plan.config.method, recipe=to_data(task.base))
    if not path.exists():
        write_atomic(path, dump_yaml(to_data(asked)))
        return
    before = parse(_SearchSpec, parse_yaml(read_text(path), str(path)), str(path))
    # With defaults for what is newer than the file.
    recipe = to_data(parse_recipe(before.recipe, f"{path}: recipe"))
    if changes := changes_in_words(to_data(before) | {"recipe": recipe}, to_data(asked)):
        raise UserError(f"{folder}: holds another search ({', '.join(changes[:3])}); choose another folder with --out")


def plan_of_rivals(folder: Path) -> Experiment:
    """Return the comparison of the found shape with its rivals. Raises UserError if one cannot be matched."""
    return read_plan(folder / "rivals.yaml")


def rivals(found: DiscoveredShape, task: Task) -> dict[str, dict[str, Any]]:
    """Return for each variant its changes to the recipe of the uniform model, which is the first.

    `even` gives all layers the mean of the found sizes, to tell the profile from the shares of attention and
    feed-forward; it is left out if those are the uniform model's. `reversed` has the last layer first, `permuted_1` and
    `permuted_2` have the layers in drawn orders, to test whether the order matters. They have the found layers, scaled
    to the budget: the first layer reads and the last one writes no more than d_model, so orders differ in cost.
    """
    curve = found.curve
    curves = {
        DISCOVERED: curve,
        **({"even": curve.even()} if curve.trades_kinds else {}),
        "reversed": curve.reversed(),
        **_permuted(curve, found.n_layers or task.template.n_layers, task.base.train.seed),
    }
    solved = {"match": task.match, "rounding": "balanced"}
    of_model: dict[str, Any] = {}
    depth: dict[str, Any] = {}
    if found.n_layers is not None:
        of_model, depth = {"n_layers": found.n_layers}, {"depth": round(found.n_layers / task.template.n_layers, 4)}
    variants: dict[str, dict[str, Any]] = {"uniform": {}}
    variants |= {kind: {"model": {"shape": {"kind": kind, **solved}}} for kind in ("x", "diamond")}
    for name, each in curves.items():
        points = {size: [round(point, 4) for point in own] for size, own in each.to_data().items() if own}
        variants[name] = {"model": {**of_model, "shape": {"kind": "curve", **solved, **points, **depth}}}
    return variants


def _permuted(curve: Curve, n_layers: int, seed: int) -> dict[str, Curve]:
    """Return the layers of a curve in drawn orders, all different from each other, from the curve and from its
    reverse; fewer if there are not so many orders."""
    lists = {name: along(points, n_layers) for name, points in curve.to_data().items() if points}
    layers = list(zip(*lists.values(), strict=True))
    known, found, generator = [layers, layers[::-1]], list[Curve](), np.random.default_rng(seed)
    for _ in range(N_TRIES):
        drawn = [layers[place] for place in generator.permutation(n_layers)]
        if drawn not in known and len(found) < N_PERMUTED:
            known.append(drawn)
            found.append(Curve(**{name: list(map(float, sizes)) for name, sizes in zip(lists, zip(*drawn))}))
    return {f"permuted_{number}": each for number, each in enumerate(found, start=1)}
