"""The shapes a recipe can ask for: `model.shape`, chosen by `kind`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError
from widthwise.model.attention import AttentionTemplate
from widthwise.model.ffn.interface import Adjustable, FFNTemplate
from widthwise.shape import profile
from widthwise.shape.rounding import round_balanced, round_whole
from widthwise.shape.schedule import SCHEDULES, Progression, Schedule, WidthCost, scaled_widths, solve_widths
from widthwise.sizes import Width

Fraction = Annotated[float, Field(gt=0, le=1)]
Points = Annotated[tuple[pydantic.PositiveFloat, ...], Field(min_length=2, max_length=100)]
Match = Literal["params", "layer_params", "active_params", "flops", "flops_causal", "kv_bytes"]
"""A cost of a model that others can be given. layer_params: attention and feed-forward, without embedding, heads and
norms, as the hourglass paper counts."""
Rounding = Literal["nearest", "balanced"]


class LayerShape(Config):
    """The fields of all shapes."""

    if TYPE_CHECKING:
        kind: Any  # a Literal of each class

    def layer_parts(
        self, attention: AttentionTemplate, ffn: FFNTemplate, d_model: int, widths: Sequence[float]
    ) -> list[tuple[AttentionTemplate, FFNTemplate]]:
        """(n_layers,) the attention and the feed-forward of each layer: the recipe's, unless the shape moves them.

        widths: of the layers, in channels; not rounded yet where costs are compared.
        """
        return [(attention, ffn)] * len(widths)

    def width_quantum(self, attention: AttentionTemplate) -> int:
        """Return the quantum of widths for which the heads fit."""
        return attention.quantum

    def n_uniform_layers(self, n_layers: int) -> int:
        """Layers of the uniform model that n_layers of this shape are matched to."""
        return n_layers

    def adjustable(self) -> Adjustable:
        """The parameter that moves its widths. Raises ValueError where there is none."""
        raise ValueError(f"kind: {self.kind!r} has no parameter that can be adjusted")


class UnsolvedShape(LayerShape):
    """A shape that asks for no budget; unless it says otherwise, every layer is as wide as the embedding."""

    match: ClassVar[Match] = "params"

    def layer_widths(self, n_layers: int, cost: WidthCost, least_quantum: int) -> list[int]:
        return [round(cost.d_model)] * n_layers


class UniformShape(UnsolvedShape):
    """Every layer as wide as the embedding: the baseline."""

    kind: Literal["uniform"] = "uniform"
    endpoints: Literal["slim", "full"] = "slim"


class ExplicitShape(UnsolvedShape):
    """Widths that are written out."""

    kind: Literal["explicit"] = "explicit"
    widths: tuple[Width, ...]
    """One for each layer, first to last."""
    endpoints: Literal["slim", "full"] = "slim"

    def layer_widths(self, n_layers: int, cost: WidthCost, least_quantum: int) -> list[int]:
        if len(self.widths) != n_layers:
            raise UserError(f"model.shape.widths: got {len(self.widths)} widths for n_layers = {n_layers}")
        return list(self.widths)


class ProfileShape(UnsolvedShape):
    """A uniform stream whose heads or hidden units are spread unevenly over the layers; see `shape.profile`."""

    kind: Literal["profile"] = "profile"
    heads: Points | None = None
    """Heads of the first to the last layer in relation to each other, on straight lines: [0.5, 1] is OpenELM's, [1,
    0.5] the reverse, [0.5, 1, 0.5] a crown. Every layer has heads of the same size. null: as many in every layer."""
    hidden: Points | None = None
    """The same for the hidden width of the feed-forward."""
    framed: bool = False
    """The first and the last layer keep the sizes of the uniform model, and the lines lead through the rest."""
    endpoints: Literal["slim", "full"] = "slim"

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ProfileShape":
        if self.heads is None and self.hidden is None:
            raise ValueError("heads: missing; a profile needs heads, hidden or both")
        return self

    def layer_parts(
        self, attention: AttentionTemplate, ffn: FFNTemplate, d_model: int, widths: Sequence[float]
    ) -> list[tuple[AttentionTemplate, FFNTemplate]]:
        n_layers = len(widths)
        attentions, ffns = [attention] * n_layers, [ffn] * n_layers
        if self.heads is not None:
            attentions = profile.with_heads(attention, profile.shares(self.heads, n_layers, self.framed), d_model)
        if self.hidden is not None:
            ffns = profile.with_hidden(ffn, profile.shares(self.hidden, n_layers, self.framed), d_model)
        return list(zip(attentions, ffns, strict=True))


class SolvedShape(LayerShape, ABC):
    """Widths that are solved so that the model costs what a uniform one of width d_model costs."""

    quantum: Width | None = None
    """Widths are multiples of this; where not given, the smallest that makes whole heads of an even size, and whole
    slots of hyper-connections."""
    match: Match = "params"
    """The quantity that equals the uniform model's: matrix parameters (the paper; those of the layers alone are the
    same, because embedding and head do not change), those of them that one token uses, forward FLOPs at seq_len, the
    same with half the context, or KV bytes."""
    rounding: Rounding = "nearest"
    """Each width to the nearest multiple (the paper), or up or down so that the total meets the budget."""
    endpoints: Literal["slim", "full", "full_matched"] = "slim"
    """First-layer inputs and last-layer outputs stop at d_model (slim, the paper) or span the layer. With `full` the
    widths are those of slim ends (its release, which costs more than the uniform model); with `full_matched` they are
    solved for the full ones."""

    @abstractmethod
    def solved_widths(self, n_layers: int, cost: WidthCost) -> np.ndarray:
        """(n_layers,) widths in channels, not rounded, that cost what the uniform model costs. Raises UserError."""

    def layer_widths(self, n_layers: int, cost: WidthCost, least_quantum: int) -> list[int]:
        """The rounded widths. least_quantum: what every width must be a multiple of for the sake of heads and slots."""
        quantum = least_quantum if self.quantum is None else self.quantum
        if quantum % least_quantum:
            raise UserError(
                f"model.shape.quantum: got {quantum}; must be a multiple of {least_quantum}: whole heads (2 * n_heads, "
                "or head_dim) and, with hyper-connections, whole slots"
            )
        widths = self.solved_widths(n_layers, cost)
        if self.rounding == "nearest":
            return [int(width) for width in round_whole(widths, quantum, cost.d_model, least_quantum)]
        budget = cost.uniform(self.n_uniform_layers(n_layers))
        return [int(width) for width in round_balanced(widths, quantum, cost, budget, least_quantum)]


class DrawnShape(SolvedShape):
    """The fields of shapes that are curves over the depth.

    Only proportions count: a curve found at one size says what the same curve is at another depth, width and budget.
    """

    widths: Points
    """Widths of the first to the last layer in relation to each other; between the points, which divide the depth
    evenly, they are on straight lines."""
    attention: Points | None = None
    """Width of attention over that of the stream, times what the recipe's rule gives, along the depth; heads keep the
    size that they have at d_model. null: the recipe's rule."""
    hidden: Points | None = None
    """The same for the hidden width of the feed-forward, of each block if it is an hourglass."""
    blocks: Points | None = None
    """Blocks of an hourglass over the recipe's ffn.n_blocks, along the depth; rounded, at least one. null: as many in
    every layer."""
    depth: pydantic.PositiveFloat = 1.0
    """n_layers over the layers of the uniform model which costs as much."""

    def n_uniform_layers(self, n_layers: int) -> int:
        return max(1, round(n_layers / self.depth))

    def solved_widths(self, n_layers: int, cost: WidthCost) -> np.ndarray:
        return scaled_widths(profile.along(self.widths, n_layers), cost, cost.uniform(self.n_uniform_layers(n_layers)))

    def width_quantum(self, attention: AttentionTemplate) -> int:
        return attention.quantum if self.attention is None else 1

    def layer_parts(
        self, attention: AttentionTemplate, ffn: FFNTemplate, d_model: int, widths: Sequence[float]
    ) -> list[tuple[AttentionTemplate, FFNTemplate]]:
        attentions, ffns = [attention] * len(widths), [ffn] * len(widths)
        if self.attention is not None:
            factors = profile.along(self.attention, len(widths))
            attentions = profile.with_attention_widths(attention, factors, d_model, widths)
        if self.hidden is not None:
            ffns = profile.with_hidden_ratios(ffn, profile.along(self.hidden, len(widths)))
        if self.blocks is not None:
            ffns = profile.with_blocks(ffns, profile.along(self.blocks, len(widths)))
        return list(zip(attentions, ffns, strict=True))


