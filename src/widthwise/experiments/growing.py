"""Discovery by growth: a narrow uniform model grows, part by part, where it would gain the most."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, checked_copy
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.layer import LayerConfig
from widthwise.model.residual.interface import PrefixLayout
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.schedule import ConstantSchedule
from widthwise.records.discovery import Candidate, Curve, DiscoveredShape, Stage
from widthwise.records.quantities import OF_MODELS
from widthwise.records.record import Number
from widthwise.run_dir import RunDir
from widthwise.shape.kinds import CurveShape, ExplicitShape, Match
from widthwise.shape.profile import sizes_of
from widthwise.shape.template import ModelTemplate
from widthwise.training.observer import Observer

if TYPE_CHECKING:
    from torch import Tensor

    from widthwise.runs.trained import RunCheckpoint

PartName = Literal["width", "attention", "hidden"]


@dataclass(frozen=True)
class Part:
    """A part of a layer that can grow by a step."""

    name: PartName
    step: int
    """Channels that it grows by at a time."""
    enlarge: Callable[[LayerConfig, int, int], LayerConfig | None]
    """Makes a layer a step larger, in a model of this d_model; None where it cannot grow any further."""
    is_drawn: bool = True
    """True if its step draws weights, on which the gain depends."""

    def total(self, model: ModelConfig) -> Number:
        """Return how much of it all layers have together."""
        return sum(sizes_of(layer)[self.name] for layer in model.layers)

    def grown(self, model: ModelConfig, layer: int) -> ModelConfig | None:
        """Grow it by a step in one layer, numbered from 0; None where it cannot grow."""
        larger = self.enlarge(model.layers[layer], self.step, model.d_model)
        if larger is None:
            return None
        return checked_copy(model, "model", layers=(*model.layers[:layer], larger, *model.layers[layer + 1 :]))

    def grown_at(self, model: ModelConfig, layers: Sequence[int]) -> ModelConfig:
        """Grow it by a step in several layers, where it can grow."""
        return reduce(lambda grown, layer: self.grown(grown, layer) or grown, layers, model)

    def places(self, model: ModelConfig) -> list[int]:
        """Return the layers in which it can grow."""
        return [layer for layer in range(model.n_layers) if self.grown(model, layer) is not None]

    @staticmethod
    def draws(gains: "Mapping[str, Tensor]", layer: int, n_steps: int) -> list[float]:
        """Return the gain of each of several steps in a layer. gains: of `first_order_gains`, for the grown model.

        None of the steps changes the function, so that each has the gain that it would have alone, with a draw of its
        own.
        """
        found = [gain for name, gain in gains.items() if name.startswith(f"layers.{layer}.")]
        steps = zip(*(gain.tensor_split(n_steps) for gain in found), strict=True)
        return [sum(float(gain.sum()) for gain in step) for step in steps]


def _wider(layer: LayerConfig, step: int, d_model: int) -> LayerConfig | None:
    """Return a layer that reads and writes more coordinates of the stream: at most those of the embedding, because no
    other layer writes those beyond."""
    width = layer.d_model + step
    if width > d_model:
        return None
    return layer.model_copy(update={"d_model": width, "d_in": width, "d_out": width})


def _with_heads(layer: LayerConfig, step: int, d_model: int) -> LayerConfig:
    """Return a layer with further groups of heads of the size that the others have."""
    attention = layer.attention
    group = attention.n_heads // attention.n_kv_heads
    n_new = max(1, round(step / (group * attention.head_dim)))
    sizes = {"n_heads": attention.n_heads + n_new * group, "n_kv_heads": attention.n_kv_heads + n_new}
    return layer.model_copy(update={"attention": checked_copy(attention, "attention", **sizes)})


def _with_units(layer: LayerConfig, step: int, d_model: int) -> LayerConfig:
    """Return a layer with further hidden units in its feed-forward; in an hourglass, as many in each block."""
    [key] = layer.ffn.hidden_axes
    sizes = {key: getattr(layer.ffn, key) + step}
    return layer.model_copy(update={"ffn": checked_copy(layer.ffn, "ffn", **sizes)})


def parts_of(template: ModelTemplate, step: float) -> dict[PartName, Part]:
    """Return the parts that a model has, each with the step that a search grows it by. step: over its size in the
    uniform model."""
    layer = template.uniform().model_copy(update={"n_layers": 1}).resolve(1).layers[0]
    sizes, hidden = sizes_of(layer), layer.ffn.hidden_widths

    def whole(size: Number, quantum: int = 1) -> int:
        return max(1, round(step * size / quantum)) * quantum

    parts = [Part("width", whole(sizes.width), _wider, is_drawn=False)]  # all of its new weights are 0
    parts.append(Part("attention", whole(sizes.attention, template.attention.unit), _with_heads))
    if len(layer.ffn.hidden_axes) == 1:
        parts.append(Part("hidden", whole(sum(hidden) // len(hidden)), _with_units))
    return {part.name: part for part in parts}


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
    """The parts of a layer that grow: its `width` in the stream, its `attention` by heads, its `hidden` units."""
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


class GrowingSearch:
    """A search for sizes of layers with which a model costs what the uniform one does. It resumes in its folder if it
    was interrupted."""

    def __init__(self, method: GrowingMethod, base: Recipe, steps: int, match: Match):
        """base: the recipe of the uniform model; steps: of training. Raises UserError for sizes that the method cannot
        search."""
        self.method, self.base, self.steps, self.match = method, base, steps, match
        self.uniform, template, n_stages = base.explicit_model, self.template, method.n_stages
        self.budget = self.cost(self.uniform)
        """The matched quantity of the uniform model."""
        residual = self.uniform.residual
        if not isinstance(residual.layout, PrefixLayout):
            raise UserError(f"model.residual.kind: got {residual.kind!r}; layers of different width need plain")
        if steps < n_stages:
            raise UserError(f"discover.steps: got {steps}; must be at least one for each of {n_stages} stages")
        quantum = template.attention.quantum
        width = max(1, round(method.start_width * template.d_model / quantum)) * quantum
        narrow = ExplicitShape(widths=(width,) * template.n_layers)
        self.start = template.model_copy(update={"shape": narrow}).resolve(base.seq_len)
        """The narrow uniform model."""
        self.first_cost = self.cost(self.start)
        """The matched quantity of the narrow model."""
        self.allowance = self.first_cost + method.spend * (self.budget - self.first_cost)
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
        if self.first_cost >= self.budget:
            raise UserError(f"discover.method.start_width: got {method.start_width:g}; leaves nothing to grow by")
        costs = {name: self.cost(part.grown_at(self.start, [0])) for name, part in self.parts.items()}
        if free := [name for name, cost in costs.items() if cost <= self.first_cost]:
            which = f"which adds no {match}; a budget must bound it"
            raise UserError(f"discover.method.parts: got {free[0]!r}, {which}")
        if (least := min(costs.values())) > self.allowance:
            raise UserError(
                f"discover.method.spend: got {method.spend:g}, which leaves {self.allowance:,.0f} {match}; must "
                f"leave {least:,.0f}, what a single growth takes"
            )
        # Otherwise no curve could describe the result.
        flat = CurveShape(widths=(1, 1), attention=(1, 1), hidden=(1, 1))
        template.model_copy(update={"shape": flat}).resolve(base.seq_len)

    @property
    def template(self) -> ModelTemplate:
        assert isinstance(self.base.model, ModelTemplate)
        return self.base.model

    def cost(self, model: ModelConfig) -> float:
        """Return the matched quantity of a model."""
        return OF_MODELS[self.match].of_cost(cost_summary(model, self.base.seq_len))

    def find(self, folder: Path, observer: Observer) -> DiscoveredShape:
        """Train and grow stage by stage. Stages that were trained before are not trained again."""
        stages, flops, source, model = list[Stage](), 0.0, None, self.start
        for number in range(1, self.method.n_stages + 1):
            source = self._trained(model, number, folder, source, observer)
            candidates, spent = self._candidates(source, observer)
            grown, taken = self._grown(model, candidates, number)
            candidates = [each.with_changes(is_taken=each in taken) for each in candidates]
            result = source.run.result()
            assert result is not None
            stages.append(self._stage(model, source.step, loss=result.val_loss, candidates=candidates))
            model, flops = grown, flops + spent
        assert source is not None
        stages.append(self._stage(model, self.steps))
        spent = source.spent
        return DiscoveredShape(
            curve=Curve.of(stages[-1].layers, sizes_of(self.uniform.layers[0])),
            stages=stages,
            tokens=spent.tokens,
            flops=flops + spent.training_flops,
        )

    def _trained(
        self, model: ModelConfig, number: int, folder: Path, before: "RunCheckpoint | None", observer: Observer
    ) -> "RunCheckpoint":
        """Return the run of a stage, grown from that of the stage before it, at its end.

        It trains at a constant rate, because the model at its end is not kept.
        """
        from widthwise.runs.conversion import carry_out
        from widthwise.runs.grow import GrowOptions, growth_intended
        from widthwise.runs.train import resume, train_or_resume
        from widthwise.runs.trained import RunCheckpoint

        run, base = RunDir(folder / f"stage-{number}"), self.base
        first_end, end = (round(self.steps * stage / self.method.n_stages) for stage in (1, number))
        train = checked_copy(base.train, "train", steps=end, validate_every=None)
        schedule = ConstantSchedule(warmup_steps=min(base.schedule.warmup_steps, first_end - 1))
        recipe = checked_copy(base, "recipe", model=model, train=train, schedule=schedule)
        if before is None:
            train_or_resume(recipe, run.path, observer)
        else:
            if not run.exists:
                options = GrowOptions(seed=base.train.seed, rewarmup_steps=0)
                carry_out(before, growth_intended(before, recipe, options), run.path, observer)
            resume(run.path, observer)
        source = RunCheckpoint.of(run.path)
        if [*map(sizes_of, source.model.layers)] != [*map(sizes_of, model.layers)]:
            raise UserError(
                f"{run.path}: was grown by a version that grows it differently; choose another folder with --out"
            )
        return source

    def _candidates(self, source: "RunCheckpoint", observer: Observer) -> tuple[list[Candidate], float]:
        """Return every part with every layer where it can grow, its gain and its cost; and the FLOPs of measuring."""
        from widthwise.growth.certificate import STEPS, first_order_gains
        from widthwise.growth.plan import plan_growth
        from widthwise.runs.conversion import batches_from

        weights, _, state = source.load()
        batches = batches_from(source.recipe, state.step, self.method.n_batches, observer)
        n_tokens = sum(batch[:, 1:].numel() for batch in batches)
        step = STEPS[self.method.gain_along]
        found, flops, start, cost = [], 0.0, source.model, self.cost(source.model)
        for name, part in self.parts.items():
            if not (places := part.places(start)):
                continue
            n_draws = self.method.n_draws if part.is_drawn else 1
            plan = plan_growth(start, part.grown_at(start, places * n_draws))
            gains = first_order_gains(plan, weights, batches, seed=self.base.train.seed, step=step)
            flops += plan.new.cost().training_flops(source.recipe.seq_len) * n_tokens
            for layer in places:
                draws = part.draws(gains, layer, n_draws)
                added = self.cost(part.grown_at(start, [layer])) - cost
                error = {"gain_error": stdev(draws) / len(draws) ** 0.5} if len(draws) > 1 else {}
                found.append(Candidate(layer=layer, part=name, gain=fmean(draws), cost=added, **error))
        return found, flops

    def _grown(
        self, model: ModelConfig, candidates: Sequence[Candidate], number: int
    ) -> tuple[ModelConfig, list[Candidate]]:
        """Return the model at the end of a stage, and the candidates that it took, until none fits.

        Candidates wait in one queue, or, where the division is kept, in one for each part; then the next is always of
        the part that is furthest behind its size in the uniform model.
        """
        allowed = self.first_cost + (self.allowance - self.first_cost) * number / self.method.n_stages
        ranked = sorted(candidates, key=lambda each: each.gain / each.cost, reverse=True)
        if self.method.order == "random":
            order = np.random.default_rng(self.base.train.seed + number).permutation(len(candidates))
            ranked = [candidates[place] for place in order]
        groups = [list(self.parts)] if self.method.division == "free" else [[name] for name in self.parts]
        queues = [deque(each for each in ranked if each.part in names) for names in groups]
        taken = list[Candidate]()
        while queues := [queue for queue in queues if queue]:
            leading = [self.parts[queue[0].part] for queue in queues]
            shares = [part.total(model) / part.total(self.uniform) for part in leading]
            queue = queues[shares.index(min(shares))]
            for candidate in tuple(queue):
                queue.rotate(-1)
                grown = self.parts[candidate.part].grown(model, candidate.layer)
                if grown is not None and self.cost(grown) <= allowed:
                    model = grown
                    taken.append(candidate)
                    break
            else:
                queue.clear()
        return model, taken

    def _stage(self, model: ModelConfig, step: int, **measured: Any) -> Stage:
        return Stage(step=step, layers=[*map(sizes_of, model.layers)], cost=self.cost(model), **measured)
