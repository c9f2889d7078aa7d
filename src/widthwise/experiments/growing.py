"""Discovery by growth: a narrow uniform model grows, part by part, where it would gain the most."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, checked_copy
from widthwise.experiments.growing_parts import GrownModel, PartName, parts_of, sizes_of, template_layer
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
    from widthwise.runs.trained import RunCheckpoint


@dataclass(frozen=True)
class Task:
    """A search for sizes of layers with which a model has the cost of the uniform one."""

    base: Recipe
    """The recipe of the uniform model."""
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
        widths = [each.width / self.template.d_model for each in layers]
        attention = [each.attention / uniform.attention / width for each, width in zip(layers, widths)]
        hidden = [each.hidden / uniform.hidden / n / width for each, n, width in zip(layers, blocks, widths)]
        searched = {} if layers[0].blocks is None else {"blocks": blocks}
        return Curve(widths=widths, attention=attention, hidden=hidden, **searched)


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
        self.uniform, template, seq_len = task.base.explicit_model, task.template, task.base.seq_len
        residual, n_stages = self.uniform.residual, method.n_stages
        if not isinstance(residual.layout, PrefixLayout):
            raise UserError(f"model.residual.kind: got {residual.kind!r}; layers of different width need plain")
        if task.steps < n_stages:
            raise UserError(f"discover.steps: got {task.steps}; must be at least one for each of {n_stages} stages")
        quantum = template.attention.quantum
        width = max(1, round(method.start_width * template.d_model / quantum)) * quantum
        narrow = ExplicitShape(widths=(width,) * template.n_layers)
        self.start = template.model_copy(update={"shape": narrow}).resolve(seq_len)
        """The narrow uniform model."""
        self.first_cost = task.cost(self.start)
        """The matched quantity of the narrow model."""
        self.allowance = self.first_cost + method.spend * (task.budget - self.first_cost)
        """The most of the matched quantity that the model may take at the end of the search."""
        known = parts_of(template, method.step)
        for name in method.parts:
            if name not in known:
                which = f"which this model does not have; allowed: {', '.join(known)}"
                raise UserError(f"discover.method.parts: got {name!r}, {which}")
            if method.division == "kept" and known[name].total(self.start) >= known[name].total(self.uniform):
                raise UserError(
                    f"discover.method.parts: got {name!r}, of which the narrow model has as much as the uniform one; "
                    "it grows with discover.method.division: free"
                )
        self.parts = {name: known[name] for name in method.parts}
        if self.first_cost >= task.budget:
            raise UserError(f"discover.method.start_width: got {method.start_width:g}; leaves nothing to grow by")
        ungrown = GrownModel.ungrown(self.start)
        steps = {name: task.cost(part.grown_at(ungrown, [0]).model) for name, part in self.parts.items()}
        if free := [name for name, cost in steps.items() if cost <= self.first_cost]:
            which = f"which adds no {task.match}; a budget must bound it"
            raise UserError(f"discover.method.parts: got {free[0]!r}, {which}")
        if (step := min(steps.values())) > self.allowance:
            raise UserError(
                f"discover.method.spend: got {method.spend:g}, which leaves {self.allowance:,.0f} {task.match}; must "
                f"leave {step:,.0f}, what a single growth takes"
            )
        # Or no curve could say what is found.
        flat = CurveShape(widths=(1, 1), attention=(1, 1), hidden=(1, 1))
        template.model_copy(update={"shape": flat}).resolve(seq_len)

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
        cost = {"tokens": spent.tokens, "flops": flops + spent.training_flops}
        return DiscoveredShape(curve=self.task.curve(layers), stages=stages, **cost, **n_layers)

    def _trained(
        self, now: GrownModel, number: int, folder: Path, before: "RunCheckpoint | None", observer: Observer
    ) -> "RunCheckpoint":
        """Return the run of a stage, grown from that of the stage before it, at its end.

        It trains at a constant rate, because the model at its end is not kept.
        """
        from widthwise.runs.conversion import carry_out
        from widthwise.runs.grow import GrowOptions, growth_intended
        from widthwise.runs.train import resume, train_or_resume
        from widthwise.runs.trained import RunCheckpoint

        run, base = RunDir(folder / f"stage-{number}"), self.task.base
        first_end, end = (round(self.task.steps * stage / self.method.n_stages) for stage in (1, number))
        train = checked_copy(base.train, "train", steps=end, validate_every=None)
        schedule = ConstantSchedule(warmup_steps=min(base.schedule.warmup_steps, first_end - 1))
        recipe = checked_copy(base, "recipe", model=now.model, train=train, schedule=schedule)
        if before is None:
            train_or_resume(recipe, run.path, observer)
        else:
            if not run.exists:
                options = GrowOptions(layers=now.sources, seed=base.train.seed, rewarmup_steps=0)
                carry_out(before, growth_intended(before, recipe, options), run.path, observer)
            resume(run.path, observer)
        source = RunCheckpoint.of(run.path)
        if [*map(sizes_of, source.model.layers)] != [*map(sizes_of, now.model.layers)]:
            raise UserError(f"{run.path}: grew otherwise than this version grows it; choose another folder with --out")
        return source

    def _candidates(self, source: "RunCheckpoint", observer: Observer) -> tuple[list[Candidate], float]:
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
            if not (places := part.places(start.model)):
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
        ranked = sorted(candidates, key=lambda each: each.gain / each.cost, reverse=True)
        if self.method.order == "random":
            order = np.random.default_rng(self.task.base.train.seed + number).permutation(len(candidates))
            ranked = [candidates[place] for place in order]
        groups = [list(self.parts)] if self.method.division == "free" else [[name] for name in self.parts]
        queues = [deque(each for each in ranked if each.part in names) for names in groups]
        now, taken = GrownModel.ungrown(model), list[Candidate]()
        while queues := [queue for queue in queues if queue]:
            leading = [self.parts[queue[0].part] for queue in queues]
            shares = [part.total(now.model) / part.total(self.uniform) for part in leading]
            queue = queues[shares.index(min(shares))]
            for candidate in tuple(queue):
                queue.rotate(-1)
                grown = self.parts[candidate.part].grown(now, candidate.layer)
                if grown is not None and self.task.cost(grown.model) <= allowed:
                    now = grown
                    taken.append(candidate)
                    break
            else:
                queue.clear()
        return now, taken

    def _stage(self, now: GrownModel, step: int, **measured: Any) -> Stage:
        layers = [sizes_of(layer, "blocks" in self.parts) for layer in now.model.layers]
        sources = {"sources": now.sources} if None in now.sources else {}
        return Stage(step=step, layers=layers, cost=self.task.cost(now.model), **sources, **measured)
