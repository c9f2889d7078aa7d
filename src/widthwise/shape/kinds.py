"""The shapes of a recipe, `model.shape`, selected by `kind`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import pydantic
from pydantic import Field

from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionTemplate
from widthwise.model.ffn.interface import FFNTemplate, HiddenWidthTemplate
from widthwise.model.kinds import ConfigOfKind
from widthwise.shape.rounding import apportioned, round_balanced, round_whole
from widthwise.shape.schedule import (
    SCHEDULES,
    Progression,
    Schedule,
    WidthCost,
    along,
    scaled_widths,
    shares,
    solve_widths,
)
from widthwise.sizes import Width

Fraction = Annotated[float, Field(gt=0, le=1)]
Points = Annotated[tuple[pydantic.PositiveFloat, ...], Field(min_length=2, max_length=100)]
Match = Literal["params", "layer_params", "active_params", "flops", "flops_causal", "kv_bytes"]
"""A cost that two models can share. layer_params: attention and feed-forward, without embedding, heads and norms, as in
the hourglass paper."""
Rounding = Literal["nearest", "balanced"]


class LayerShape(ConfigOfKind):
    """Base of all shapes."""

    def layer_parts(
        self, attention: AttentionTemplate, ffn: FFNTemplate, d_model: int, widths: Sequence[float]
    ) -> list[tuple[AttentionTemplate, FFNTemplate]]:
        """Return the attention and feed-forward of each layer: the recipe's, unless the shape changes them.

        widths: of the layers, in channels; real numbers if costs are compared before rounding.
        """
        return [(attention, ffn)] * len(widths)

    def width_quantum(self, attention: AttentionTemplate) -> int:
        """Return the quantum of widths for which the heads fit."""
        return attention.quantum

    def n_uniform_layers(self, n_layers: int) -> int:
        """Return the number of layers of the uniform model that matches n_layers of this shape."""
        return n_layers


class UnsolvedShape(LayerShape):
    """A shape without a budget. By default every layer is as wide as the embedding."""

    match: ClassVar[Match] = "params"
    endpoints: Literal["slim", "full"] = "slim"

    def layer_widths(self, n_layers: int, cost: WidthCost, least_quantum: int) -> list[int]:
        return [round(cost.d_model)] * n_layers


class UniformShape(UnsolvedShape):
    """The baseline, in which every layer is as wide as the embedding."""

    kind: Literal["uniform"] = "uniform"


class ExplicitShape(UnsolvedShape):
    """Explicit widths."""

    kind: Literal["explicit"] = "explicit"
    widths: tuple[Width, ...]
    """Width of each layer, first to last."""

    def layer_widths(self, n_layers: int, cost: WidthCost, least_quantum: int) -> list[int]:
        if len(self.widths) != n_layers:
            raise UserError(f"model.shape.widths: got {len(self.widths)} widths for n_layers = {n_layers}")
        return list(self.widths)


class ProfileShape(UnsolvedShape):
    """A uniform stream with different numbers of heads or hidden units in each layer, at the cost of the uniform model.

    All layers together have as many heads and hidden units as the uniform model. Each layer has whole groups of heads
    of the uniform size, and a hidden width that is a multiple of `ffn.multiple_of`.
    """

    kind: Literal["profile"] = "profile"
    heads: Points | None = None
    """Relative numbers of heads from the first to the last layer, with linear interpolation: [0.5, 1] is OpenELM's, [1,
    0.5] the reverse, [0.5, 1, 0.5] a crown. All heads have the same size. null: equal numbers."""
    hidden: Points | None = None
    """Relative hidden widths of the feed-forward, in the same form."""
    framed: bool = False
    """Keep the sizes of the uniform model in the first and last layer, and apply the profile to the other layers."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ProfileShape":
        if self.heads is None and self.hidden is None:
            raise ValueError("heads: missing; a profile needs heads, hidden or both")
        return self

    def layer_parts(
        self, attention: AttentionTemplate, ffn: FFNTemplate, d_model: int, widths: Sequence[float]
    ) -> list[tuple[AttentionTemplate, FFNTemplate]]:
        n_layers = len(widths)
        attentions = [attention] * n_layers
        ffns = [ffn] * n_layers
        if self.heads is not None:
            uniform = attention.at_width(d_model)
            group_width = uniform.head_dim * attention.kv_group_size
            n_groups = apportioned(uniform.n_kv_heads, shares(self.heads, n_layers, self.framed), "heads")
            attentions = [_with_width(attention, uniform.head_dim, n * group_width) for n in n_groups]
        if self.hidden is not None:
            if not isinstance(ffn, HiddenWidthTemplate):
                raise ValueError(f"shape.hidden: feed-forward kind {ffn.kind!r} has no hidden width for a profile")
            step = ffn.multiple_of
            n_steps = ffn.whole_hidden(d_model) // step
            counts = apportioned(n_steps, shares(self.hidden, n_layers, self.framed), "hidden")
            rule = {"ratio": None, "multiple_of": 1}
            ffns = [ffn.model_copy(update={**rule, ffn.hidden_key: count * step}) for count in counts]
        return list(zip(attentions, ffns, strict=True))


