"""Finding a shape for a budget, and comparing it with its rivals, retrained from scratch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pydantic

from widthwise.bundled import recipe_name
from widthwise.computing import Precision
from widthwise.config_io import Config, UserError, parse, to_data
from widthwise.experiments.compare import read_plan
from widthwise.experiments.discovery.growing import GrowingMethod
from widthwise.experiments.discovery.rivals import change_to, rivals
from widthwise.experiments.discovery.section import DiscoverConfig
from widthwise.experiments.discovery.task import Task, check_uniform
from widthwise.experiments.experiment import Experiment
from widthwise.files import read_text, write_atomic
from widthwise.merging import merge
from widthwise.recipe.design import ShapeRequest, fitting_d_model
from widthwise.recipe.recipe import parse_recipe
from widthwise.records.discovery import DISCOVERED, Discovery
from widthwise.records.recipe_changes import changes_in_words
from widthwise.shape.kinds import Match
from widthwise.training.observer import Observer
from widthwise.training.stopping import interruption_adds
from widthwise.yaml_io import dump_yaml, parse_yaml, read_recipe

COMPARISON = "comparison"
ASKED = "search.yaml"


@dataclass(frozen=True)
class DiscoveryPlan:
    """A discovery before it is run."""

    title: str
    data: dict[str, Any]
    """The recipe of the uniform model, as data."""
    config: DiscoverConfig
    task: Task

    def settled(self, choose: Callable[[], Precision]) -> "DiscoveryPlan":
        """The same discovery in a precision that is chosen, where its recipe says `auto`."""
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
    """The discovery that a recipe and the command line ask for. budget: such as "30M", of the matched quantity; the
    uniform model is then sized to it. Raises UserError."""
    data = read_recipe(path, overrides)
    config = DiscoverConfig.of_recipe(data, str(path)).asked(steps, match, list(seeds))
    data.pop("discover", None)
    base = parse_recipe(data, str(path))
    check_uniform(base)
    if budget is not None:
        sized = {"model": {"d_model": fitting_d_model(base, ShapeRequest(budget=budget, match=config.match))}}
        data = merge(data, sized)
        base = parse_recipe(data, str(path))
    if base.growth:
        raise UserError("growth: a discovery starts from a model that does not grow by itself; leave it out")
    task = Task(base, config.steps or base.train.steps, config.match)
    config.method.check(task)
    return DiscoveryPlan(recipe_name(path), data, config, task)


def discover(plan: DiscoveryPlan, folder: Path, observer: Observer, command: str | None = None) -> Discovery:
    """Searches, as far as it was not done before, and writes discovery.json, the recipe that was found
    (discovered.yaml) and that of its comparison with rivals (rivals.yaml). Raises UserError where the folder holds
    another search."""
    from widthwise.runs.environment import environment  # needs torch, which a recipe's schema does not
    from widthwise.runs.speed import chosen_precision

    plan = plan.settled(partial(chosen_precision, folder, observer))
    task, config = plan.task, plan.config
    _begin(plan, folder)
    with interruption_adds("the same command goes on with the discovery"):
        found = config.method.find(task, folder / "search", observer)
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
    _write_recipe(plan, folder / f"{DISCOVERED}.yaml", change_to(found.curve, found.n_layers, task))
    variants = rivals(found, task)
    adjust = {name: "ffn" for name in variants if name != "uniform"}
    section = {"seeds": list(config.seeds), "match": {"quantity": config.match, "adjust": adjust}, "variants": variants}
    _write_recipe(plan, folder / "rivals.yaml", {"compare": section})
    discovery.write(folder)
    return discovery


class _Asked(Config):
    """What a folder's search is for, as it is written down there before anything is trained."""

    match: Match
    steps: pydantic.PositiveInt
    method: GrowingMethod
    recipe: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "_Asked":
        """With defaults for what is newer than the file. Raises UserError."""
        asked = parse(cls, parse_yaml(read_text(path), str(path)), str(path))
        return asked.model_copy(update={"recipe": to_data(parse_recipe(asked.recipe, f"{path}: recipe"))})


def _begin(plan: DiscoveryPlan, folder: Path) -> None:
    """Writes down what is searched, or raises UserError where it was something else."""
    path, task = folder / ASKED, plan.task
    asked = _Asked(match=task.match, steps=task.steps, method=plan.config.method, recipe=to_data(task.base))
    if not path.exists():
        write_atomic(path, dump_yaml(to_data(asked)))
        return
    if changes := changes_in_words(to_data(_Asked.read(path)), to_data(asked)):
        raise UserError(f"{folder}: holds another search ({', '.join(changes[:3])}); choose another folder with --out")


def plan_of_rivals(folder: Path) -> Experiment:
    """The comparison of what was found with its rivals. Raises UserError where one cannot be made to match."""
    return read_plan(folder / "rivals.yaml")


def _write_recipe(plan: DiscoveryPlan, path: Path, change: dict[str, Any]) -> None:
    write_atomic(path, dump_yaml(merge(plan.data, change)))