class CurveShape(DrawnShape):
    """A curve given in the recipe, such as that of `shrunk.yaml`."""

    kind: Literal["curve"] = "curve"


class FoundShape(DrawnShape):
    """The mean of twelve searches at 0.66M parameters, on books and on Python source: a head start in training; see
    docs/findings.md.

    Hidden units in the first quarter of the depth, heads in the last one, the stream narrowest after the first layer.
    """

    kind: Literal["found"] = "found"
    widths: Points = (1.1982, 0.7498, 0.8488, 0.9231, 0.9853, 1.0981, 1.0482, 1.1484)
    attention: Points | None = (0.5205, 1.1641, 1.0559, 0.8384, 0.9106, 0.9794, 1.4296, 1.3276)
    hidden: Points | None = (1.4898, 1.7779, 1.043, 0.7435, 0.6839, 0.6141, 0.846, 0.8817)
    rounding: Rounding = "balanced"


class ScheduledShape(SolvedShape):
    """A schedule whose end width is solved for. Source: variable-width paper, Appendix A."""

    schedule: ClassVar[Schedule]
    schedule_options: ClassVar[tuple[str, ...]] = ("progression",)
    """Fields that replace the schedule's."""
    progression: Progression = "geometric"
    """Widths between the turn and the ends: at one ratio from layer to layer (the paper), or by one difference, which
    its footnote 2 found to be worse."""

    def solved_widths(self, n_layers: int, cost: WidthCost) -> np.ndarray:
        # The schedule knows which fields of the subclass place its turn.
        depth = None if self.schedule.layer_key is None else getattr(self, self.schedule.layer_key)
        turn_layer, turn_ratio = self.schedule.turn_layer(n_layers, depth), getattr(self, self.schedule.ratio_key)
        given = {name: getattr(self, name) for name in self.schedule_options}
        return solve_widths(replace(self.schedule, **given), cost, n_layers, turn_layer, turn_ratio)

    def adjustable(self) -> Adjustable:
        """The width at the turn, in hundredths of d_model."""
        key = self.schedule.ratio_key
        value, (lowest, highest) = getattr(self, key), self.schedule.ratios
        return Adjustable(key, value, step=0.01, limits=(lowest, min(highest, max(2 * value, 1))))


