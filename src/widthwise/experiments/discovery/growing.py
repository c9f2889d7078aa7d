"""Discovery by growth: a narrow uniform model grows, part by part, where it would gain the most."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, checked_copy
from widthwise.experiments.discovery.parts import PARTS, GrownModel, Part, PartName
from widthwise.experiments.discovery.task import Task, sizes_of
from widthwise.model.config import ModelConfig
from widthwise.model.residual.interface import PrefixLayout
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.schedule import ConstantSchedule
from widthwise.records.discovery import Candidate, Found, Stage
from widthwise.run_dir import RunDir
from widthwise.shape.kinds import CurveShape, ExplicitShape
from widthwise.training.observer import Observer

if TYPE_CHECKING:
    from widthwise.runs.trained import Source


class Order(NamedTuple):
    """How the candidates of a stage are put in order."""

    in_words: str
    ranked: Callable[[Sequence[Candidate], np.random.Generator], Sequence[Candidate]]


def _by_gain(candidates: Sequence[Candidate], _: np.random.Generator) -> Sequence[Candidate]:
    return sorted(candidates, key=lambda each: each.gain / each.cost, reverse=True)


def _at_random(candidates: Sequence[Candidate], generator: np.random.Generator) -> Sequence[Candidate]:
    return [candidates[place] for place in generator.permutation(len(candidates))]


ORDERS = {"gain": Order("grown where it gained most", _by_gain), "random": Order("grown in random order", _at_random)}


class GrowingMethod(Config):
    """Trains a narrow model, and at the end of each stage grows what has the largest first-order gain per unit of the
    matched cost, exactly, until the search's part of the budget is spent.

    In a stage candidates take turns, the best first: none grows by a second step before every other of its part (with
    `division: free`, of any part) has had one or no longer fits, so that no measurement decides more than a step.
    """

    kind: Literal["growing"] = "growing"
    start_width: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Width of all layers at first, over d_model."""
    step: Annotated[float, Field(gt=0, le=1)] = 0.125
    """By how much a part grows at a time, over its size in the uniform model."""
    parts: Annotated[tuple[PartName, ...], Field(min_length=1)] = ("width", "attention", "hidden")
    """What grows: of a layer its `width` in the stream, its `attention` by heads, its `hidden` units, the `blocks` of
    its hourglass; and the model by a `layer` between two, before the first or behind the last."""
    n_stages: pydantic.PositiveInt = 8
    n_batches: Annotated[int, Field(ge=2, multiple_of=2)] = 8
    """Batches over which gains are measured."""
    n_draws: pydantic.PositiveInt = 5
    """Draws of new weights over which gains are averaged; those of `width` need none."""
    gain_along: Literal["gradient", "sign"] = "gradient"
    """The step whose gain is measured: `gradient` is one of SGD, `sign` the first one of Adam."""
    order: Literal["gain", "random"] = "gain"
    """`random` grows the same parts by the same steps in an order that nothing has measured: a control."""
    division: Literal["kept", "free"] = "kept"
    """`kept`: widths, heads and hidden units of all layers together grow alike, as the uniform model divides its cost
    among them, and gains decide in which layers. `free`: gains decide that too, although those of different parts start
    from different draws."""
    spend: Annotated[float, Field(gt=0, le=1)] = 0.6
    """How much the search spends of what the budget leaves beside the narrow model. Below 1, because the widest layers
    cannot grow beyond the embedding while others catch up; what is found is scaled to the whole budget."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "GrowingMethod":
        twice = next((part for part in self.parts if self.parts.count(part) > 1), None)
        if twice is not None:
            raise ValueError(f"parts: got {twice!r} twice; each part grows by one step")
        return self

    @property
    def in_words(self) -> str:
        return ORDERS[self.order].in_words

    def check(self, task: Task) -> None:
        """Raises UserError for a uniform model whose sizes it cannot search."""
        residual = task.base.explicit_model.residual
        if not isinstance(residual.layout, PrefixLayout):
            raise UserError(f"model.residual.kind: got {residual.kind!r}; layers of different width need plain")
        if task.steps < self.n_stages:
            raise UserError(
                f"discover.steps: got {task.steps}; must be at least one for each of {self.n_stages} stages"
            )
        start = self.start(task)
        self._check_parts(task, start)
        if task.cost(start) >= task.budget:
            raise UserError(f"discover.method.start_width: got {self.start_width:g}; leaves nothing to grow by")
        steps = {
            name: task.cost(PARTS[name].of(task, self.step).grown_at(GrownModel.ungrown(start), [0]).model)
            for name in self.parts
        }
        free = next((name for name, cost in steps.items() if cost <= task.cost(start)), None)
        if free is not None:
            raise UserError(f"discover.method.parts: got {free!r}, which adds no {task.match}; a budget must bound it")
        if (step := min(steps.values())) > self.allowance(task, start):
            raise UserError(
                f"discover.method.spend: got {self.spend:g}, which leaves {self.allowance(task, start):,.0f} "
                f"{task.match}; must leave {step:,.0f}, what a single growth takes"
            )
        # Or no curve could say what is found.
        flat = CurveShape(widths=(1, 1), attention=(1, 1), hidden=(1, 1))
        task.template.model_copy(update={"shape": flat}).resolve(task.base.seq_len)

    def _check_parts(self, task: Task, start: ModelConfig) -> None:
        """Raises UserError for what a model does not have, or has as much of as the uniform one from the start."""
        uniform = task.base.explicit_model
        allowed = [name for name, part in PARTS.items() if part.is_in(uniform.layers[0])]
        for name in self.parts:
            if name not in allowed:
                known = ", ".join(allowed)
                raise UserError(
                    f"discover.method.parts: got {name!r}, which this model does not have; allowed: {known}"
                )
            if self.division == "kept" and PARTS[name].total(start) >= PARTS[name].total(uniform):
                raise UserError(
                    f"discover.method.parts: got {name!r}, of which the narrow model has as much as the uniform one; "
                    "it grows with discover.method.division: free"
                )

    def allowance(self, task: Task, start: ModelConfig) -> float:
        """How much of the matched quantity the model may take at the end of the search."""
        first = task.cost(start)
        return first + self.spend * (task.budget - first)

    def find(self, task: Task, folder: Path, observer: Observer) -> Found:
        """Searches, in a folder of its own, where it resumes if it was interrupted."""
        return _Search(self, task, folder, observer).found()

    def start(self, task: Task) -> ModelConfig:
        """The narrow uniform model."""
        template = task.template
        quantum = template.attention.quantum
        width = max(1, round(self.start_width * template.d_model / quantum)) * quantum
        shape = ExplicitShape(widths=(width,) * template.n_layers)
        return template.model_copy(update={"shape": shape}).resolve(task.base.seq_len)


class _Search:
    """A search under way: the parts and costs of its task are counted once."""

    def __init__(self, method: GrowingMethod, task: Task, folder: Path, observer: Observer):
        self.method, self.task, self.folder, self.observer = method, task, folder, observer
        self.now = GrownModel.ungrown(method.start(task))
        self.parts: dict[str, Part] = {name: PARTS[name].of(task, method.step) for name in method.parts}
        self.first_cost, self.allowance = task.cost(self.now.model), method.allowance(task, self.now.model)
        self.uniform = task.base.explicit_model
        self.seed = task.base.train.seed

    def found(self) -> Found:
        """Trains and grows stage by stage. What was trained before is not trained again."""
        stages, flops, source = list[Stage](), 0.0, None
        for number in range(1, self.method.n_stages + 1):
            source = self._trained(number, source)
            candidates, spent = self._candidates(source)
            grown, taken = self._grown(candidates, number)
            candidates = [each.with_changes(is_taken=each in taken) for each in candidates]
            stages.append(self._stage(source.step, loss=_loss(source), candidates=candidates))
            self.now, flops = grown, flops + spent
        assert source is not None
        stages.append(self._stage(self.task.steps))
        spent, layers = source.spent, stages[-1].layers
        found = Found(
            curve=self.task.curve(layers), stages=stages, tokens=spent.tokens, flops=flops + spent.training_flops
        )
        return found if len(layers) == self.task.template.n_layers else found.with_changes(n_layers=len(layers))

    def _trained(self, number: int, before: "Source | None") -> "Source":
        """The run of a stage, grown from that of the stage before it, at its end."""
        from widthwise.runs.conversion import carry_out
        from widthwise.runs.grow import GrowOptions, growth_intended
        from widthwise.runs.train import resume, train_or_resume
        from widthwise.runs.trained import Source

        run, recipe = RunDir(self.folder / f"stage-{number}"), self._recipe(number)
        if before is None:
            train_or_resume(recipe, run.path, self.observer)
        else:
            if not run.exists:
                options = GrowOptions(layers=self.now.sources, seed=self.seed, rewarmup_steps=0)
                carry_out(before, growth_intended(before, recipe, options), run.path, self.observer)
            resume(run.path, self.observer)
        source = Source.of(run.path)
        if [*map(sizes_of, source.model.layers)] != [*map(sizes_of, self.now.model.layers)]:
            raise UserError(f"{run.path}: grew otherwise than this version grows it; choose another folder with --out")
        return source

    def _recipe(self, number: int) -> Recipe:
        """That of a stage: at a constant rate, because the search ends in a model that nobody keeps."""
        base, ends = self.task.base, [round(self.task.steps * stage / self.method.n_stages) for stage in (1, number)]
        train = checked_copy(base.train, "train", steps=ends[1], validate_every=None)
        schedule = ConstantSchedule(warmup_steps=min(base.schedule.warmup_steps, ends[0] - 1))
        return checked_copy(base, "recipe", model=self.now.model, train=train, schedule=schedule)

    def _candidates(self, source: "Source") -> tuple[list[Candidate], float]:
        """Every part with every place where it can grow, its gain and its cost; and the FLOPs of measuring them."""
        from widthwise.growth.gain import STEPS, first_order_gains
        from widthwise.growth.maps.correspondence import Correspondence
        from widthwise.growth.plan.model_plan import plan_growth
        from widthwise.runs.conversion import batches_from

        weights, _, state = source.load()
        batches = batches_from(source.recipe, state.step, self.method.n_batches, self.observer)
        n_tokens = sum(batch[:, 1:].numel() for batch in batches)
        step = STEPS[self.method.gain_along]
        found, flops, start, cost = [], 0.0, GrownModel.ungrown(source.model), self.task.cost(source.model)
        for part in self.parts.values():
            places = part.places(start.model)
            if not places:
                continue
            n_draws = self.method.n_draws if part.is_drawn else 1
            grown = part.grown_at(start, places * n_draws)
            plan = plan_growth(start.model, grown.model, Correspondence(grown.sources))
            gains = first_order_gains(plan, weights, batches, seed=self.seed, step=step)
            flops += plan.new.cost().training_flops(source.recipe.seq_len) * n_tokens
            for place in places:
                added = self.task.cost(part.grown_at(start, [place]).model) - cost
                found.append(part.candidate(place, part.draws(gains, grown, place, n_draws), added))
        return found, flops

    def _grown(self, candidates: Sequence[Candidate], number: int) -> tuple[GrownModel, list[Candidate]]:
        """The model at the end of a stage, and the candidates that it took, until none fits.

        Where the division is kept, the next is always of the part that is furthest behind its size in the uniform
        model.
        """
        allowed = self.first_cost + (self.allowance - self.first_cost) * number / self.method.n_stages
        ranked = ORDERS[self.method.order].ranked(candidates, np.random.default_rng(self.seed + number))
        groups = [list(self.parts)] if self.method.division == "free" else [[name] for name in self.parts]
        by_group = ([each for each in ranked if each.part in names] for names in groups)
        rounds = [_Rounds(candidates, self.parts) for candidates in by_group if candidates]
        now, taken = GrownModel.ungrown(self.now.model), list[Candidate]()
        while rounds:
            next_one = min(rounds, key=lambda each: each.size(now.model) / each.size(self.uniform))
            found = next_one.grown(now, lambda model: self.task.cost(model) <= allowed)
            if found is None:
                rounds.remove(next_one)
            else:
                now, candidate = found
                taken.append(candidate)
        return now, taken

    def _stage(self, step: int, **measured: Any) -> Stage:
        """The record of the model as it is now."""
        layers = [
            sizes_of(layer).with_changes(
                **{key: n for part in self.parts.values() for key, n in part.sizes(layer).items()}
            )
            for layer in self.now.model.layers
        ]
        stage = Stage(step=step, layers=layers, cost=self.task.cost(self.now.model), **measured)
        return stage.with_changes(sources=self.now.sources) if self.now.has_added else stage


class _Rounds:
    """Candidates that are taken one after the other, and then from the first again."""

    def __init__(self, ranked: Sequence[Candidate], parts: Mapping[str, Part]):
        self.ranked, self.parts, self.n_tried = ranked, parts, 0

    def size(self, model: ModelConfig) -> float:
        """What a model has of the first one's part."""
        return self.parts[self.ranked[0].part].total(model)

    def grown(self, now: GrownModel, fits: Callable[[ModelConfig], bool]) -> tuple[GrownModel, Candidate] | None:
        """The model grown by the next candidate with which it fits; None if there is none."""
        for _ in self.ranked:
            candidate = self.ranked[self.n_tried % len(self.ranked)]
            self.n_tried += 1
            grown = self.parts[candidate.part].grown(now, candidate.layer)
            if grown is not None and fits(grown.model):
                return grown, candidate
        return None


def _loss(source: "Source") -> float | None:
    result = source.run.result()
    assert result is not None
    return result.val_loss
