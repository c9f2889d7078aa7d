"""The module of a dynamic-width feed-forward."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from widthwise.kernels import sliced_swiglu, swiglu
from widthwise.kernels.dispatch import compute_dtype, use_fused, without_autocast
from widthwise.kernels.sliced_swiglu import Mask, bucketed_units, fused, sliced_is_faster, units_for_all, whole_units
from widthwise.kernels.sliced_swiglu.reference import unit_centres
from widthwise.model.axes import Linear, Vector
from widthwise.model.context import PassContext
from widthwise.model.ffn.interface_module import Choices, FeedForward
from widthwise.model.ffn.unit_ranks import grown_centres
from widthwise.model.ffn.width_mask_module import HARD, Edge
from widthwise.model.ffn.width_score_module import GainedScore, wide
from widthwise.model.norm import NormSite
from widthwise.model.shards import whole

if TYPE_CHECKING:
    from widthwise.model.ffn.dynamic import DynamicConfig


MAX_MARGIN = 0.25
"""Largest margin of an edge, as a share of the full width, that `auto` slices around: with a wider one nearly all units
would be computed anyway, and their masks kept for the backward pass as well."""


class DynamicWidth(FeedForward):
    """A width depends on its own token only, so it is the same in decoding as in training (but for a random score)."""

    def __init__(self, config: "DynamicConfig", d_model: int, d_out: int, norm: NormSite):
        super().__init__()
        self.config = config
        self.norm = norm.build(d_model, d_out)
        self.w_gate = Linear({"d_model": d_model}, {"d_ff": config.d_ff})
        self.w_up = Linear({"d_model": d_model}, {"d_ff": config.d_ff})
        self.w_down = Linear({"d_ff": config.d_ff}, {"d_model": d_out})
        self.mask = config.mask.build(config.full_width)
        self.score = config.score.build(d_model) if config.mask.has_width else None
        self.bias = Vector({}, math.log(config.start / (1 - config.start))) if config.mask.has_width else None

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        """The reported width fraction is 1 in a layer without a mask, and the forced one if `context` forces one."""
        stream, x = x, self.norm.before(x)
        if context.width_fraction is not None:
            asked = used = wide(context.width_fraction).expand(x.shape[:2])
            edge = HARD
        elif self.score is None:
            asked = used = torch.ones_like(wide(x[..., 0]))
            edge = None
        else:
            level = _recomputed(self._level, self.score.source(x, stream, context))
            asked, used = self._fraction(level), self._fraction(self.mask.drawn(level))
            edge = self.mask.edge(context.progress, compute_dtype(x))
        return self.norm.after(self._update(x, self.config.full_width * used, edge)), {"width_fraction": asked}

    def _level(self, source: Tensor) -> Tensor:
        """The level (B, T), from 0 to 1, of a source as returned by the score."""
        assert self.score is not None
        assert self.bias is not None
        with without_autocast(source):
            return torch.sigmoid(self.score(source) + wide(self.bias()))

    def _fraction(self, level: Tensor) -> Tensor:
        return self.config.min_fraction + (1 - self.config.min_fraction) * level

    def _update(self, x: Tensor, width: Tensor, edge: Edge | None) -> Tensor:
        """x: (B, T, d_model), width: (B, T) in units -> (B, T, d_out)."""
        if edge is None:
            return self.w_down(swiglu(self.w_gate(x), self.w_up(x)))
        sliced = self._sliced_form(x, edge)
        if sliced is None:
            return self._masked(x, width, edge.mask)
        weights = (matrix.weight for matrix in (self.w_gate, self.w_up, self.w_down))
        width, margin = self._as_never_grown(width.flatten(), edge.margin)
        update = sliced(x.flatten(0, 1), *weights, width, edge.mask, margin, min(margin, edge.overlap))
        return update.unflatten(0, x.shape[:2])

    def _sliced_form(self, x: Tensor, edge: Edge) -> Callable[..., Tensor] | None:
        """The function that skips unused units; None if that is impossible here or not wanted."""
        if edge.margin == math.inf or self.config.execution == "masked" or torch.compiler.is_compiling():
            return None
        if self.config.execution == "auto" and edge.margin > MAX_MARGIN * self.config.full_width:
            return None
        if self.config.grown_from and edge.margin > 0:
            return None  # a ramp needs the true centres, and the sliced forms assume i + 1/2
        if self.config.execution == "sliced":
            return fused.sliced_swiglu
        return sliced_swiglu if use_fused(x) else None

    def _masked(self, x: Tensor, width: Tensor, mask: Mask) -> Tensor:
        """All units, times the mask; arguments as for `_update`."""
        centres = self._centres(width)

        def gated(gate: Tensor, up: Tensor, width: Tensor) -> Tensor:
            return swiglu(gate, up) * mask(width[..., None], centres).to(gate.dtype)

        return self.w_down(_recomputed(gated, self.w_gate(x), self.w_up(x), width))

    def _centres(self, like: Tensor) -> Tensor:
        """(d_ff,): the centres in units, with the dtype and device of `like`."""
        if self.config.grown_from:
            return grown_centres(self.config.sizes, like)
        return unit_centres(0, self.config.d_ff, like)

    def _as_never_grown(self, width: Tensor, margin: float) -> tuple[Tensor, float]:
        """The width and margin that reach as many units with centres at i + 1/2, which the kernels assume."""
        if not self.config.grown_from:
            return width, margin
        return torch.searchsorted(self._centres(width), width.detach() + margin).to(width.dtype), 0.0

    def used_units(self, width: Tensor) -> Tensor:
        """How many units have their centre below the width. width: (...), in units -> integers (...)."""
        return whole_units(*self._as_never_grown(width, 0.0), self.config.d_ff)

    def bucketed_units(self, width: Tensor, progress: Tensor) -> int:
        """Total units of tokens of these widths, each rounded up to a slice's edge. width: (n_tokens,), in units."""
        width, margin = self._as_never_grown(width, self._edge(progress).margin)
        return int(bucketed_units(width, margin, self.config.d_ff).sum())

    def computed_units(self, width: Tensor, progress: Tensor, is_compiled: bool) -> int:
        """Total units that a forward pass over tokens of these widths computes. width: (n_tokens,), in units.

        Call it in the same mode and with the same autocast as the pass. Rows that stripes add in bf16 are not counted.
        """
        edge = self._edge(progress)
        sliced = None if is_compiled else self._sliced_form(width, edge)
        if sliced is None:
            return len(width) * self.config.d_ff
        if sliced is sliced_swiglu and not sliced_is_faster(len(width), compute_dtype(self.w_gate.weight)):
            return len(width) * units_for_all(*self._as_never_grown(width, edge.margin), self.config.d_ff)
        return self.bucketed_units(width, progress)

    def _edge(self, progress: Tensor) -> Edge:
        return self.mask.edge(progress, compute_dtype(self.w_gate.weight))

    @torch.no_grad()
    def numbers(self, progress: Tensor) -> dict[str, float | None]:
        """The score's gain, the level's bias and the mask's temperature in units; None for what it does not have.

        Called by all processes that share the model.
        """
        log_gain = self.score.log_gain if isinstance(self.score, GainedScore) else None
        temperature = self.mask.temperature
        return {
            "gain": None if log_gain is None else _number(log_gain().exp()),
            "bias": None if self.bias is None else _number(self.bias()),
            "temperature": None if temperature is None else _number(temperature(progress)),
        }

    def choice_parameters(self) -> list[nn.Parameter]:
        """The parameters of the score and its bias."""
        modules = (self.score, self.bias)
        return [parameter for module in modules if module is not None for parameter in module.parameters()]


def _number(value: Tensor | float) -> float:
    """The value of a tensor with one entry; of a parameter, only one of several processes may hold it."""
    return float(whole(value)) if isinstance(value, Tensor) else value


def _recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """function(*inputs) with only the inputs kept for the backward pass. Compiled code decides itself what to keep."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
