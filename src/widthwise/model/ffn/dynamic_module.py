"""The module of a dynamic-width feed-forward, and the ranks of its units.

A token of width fraction f uses the units whose rank, between 0 and 1, is below f. Units are sorted by rank. In a layer
that never grew, unit i has rank (i + 1/2) / d_ff. Units added by a growth, n in number, have ranks (j + 1/2) / n and
are merged into that order, after old units of equal rank. Ranks never change, so every token keeps using the same old
units. `sizes`: all numbers of units that the layer has had, oldest first, including the current one.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from widthwise.kernels.dispatch import compute_dtype, use_fused, widened, without_autocast
from widthwise.kernels.sliced_swiglu import (
    Edge,
    bucketed_units,
    fused_sliced_swiglu,
    sliced_is_faster,
    sliced_swiglu,
    unit_centres,
    units_for_all,
    whole_units,
)
from widthwise.kernels.swiglu import swiglu
from widthwise.model.axes import Vector
from widthwise.model.context import Choices, PassContext
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.ffn.swiglu_module import SwiGLU
from widthwise.model.ffn.width_choice_module import EDGES, HARD, SCORES
from widthwise.model.norm import NormSite
from widthwise.model.shards import whole


def old_index(sizes: tuple[int, ...]) -> list[int]:
    """Return the position of each unit before the last growth, -1 for an added unit. sizes: at least two."""
    order = _ranks_as_added(sizes, 1, torch.device("cpu")).argsort(stable=True)
    is_old = order < sizes[-2]
    return torch.where(is_old, is_old.cumsum(dim=0) - 1, -1).tolist()


def _ranks_as_added(sizes: tuple[int, ...], scale: int, device: torch.device) -> Tensor:
    """Return rank * scale of every unit in the order in which they were added, in fp64.

    Each number is one division of exact integers, so that rounding keeps equal ranks equal and the others in order.
    """
    n_added = (sizes[0], *(after - before for before, after in pairwise(sizes)))
    odd_numbers = [torch.arange(1, 2 * n, 2, dtype=torch.float64, device=device) for n in n_added]
    return torch.cat([odd * scale / (2 * n) for odd, n in zip(odd_numbers, n_added)])


MAX_MARGIN = 0.25
"""Largest margin of an edge, as a share of the full width, at which `execution: auto` slices. With a larger margin,
slicing would compute nearly all units and also keep their masks for the backward pass."""


def recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return function(*inputs). Keep only the inputs for the backward pass, except in compiled code."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


class DynamicWidth(SwiGLU):
    """A SwiGLU in which each token uses only its first hidden units.

    The width of a token depends on no other token, so it is the same in decoding as in training, except with a random
    score.
    """

    def __init__(self, config: DynamicConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__(SwiGLUConfig(d_ff=config.d_ff), d_model, d_out, norm)
        self.config = config
        self.execution: str = config.execution
        self.score = SCORES[config.score.kind](config.score, d_model) if config.mask.has_width else None
        self.bias = Vector({}, math.log(config.start / (1 - config.start))) if config.mask.has_width else None

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        read = self.norm.before(x)
        fraction, edge = self._choose(read, x, context)
        update = self._update(read, self.config.full_width * fraction, edge)
        return self.norm.after(update), {"width_fraction": fraction}

    @contextmanager
    def masked_execution(self) -> Iterator[None]:
        """Compute all units within the block and mask the unused ones, for any `execution` of the config."""
        before = self.execution
        self.execution = "masked"
        try:
            yield
        finally:
            self.execution = before

    def _choose(self, x: Tensor, stream: Tensor, context: PassContext) -> tuple[Tensor, Edge | None]:
        """Return the width fractions of the tokens, (B, T), and the edge of the mask.

        x: (B, T, d_model), the input of the feed-forward; stream: the same before the norm. If `context` has a forced
        fraction, all tokens have it. In a layer without a mask they have 1, and the edge is None.
        """
        if context.width_fraction is not None:
            return widened(context.width_fraction).expand(x.shape[:2]), HARD
        score = self.score
        bias = self.bias
        if score is None or bias is None:
            return torch.ones_like(widened(x[..., 0])), None

        def sigmoid(source: Tensor) -> Tensor:
            with without_autocast(source):
                return torch.sigmoid(score(source) + widened(bias()))

        level = recomputed(sigmoid, score.source(x, stream))
        min_fraction = self.config.min_fraction
        return min_fraction + (1 - min_fraction) * level, self._edge()

    def _edge(self) -> Edge:
        """Return the edge of the mask in the current mode, training or evaluation."""
        return EDGES[self.config.mask.kind](self.config.mask, compute_dtype(self.w_gate.weight), self.training)

    def _update(self, x: Tensor, width: Tensor, edge: Edge | None) -> Tensor:
        """x: (B, T, d_model); width: (B, T), in units -> (B, T, d_out)."""
        if edge is None:
            return self.w_down(swiglu(self.w_gate(x), self.w_up(x)))
        sliced = self._sliced_form(x, edge)
        if sliced is None:
            centres = self._centres(width)

            def gated(gate: Tensor, up: Tensor, width: Tensor) -> Tensor:
                return swiglu(gate, up) * edge.mask(width[..., None], centres).to(gate.dtype)

            return self.w_down(recomputed(gated, self.w_gate(x), self.w_up(x), width))
        weights = (matrix.weight for matrix in (self.w_gate, self.w_up, self.w_down))
        width, margin = self._as_never_grown(width.flatten(), edge.margin)
        update = sliced(x.flatten(0, 1), *weights, width, edge._replace(margin=margin))
        return update.unflatten(0, x.shape[:2])

    def _sliced_form(self, x: Tensor, edge: Edge) -> Callable[..., Tensor] | None:
        """Return the function that skips unused units; None if that is impossible or disabled."""
        if edge.margin == math.inf or self.execution == "masked" or torch.compiler.is_compiling():
            return None
        if self.execution == "auto" and edge.margin > MAX_MARGIN * self.config.full_width:
            return None
        if self.config.grown_from and edge.margin > 0:
            return None  # the derivative of a mask needs the real centres, but the sliced forms assume i + 1/2
        if self.execution == "sliced":
            return fused_sliced_swiglu
        return sliced_swiglu if use_fused(x) else None

    def _centres(self, like: Tensor) -> Tensor:
        """Return the centre, rank * full_width, of every unit, (d_ff,), ascending, with the dtype and device of `like`.

        In a layer that never grew, unit i has i + 1/2. Not cached, because compiled code cannot contain tensors that
        depend on the device.
        """
        if self.config.grown_from:
            return _ranks_as_added(self.config.sizes, self.config.full_width, like.device).sort().values.to(like.dtype)
        return unit_centres(0, self.config.d_ff, like)

    def _as_never_grown(self, width: Tensor, margin: float) -> tuple[Tensor, float]:
        """Return the width and margin at which kernels, whose centres are i + 1/2, compute the same number of units."""
        if not self.config.grown_from:
            return width, margin
        return torch.searchsorted(self._centres(width), width.detach() + margin).to(width.dtype), 0.0

    def used_units(self, width: Tensor) -> Tensor:
        """Return the number of hidden units that tokens use. width: (...), in units -> integers (...)."""
        return whole_units(*self._as_never_grown(width, 0.0), self.config.d_ff)

    def bucketed_units(self, width: Tensor) -> int:
        """Return the total hidden units of tokens with these widths, each rounded up to the end of a slice.

        width: (n_tokens,), in units.
        """
        width, margin = self._as_never_grown(width, self._edge().margin)
        return int(bucketed_units(width, margin, self.config.d_ff).sum())

    def computed_units(self, width: Tensor, is_compiled: bool) -> int:
        """Return the total hidden units that a forward pass computes for tokens with these widths.

        width: (n_tokens,), in units. Rows that a stripe adds in bf16 to fill a tile are not counted. Call this in the
        mode and with the autocast of the pass.
        """
        edge = self._edge()
        sliced = None if is_compiled else self._sliced_form(width, edge)
        if sliced is None:
            return len(width) * self.config.d_ff
        if sliced is sliced_swiglu and not sliced_is_faster(len(width), compute_dtype(self.w_gate.weight)):
            return len(width) * units_for_all(*self._as_never_grown(width, edge.margin), self.config.d_ff)
        return self.bucketed_units(width)

    @torch.no_grad()
    def choice_scalars(self) -> dict[str, float | None]:
        """Return the gain of the score, the bias of the level and the temperature of the mask in units, None if absent.

        All processes that share the model must call this.
        """
        log_gain = None if self.score is None else self.score.log_gain
        values = {
            "gain": None if log_gain is None else log_gain().exp(),
            "bias": None if self.bias is None else self.bias(),
            "temperature": getattr(self.config.mask, "temperature", None),
        }
        # A parameter of one entry may be on another process.
        return {name: float(whole(x)) if isinstance(x, Tensor) else x for name, x in values.items()}

    def choice_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the score and its bias."""
        modules = (self.score, self.bias)
        return [parameter for module in modules if module is not None for parameter in module.parameters()]
