"""The module of a dynamic-width feed-forward, and the ranks of its units, between which growth inserts new ones.

A token of width fraction f uses the units whose rank, between 0 and 1, is below f. Units are stored sorted by rank. In
a layer that never grew, unit i has rank (i + 1/2) / d_ff. If a growth adds n units, they have ranks (j + 1/2) / n and
are merged into that order, after old units of equal rank. Ranks never change, so every token keeps exactly the old
units that it used. `sizes`: the numbers of units the layer has had, oldest first, the current one last.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from widthwise.kernels.dispatch import compute_dtype, use_fused
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
from widthwise.model.context import Choices, PassContext
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.ffn.swiglu_module import SwiGLU
from widthwise.model.ffn.width_choice_module import WidthChoosing, recomputed
from widthwise.model.norm import NormSite


def old_index(sizes: tuple[int, ...]) -> list[int]:
    """For every unit its position before the last growth, -1 if that growth added it. Needs at least two sizes."""
    order = _unsorted(sizes, 1, torch.device("cpu")).argsort(stable=True)
    is_old = order < sizes[-2]
    return torch.where(is_old, is_old.cumsum(dim=0) - 1, -1).tolist()


def grown_centres(sizes: tuple[int, ...], like: Tensor) -> Tensor:
    """rank * sizes[0] of every unit, ascending, with the dtype and device of `like`; i + 1/2 for the original units.

    Not cached, because compiled code cannot hold tensors that depend on the device.
    """
    return _unsorted(sizes, sizes[0], like.device).sort().values.to(like.dtype)


def _unsorted(sizes: tuple[int, ...], scale: int, device: torch.device) -> Tensor:
    """rank * scale in the order in which units were added, in fp64.

    Each is a single rounded division of exact integers, so that equal ranks are equal numbers and others keep their
    order.
    """
    n_added = (sizes[0], *(after - before for before, after in pairwise(sizes)))
    odd = (torch.arange(1, 2 * n, 2, dtype=torch.float64, device=device) for n in n_added)
    return torch.cat([numerators * scale / (2 * n) for numerators, n in zip(odd, n_added)])


MAX_MARGIN = 0.25
"""Largest margin of an edge, as a share of the full width, that `auto` slices around: with a wider one nearly all units
would be computed anyway, and their masks kept for the backward pass as well."""


class DynamicWidth(SwiGLU, WidthChoosing):
    """A SwiGLU of which each token uses the first few hidden units."""

    def __init__(self, config: DynamicConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__(SwiGLUConfig(d_ff=config.d_ff), d_model, d_out, norm)
        self.config = config
        self.add_choice(config, d_model)

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        stream, x = x, self.read_by_score(x)
        asked, used, edge = self.choose(x, stream, context)
        return self.norm.after(self._update(x, self.config.full_width * used, edge)), {"width_fraction": asked}

    def read_by_score(self, x: Tensor) -> Tensor:
        return self.norm.before(x)

    def _update(self, x: Tensor, width: Tensor, edge: Edge | None) -> Tensor:
        """x: (B, T, d_model), width: (B, T) in units -> (B, T, d_out)."""
        if edge is None:
            return self.w_down(swiglu(self.w_gate(x), self.w_up(x)))
        sliced = self._sliced_form(x, edge)
        if sliced is None:
            return self._masked(x, width, edge)
        weights = (matrix.weight for matrix in (self.w_gate, self.w_up, self.w_down))
        width, margin = self._as_never_grown(width.flatten(), edge.margin)
        edge = Edge(edge.mask, margin, min(margin, edge.overlap))
        update = sliced(x.flatten(0, 1), *weights, width, edge)
        return update.unflatten(0, x.shape[:2])

    def _sliced_form(self, x: Tensor, edge: Edge) -> Callable[..., Tensor] | None:
        """The function that skips unused units; None if that is impossible here or not wanted."""
        if edge.margin == math.inf or self.execution == "masked" or torch.compiler.is_compiling():
            return None
        if self.execution == "auto" and edge.margin > MAX_MARGIN * self.config.full_width:
            return None
        if self.config.grown_from and edge.margin > 0:
            return None  # a ramp needs the true centres, and the sliced forms assume i + 1/2
        if self.execution == "sliced":
            return fused_sliced_swiglu
        return sliced_swiglu if use_fused(x) else None

    def _masked(self, x: Tensor, width: Tensor, edge: Edge) -> Tensor:
        """All units, times the mask; arguments as for `_update`."""
        centres = self._centres(width)

        def gated(gate: Tensor, up: Tensor, width: Tensor) -> Tensor:
            return swiglu(gate, up) * edge.mask(width[..., None], centres).to(gate.dtype)

        return self.w_down(recomputed(gated, self.w_gate(x), self.w_up(x), width))

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
        return whole_units(*self._as_never_grown(width, 0.0), self.config.d_ff)

    def bucketed_units(self, width: Tensor, progress: Tensor) -> int:
        """Each rounded up to a slice's edge."""
        width, margin = self._as_never_grown(width, self._edge(progress).margin)
        return int(bucketed_units(width, margin, self.config.d_ff).sum())

    def computed_units(self, width: Tensor, progress: Tensor, is_compiled: bool) -> int:
        """Rows that stripes add in bf16 are not counted."""
        edge = self._edge(progress)
        sliced = None if is_compiled else self._sliced_form(width, edge)
        if sliced is None:
            return len(width) * self.config.d_ff
        if sliced is sliced_swiglu and not sliced_is_faster(len(width), compute_dtype(self.w_gate.weight)):
            return len(width) * units_for_all(*self._as_never_grown(width, edge.margin), self.config.d_ff)
        return self.bucketed_units(width, progress)