class TurningShape(ScheduledShape):
    """A shape with an end on either side of its turn."""

    schedule_options = ("progression", "last_over_first")
    last_over_first: pydantic.PositiveFloat | None = 1.0
    """Width of the last layer over the first layer's; 1 in the paper. null: what the same rate of change on both sides
    of the turn gives (its release's symmetric_widths: false)."""


class XShape(TurningShape):
    """Wide ends, narrow at `bottleneck_layer`: the ><former."""

    schedule = SCHEDULES["x"]
    kind: Literal["x"] = "x"
    bottleneck_layer: Fraction = 0.75
    """Depth of the narrowest layer, as a fraction of n_layers."""
    bottleneck_width: Fraction = 0.3
    """Its width over d_model."""


class DiamondShape(TurningShape):
    """Narrow ends, wide at `peak_layer`."""

    schedule = SCHEDULES["diamond"]
    kind: Literal["diamond"] = "diamond"
    peak_layer: Fraction = 0.5
    """Depth of the widest layer, as a fraction of n_layers."""
    peak_width: pydantic.PositiveFloat = 1.5
    """Its width over d_model."""


class MonotoneShape(ScheduledShape):
    """From a narrow end to a wide one."""

    narrow_width: Fraction = 0.5
    """Width of the narrow end over d_model."""


class GrowingShape(MonotoneShape):
    """Narrow first layer, wider and wider."""

    schedule = SCHEDULES["growing"]
    kind: Literal["growing"] = "growing"


class NarrowingShape(MonotoneShape):
    """Wide first layer, narrower and narrower."""

    schedule = SCHEDULES["narrowing"]
    kind: Literal["narrowing"] = "narrowing"


Shape = Annotated[
    UniformShape
    | ExplicitShape
    | ProfileShape
    | CurveShape
    | FoundShape
    | XShape
    | DiamondShape
    | GrowingShape
    | NarrowingShape,
    Field(discriminator="kind"),
]
