"""Discovery by growth: a narrow uniform model grows, part by part, where it would gain the most."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, checked_copy
from widthwise.experiments.growing_parts import PARTS, GrownModel, Part, PartName, sizes_of, template_layer
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.residual.interface import PrefixLayout
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.schedule import ConstantSchedule
from widthwise.records.discovery import Candidate, Curve, DiscoveredShape, LayerSizes, Stage
from widthwise.records.quantities import OF_MODELS
from widthwise.run_dir import RunDir
from widthwise.shape.kinds import CurveShape, ExplicitShape, Match
from widthwise.shape.template import ModelTemplate
from widthwise.training.observer import Observer

if TYPE_CHECKING:
    from widthwise.runs.trained import Source


@dataclass(frozen=True)
class Task:
    """A search for sizes of layers with which a model has the cost of the uniform one."""

    base: Recipe
    """Its model is the uniform one."""
    steps: int
    match: Match

    @property
    def template(self) -> ModelTemplate:
        assert isinstance(self.base.model, ModelTemplate)
        return self.base.model

    @property
    def budget(self) -> float:
        """The matched quantity of the uniform model."""
        return self.cost(self.base.explicit_model)

    def cost(self, model: ModelConfig) -> float:
        """Return the matched quantity of a model."""
        return OF_MODELS[self.match].of_cost(cost_summary(model, self.base.seq_len))

    def curve(self, layers: Sequence[LayerSizes]) -> Curve:
        """Return sizes of layers as points: widths and blocks over those of the uniform model, the others over what the
        recipe's rules give at that width, and for so many blocks."""
        layer = template_layer(self.template)
        uniform, n_blocks = sizes_of(layer), layer.ffn.n_residual_additions
        blocks = [1 if each.blocks is None else each.blocks / n_blocks for each in layers]
        sizes = {
            "widths": [each.width / self.template.d_model for each in layers],
            "attention": [each.attention / uniform.attention for each in layers],
            "hidden": [each.hidden / uniform.hidden / n for each, n in zip(layers, blocks)],
        }
        return Curve.of_sizes(sizes if layers[0].blocks is None else sizes | {"blocks": blocks})


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
    """Growth of a part at a time, over its size in the uniform model."""
    parts: Annotated[tuple[PartName, ...], Field(min_length=1)] = ("width", "attention", "hidden")
    """The parts that grow: of a layer its `width` in the stream, its `attention` by heads, its `hidden` units, the
    `blocks` of its hourglass; and the model by a `layer` between two, before the first or behind the last."""
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
    """The share that the search spends of what the budget leaves beside the narrow model. Below 1, because the widest
    layers cannot grow beyond the embedding while others catch up; what is found is scaled to the whole budget."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "GrowingMethod":
        twice = next((part for part in self.parts if self.parts.count(part) > 1), None)
        if twice is not None:
            raise ValueError(f"parts: got {twice!r} twice; each part grows by one step")
        return self

    @property
    def in_words(self) -> str:
        return "grown in random order" if self.order == "random" else "grown where it gained most"


class GrowingSearch:
    """A search by a method. It resumes in its folder if it was interrupted."""

    def __init__(self, method: GrowingMethod, task: Task):
        """Raises UserError for a uniform model whose sizes the method cannot search."""
        self.method, self.task = method, task
        self.uniform = task.base.explicit_model
        residual = self.uniform.residual
        if not isinstance(residual.layout, PrefixLayout):
            raise UserError(f"model.residual.kind: got {residual.kind!r}; layers of different width need plain")
        if task.steps < method.n_stages:
            raise UserError(
                f"discover.steps: got {task.steps}; must be at least one for each of {method.n_stages} stages"
            )
        self._check_parts()
        if self.first_cost >= task.budget:
            raise UserError(f"discover.method.start_width: got {method.start_width:g}; leaves nothing to grow by")
        self._check_steps()
        # Or no curve could say what is found.
        flat = CurveShape(widths=(1, 1), attention=(1, 1), hidden=(1, 1))
        task.template.model_copy(update={"shape": flat}).resolve(task.base.seq_len)

    @cached_property
    def start(self) -> ModelConfig:
        """The narrow uniform model."""
        template = self.task.template
        quantum = template.attention.quantum
        width = max(1, round(self.method.start_width * template.d_model / quantum)) * quantum
        shape = ExplicitShape(widths=(width,) * template.n_layers)
        return template.model_copy(update={"shape": shape}).resolve(self.task.base.seq_len)

    @cached_property
    def first_cost(self) -> float:
        """The matched quantity of the narrow model."""
        return self.task.cost(self.start)

    @cached_property
    def allowance(self) -> float:
        """The most of the matched quantity that the model may take at the end of the search."""
        return self.first_cost + self.method.spend * (self.task.budget - self.first_cost)

    @cached_property
    def parts(self) -> dict[str, Part]:
        return {name: PARTS[name].of(self.task.template, self.method.step) for name in self.method.parts}

    def _check_parts(self) -> None:
        """Raises UserError for parts that the model lacks, or that start as large as in the uniform one."""
        allowed = [name for name, part in PARTS.items() if part.is_in(self.uniform.layers[0])]
        for name in self.method.parts:
            if name not in allowed:
                known = ", ".join(allowed)
                raise UserError(
                    f"discover.method.parts: got {name!r}, which this model does not have; allowed: {known}"
                )
            if self.method.division == "kept" and PARTS[name].total(self.start) >= PARTS[name].total(self.uniform):
                raise UserError(
                    f"discover.method.parts: got {name!r}, of which the narrow model has as much as the uniform one; "
                    "it grows with discover.method.division: free"
                )

    def _check_steps(self) -> None:
        """Raises UserError if a step costs nothing, or if none fits."""
        start, match = GrownModel.ungrown(self.start), self.task.match
        steps = {name: self.task.cost(part.grown_at(start, [0]).model) for name, part in self.parts.items()}
        free = next((name for name, cost in steps.items() if cost <= self.first_cost), None)
        if free is not None:
            raise UserError(f"discover.method.parts: got {free!r}, which adds no {match}; a budget must bound it")
        if (step := min(steps.values())) > self.allowance:
            raise UserError(
                f"discover.method.spend: got {self.method.spend:g}, which leaves {self.allowance:,.0f} {match}; must "
                f"leave {step:,.0f}, what a single growth takes"
            )

    def find(self, folder: Path, observer: Observer) -> DiscoveredShape:
        """Train and grow stage by stage. Stages that were trained before are not trained again."""
        stages, flops, source, now = list[Stage](), 0.0, None, GrownModel.ungrown(self.start)
        for number in range(1, self.method.n_stages + 1):
            source = self._trained(now, number, folder, source, observer)
            candidates, spent = self._candidates(source, observer)
            grown, taken = self._grown(now.model, candidates, number)
            candidates = [each.with_changes(is_taken=each in taken) for each in candidates]
            result = source.run.result()
            assert result is not None
            stages.append(self._stage(now, source.step, loss=result.val_loss, candidates=candidates))
            now, flops = grown, flops + spent
        assert source is not None
        stages.append(self._stage(now, self.task.steps))
        spent, layers = source.spent, stages[-1].layers
        n_layers = {} if len(layers) == self.task.template.n_layers else {"n_layers": len(layers)}
        flops += spent.training_flops
        return DiscoveredShape(
            curve=self.task.curve(layers), stages=stages, tokens=spent.tokens, flops=flops, **n_layers
        )

    def _trained(
        self, now: GrownModel, number: int, folder: Path, before: "Source | None", observer: Observer
    ) -> "Source":
        """Return the run of a stage, grown from that of the stage before it, at its end."""
        from widthwise.runs.conversion import carry_out
        from widthwise.runs.grow import GrowOptions, growth_intended
        from widthwise.runs.train import resume, train_or_resume
        from widthwise.runs.trained import Source

        run, recipe = RunDir(folder / f"stage-{number}"), self._recipe(now.model, number)
        if before is None:
            train_or_resume(recipe, run.path, observer)
        else:
            if not run.exists:
                options = GrowOptions(layers=now.sources, seed=self.task.base.train.seed, rewarmup_steps=0)
                carry_out(before, growth_intended(before, recipe, options), run.path, observer)
            resume(run.path, observer)
        source = Source.of(run.path)
        if [*map(sizes_of, source.model.layers)] != [*map(sizes_of, now.model.layers)]:
            raise UserError(f"{run.path}: grew otherwise than this version grows it; choose another folder with --out")
        return source

    def _recipe(self, model: ModelConfig, number: int) -> Recipe:
        """Return the recipe of a stage: at a constant rate, because the model at its end is not kept."""
        base, ends = self.task.base, [round(self.task.steps * stage / self.method.n_stages) for stage in (1, number)]
        train = checked_copy(base.train, "train", steps=ends[1], validate_every=None)
        schedule = ConstantSchedule(warmup_steps=min(base.schedule.warmup_steps, ends[0] - 1))
        return checked_copy(base, "recipe", model=model, train=train, schedule=schedule)

    def _candidates(self, source: "Source", observer: Observer) -> tuple[list[Candidate], float]:
        """Return every part with every place where it can grow, its gain and its cost; and the FLOPs of measuring."""
        from widthwise.growth.certificate import STEPS, first_order_gains
        from widthwise.growth.correspondence import Correspondence
        from widthwise.growth.plan import plan_growth
        from widthwise.runs.conversion import batches_from

        weights, _, state = source.load()
        batches = batches_from(source.recipe, state.step, self.method.n_batches, observer)
        n_tokens = sum(batch[:, 1:].numel() for batch in batches)
        step = STEPS[self.method.gain_along]
        found, flops, start, cost = [], 0.0, GrownModel.ungrown(source.model), self.task.cost(source.model)
        for name, part in self.parts.items():
            places = part.places(start.model)
            if not places:
                continue
            n_draws = self.method.n_draws if part.is_drawn else 1
            grown = part.grown_at(start, places * n_draws)
            plan = plan_growth(start.model, grown.model, Correspondence(grown.sources))
            gains = first_order_gains(plan, weights, batches, seed=self.task.base.train.seed, step=step)
            flops += plan.new.cost().training_flops(source.recipe.seq_len) * n_tokens
            for place in places:
                draws = part.draws(gains, grown, place, n_draws)
                added = self.task.cost(part.grown_at(start, [place]).model) - cost
                known: dict[str, Any] = {"is_gap": True} if name == "layer" else {}
                known |= {"gain_error": stdev(draws) / len(draws) ** 0.5} if len(draws) > 1 else {}
                found.append(Candidate(layer=place, part=name, gain=fmean(draws), cost=added, **known))
        return found, flops

    def _grown(
        self, model: ModelConfig, candidates: Sequence[Candidate], number: int
    ) -> tuple[GrownModel, list[Candidate]]:
        """Return the model at the end of a stage, and the candidates that it took, until none fits.

        Candidates wait in one queue, or, where the division is kept, in one for each part; then the next is always of
        the part that is furthest behind its size in the uniform model.
        """
        allowed = self.first_cost + (self.allowance - self.first_cost) * number / self.method.n_stages
        ranked = self._ranked(candidates, number)
        groups = [list(self.parts)] if self.method.division == "free" else [[name] for name in self.parts]
        queues = [deque(each for each in ranked if each.part in names) for names in groups]
        now, taken = GrownModel.ungrown(model), list[Candidate]()

        def share(queue: deque[Candidate]) -> float:
            part = self.parts[queue[0].part]
            return part.total(now.model) / part.total(self.uniform)

        while queues := [queue for queue in queues if queue]:
            queue = min(queues, key=share)
            for _ in range(len(queue)):
                candidate = queue[0]
                queue.rotate(-1)
                grown = self.parts[candidate.part].grown(now, candidate.layer)
                if grown is not None and self.task.cost(grown.model) <= allowed:
                    now = grown
                    taken.append(candidate)
                    break
            else:
                queue.clear()
        return now, taken

    def _ranked(self, candidates: Sequence[Candidate], number: int) -> list[Candidate]:
        if self.method.order == "random":
            generator = np.random.default_rng(self.task.base.train.seed + number)
            return [candidates[place] for place in generator.permutation(len(candidates))]
        return sorted(candidates, key=lambda each: each.gain / each.cost, reverse=True)

    def _stage(self, now: GrownModel, step: int, **measured: Any) -> Stage:
        layers = [sizes_of(layer) for layer in now.model.layers]
        if "blocks" in self.parts:
            n_blocks = [layer.ffn.n_residual_additions for layer in now.model.layers]
            layers = [sizes.with_changes(blocks=n) for sizes, n in zip(layers, n_blocks)]
        stage = Stage(step=step, layers=layers, cost=self.task.cost(now.model), **measured)
        return stage.with_changes(sources=now.sources) if None in now.sources else stage