def _with_width(attention: AttentionTemplate, head_dim: int, d_attention: float) -> AttentionTemplate:
    """Return the template with heads of one size, and one width for all widths of the layer."""
    rule = {"n_heads": None, "head_dim": head_dim, "ratio": None}
    return attention.model_copy(update={**rule, "d_attention": d_attention})


class SolvedShape(LayerShape, ABC):
    """Widths that are solved so that the model costs as much as a uniform one of width d_model."""

    quantum: Width | None = None
    """Widths are multiples of this. null: the smallest with whole heads of an even size, and whole slots of
    hyper-connections."""
    match: Match = "params"
    """The quantity that equals the uniform model's. params: matrix parameters (the paper; equivalent to layer_params,
    because embedding and head do not change). active_params: matrix parameters per token. flops: forward FLOPs at
    seq_len. flops_causal: forward FLOPs with half the context. kv_bytes: size of the KV cache."""
    rounding: Rounding = "nearest"
    """Each width to the nearest multiple (the paper), or balanced: up or down so that the total meets the budget."""
    endpoints: Literal["slim", "full", "full_matched"] = "slim"
    """Inputs of the first layer and outputs of the last have at most d_model coordinates (slim, the paper), or as many
    as the layer. `full` uses the widths solved for slim ends (the paper's release, which costs more than the uniform
    model); `full_matched` solves them for full ends."""

    @abstractmethod
    def solved_widths(self, n_layers: int, cost: WidthCost) -> np.ndarray:
        """Return real widths in channels, (n_layers,), with the cost of the uniform model. May raise UserError."""

    def layer_widths(self, n_layers: int, cost: WidthCost, least_quantum: int) -> list[int]:
        """Return the rounded widths. least_quantum: divisor of all widths with whole heads and slots."""
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
    """A curve over the depth.

    It has only proportions, so a curve from one size applies to another depth, width and budget.
    """

    widths: Points
    """Relative widths from the first to the last layer, with linear interpolation between evenly spaced points."""
    attention: Points | None = None
    """Factors of the width of attention from the recipe's rule, along the depth. Heads keep their size at d_model.
    null: the recipe's rule."""
    hidden: Points | None = None
    """Factors of the hidden width of the feed-forward, along the depth; in an hourglass, of each block. null: 1."""
    depth: pydantic.PositiveFloat = 1.0
    """n_layers over the number of layers of the uniform model with the same cost."""

    def n_uniform_layers(self, n_layers: int) -> int:
        return max(1, round(n_layers / self.depth))

    def solved_widths(self, n_layers: int, cost: WidthCost) -> np.ndarray:
        return scaled_widths(along(self.widths, n_layers), cost, cost.uniform(self.n_uniform_layers(n_layers)))

    def width_quantum(self, attention: AttentionTemplate) -> int:
        return attention.quantum if self.attention is None else 1

    def layer_parts(
        self, attention: AttentionTemplate, ffn: FFNTemplate, d_model: int, widths: Sequence[float]
    ) -> list[tuple[AttentionTemplate, FFNTemplate]]:
        n_layers = len(widths)
        attentions = [attention] * n_layers
        ffns = [ffn] * n_layers
        if self.attention is not None:
            uniform = attention.at_width(d_model)
            group_width = uniform.head_dim * attention.kv_group_size
            factors = along(self.attention, n_layers)
            wanted = [factor * attention.width(width) for factor, width in zip(factors, widths, strict=True)]
            if all(isinstance(width, int) for width in widths):  # otherwise costs are compared before rounding
                wanted = [max(1, round(width / group_width)) * group_width for width in wanted]
            attentions = [_with_width(attention, uniform.head_dim, width) for width in wanted]
        if self.hidden is not None:
            if not isinstance(ffn, HiddenWidthTemplate):
                raise ValueError(f"shape.hidden: feed-forward kind {ffn.kind!r} has no hidden width for a curve")
            key = ffn.hidden_key
            if getattr(ffn, key) is not None:
                raise ValueError(f"shape.hidden: needs ffn.ratio, not ffn.{key}, because it scales the ratio")
            ratio = ffn.ratio or ffn.usual_ratio
            ffns = [ffn.model_copy(update={"ratio": ratio * float(factor)}) for factor in along(self.hidden, n_layers)]
        return list(zip(attentions, ffns, strict=True))


class CurveShape(DrawnShape):
    """A curve given in the recipe, such as the curve of `shrunk.yaml`."""

    kind: Literal["curve"] = "curve"


class FoundShape(DrawnShape):
    """The mean of twelve searches at 0.66M parameters, on books and on Python source; see docs/findings.md.

    It is a head start in training. Most hidden units are in the first quarter of the depth, most heads in the last one,
    and the stream is narrowest after the first layer.
    """

    kind: Literal["found"] = "found"
    widths: Points = (1.1982, 0.7498, 0.8488, 0.9231, 0.9853, 1.0981, 1.0482, 1.1484)
    attention: Points | None = (0.5205, 1.1641, 1.0559, 0.8384, 0.9106, 0.9794, 1.4296, 1.3276)
    hidden: Points | None = (1.4898, 1.7779, 1.043, 0.7435, 0.6839, 0.6141, 0.846, 0.8817)
    rounding: Rounding = "balanced"


class ScheduledShape(SolvedShape):
    """A schedule whose end width is solved. Source: variable-width paper, Appendix A."""

    schedule: ClassVar[Schedule]
    progression: Progression = "geometric"
    """Widths between the turn and the ends: with a constant ratio from layer to layer (the paper), or with a constant
    difference, which is worse according to its footnote 2."""

    def solved_widths(self, n_layers: int, cost: WidthCost) -> np.ndarray:
        depth = None if self.schedule.layer_key is None else getattr(self, self.schedule.layer_key)
        turn_layer = self.schedule.turn_layer(n_layers, depth)
        # A shape's options override the fields of the schedule with the same name.
        options = type(self).model_fields.keys() & {field.name for field in fields(Schedule)}
        schedule = replace(self.schedule, **{name: getattr(self, name) for name in options})
        return solve_widths(schedule, cost, n_layers, turn_layer, getattr(self, self.schedule.ratio_key))


class TurningShape(ScheduledShape):
    """A shape with its turn between the ends."""

    last_over_first: pydantic.PositiveFloat | None = 1.0
    """Width of the last layer over the first layer's; 1 in the paper. null: use the same rate of change on both sides
    of the turn (symmetric_widths: false in its release)."""


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
    """Widths that change monotonically between a narrow and a wide end."""

    narrow_width: Fraction = 0.5
    """Width of the narrow end over d_model."""


class GrowingShape(MonotoneShape):
    """Widths that grow from a narrow first layer."""

    schedule = SCHEDULES["growing"]
    kind: Literal["growing"] = "growing"


class NarrowingShape(MonotoneShape):
    """Widths that shrink from a wide first layer."""

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
