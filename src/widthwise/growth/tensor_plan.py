"""One tensor of a grown model: entries of the old tensor in their new places, and rules that fill the new entries."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from widthwise.growth.correspondence import AxisMap

Draw = Callable[[torch.Generator], Tensor]
"""Generator -> a whole tensor, in fp32."""


def root_mean_square(old: Tensor) -> float:
    """Return the root mean square of the entries; 0 for no entries."""
    return float(old.detach().float().square().mean().sqrt()) if old.numel() else 0.0


def filled(tensor: Tensor, entries: Iterable[Tensor], value: float) -> Tensor:
    """Set entries to `value` in place. entries: bool (n,) for each dimension, True at slices to fill."""
    for dim, selected in enumerate(entries):
        tensor.index_fill_(dim, torch.nonzero(selected)[:, 0], value)
    return tensor


class FreshEntries:
    """Normal values with the root mean square of the old entries, for the free entries of a tensor.

    Any other values would preserve the function as well.
    """

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        """Fill the free entries in place and return the tensor. grown: the new shape, with the old entries."""
        if not any(axis.is_free.any() for axis in maps):
            return grown
        std = root_mean_square(old)
        for dim, axis in enumerate(maps):
            where = torch.nonzero(axis.is_free)[:, 0]
            if len(where):
                shape = list(grown.shape)
                shape[dim] = len(where)
                # Drawn on the CPU in fp32 for any dtype, so that a seed gives the same weights.
                drawn = torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
                grown.index_copy_(dim, where, drawn.to(grown.dtype))
        return grown


@dataclass(frozen=True)
class Mean(FreshEntries):
    """The mean of the old entries, for the gains of a norm, which must not be 0.

    A gain of 1 if that mean is 0, as for the norm after a newly added sublayer. gain_offset: constant added to the
    entries.
    """

    gain_offset: float = 0.0

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        gain = float((old.detach().double() + self.gain_offset).mean()) or 1.0
        return filled(grown, (axis.is_free for axis in maps), gain - self.gain_offset)


@dataclass(frozen=True)
class InitialValues(FreshEntries):
    """The values of an untrained model. draw: draws a tensor of the new shape."""

    draw: Draw

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        drawn = self.draw(generator)
        for dim, axis in enumerate(maps):
            where = torch.nonzero(axis.is_free)[:, 0]
            grown.index_copy_(dim, where, drawn.index_select(dim, where).to(grown.dtype))
        return grown


@dataclass(frozen=True)
class OrthogonalCopies:
    """Rows before a norm: each group of n_old rows gets m - 1 copies, each times a random orthogonal matrix.

    For every input the output of a copy has the norm of the original's, so the mean square over m times as many rows is
    unchanged. The matrices depend on the seed only, so that a bias gets the same ones as its weight. A group without
    old rows keeps its drawn values.
    """

    n_groups: int
    seed: int

    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        turned = []
        for group, is_new in zip(grown.unflatten(0, (self.n_groups, -1)), rows.index.view(self.n_groups, -1) < 0):
            original = group[~is_new]
            n = len(original)
            if n and is_new.any():
                n_copies, rest = divmod(int(is_new.sum()), n)
                assert rest == 0, "a norm over other than whole copies"
                generators = [torch.Generator().manual_seed(self.seed + i) for i in range(n_copies)]
                drawn = [torch.randn(n, n, dtype=torch.float64, generator=generator) for generator in generators]
                copies = [torch.linalg.qr(matrix)[0].to(group.dtype) @ original for matrix in drawn]
                group = group.index_copy(0, torch.nonzero(is_new)[:, 0], torch.cat(copies))
            turned.append(group)
        return torch.cat(turned)


@dataclass(frozen=True)
class MirroredNoise:
    """Rows of the copies of an expert: copies in pairs get the same noise with opposite signs, to break the symmetry.

    An expert is linear in these rows and its copies have equal routing weights, so the noise cancels in their sum. Its
    standard deviation is a tenth of the root mean square of the tensor.
    """

    n_copies: int
    n_rows: int
    """Rows of one expert."""

    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        copies = grown.unflatten(0, (-1, self.n_copies, self.n_rows))
        drawn = torch.empty(copies.shape[0], self.n_copies // 2, *copies.shape[2:], dtype=torch.float32)
        drawn.normal_(0.0, 0.1 * std, generator=generator)
        signed = torch.stack((drawn, -drawn), dim=2).flatten(1, 2).to(grown.dtype)
        if self.n_copies % 2:
            signed = torch.cat((signed, torch.zeros_like(copies[:, :1])), dim=1)
        return (copies + signed).flatten(0, 2)


DerivedRows = OrthogonalCopies | MirroredNoise
"""Rules for new rows that are computed from other rows, after the free entries are filled. `apply` takes the grown
tensor, the map of dimension 0, and the RMS of the old entries."""


@dataclass(frozen=True)
class TensorPlan:
    """A tensor of the grown model, made from a tensor of the old one."""

    source: str
    """Name of the old tensor; empty if the whole tensor is new."""
    maps: tuple[AxisMap, ...]
    """For each dimension of the grown tensor, the map from its old entries."""
    fresh: FreshEntries = field(default_factory=FreshEntries)
    derived: DerivedRows | None = None
    """Rule for new rows that are not free, applied after the others are filled."""
    scale: float = 1.0
    """Factor of the old entries."""
    shift: float = 0.0
    """Constant added to the old entries after the factor, if that is not 1."""
    zero_entries: Tensor | None = None
    """bool, viewed as the new shape: new entries that must be 0 although `maps` lets them be free."""
    n_copies: int = 1
    """Number of copies of each old entry, which share its former gradient."""
    copies_differ: bool = False
    """True if the copies compute different things, so that their shares of the gradient differ."""
    cut: tuple[int, int] | None = None
    """(n_experts, n_parts): cut the experts of a down-projection (n_experts * d_out, d_expert) into narrower ones,
    after `maps`. The router gives each part 1 / n_parts of the weight of its expert, so the scale is n_parts."""

    @classmethod
    def same(cls, source: str, shape: tuple[int, ...], **options: Any) -> "TensorPlan":
        """Keep every entry in its place. options: further fields."""
        return cls(source, tuple(AxisMap.same(n) for n in shape), **options)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the grown tensor, before experts are cut."""
        return tuple(len(axis.index) for axis in self.maps)

    def grow(self, old: Tensor, generator: torch.Generator) -> Tensor:
        """Return the grown tensor in the dtype of the old one. Differentiable; sums and products are in float64.

        old: the source, or any tensor of the model if there is none.
        """
        grown = self.fresh.fill(self._gathered(old, self.scale, self.shift), old, self.maps, generator)
        if self.derived is not None:
            grown = self.derived.apply(grown, self.maps[0], root_mean_square(old), generator)
        grown = filled(grown, (axis.is_zero for axis in self.maps), 0.0)
        if self.zero_entries is not None:
            grown.masked_fill_(self.zero_entries.view(grown.shape), 0.0)
        for dim, axis in enumerate(self.maps):
            if axis.average_over is not None:  # new entries become the mean of the old ones in their group
                groups = grown.movedim(dim, 0).unflatten(0, (-1, axis.average_over))
                is_old = (axis.index >= 0).view(groups.shape[:2])
                weights = is_old.double() / is_old.sum(dim=1, keepdim=True)
                means = torch.einsum("gn,gn...->g...", weights, groups.double()).to(grown.dtype)
                is_old = is_old.view(*is_old.shape, *[1] * (groups.dim() - 2))  # to broadcast over other dimensions
                grown = torch.where(is_old, groups, means[:, None]).flatten(0, 1).movedim(0, dim)
        return self._cut(grown)

    def _gathered(self, old: Tensor, factor: float = 1.0, shift: float = 0.0) -> Tensor:
        """Move old entries, times a factor and shifted, to their new positions; new entries hold arbitrary values.

        Always return a new tensor: it is filled in place, and models or layers must not share memory.
        """
        if not self.source:
            return old.new_zeros(self.shape)
        if all(axis.is_appended for axis in self.maps):  # one copy instead of one for each dimension
            padding = [(0, n_new - n_old) for n_new, n_old in zip(self.shape, old.shape)]
            grown = pad(old, [n for ends in reversed(padding) for n in ends])
        else:
            grown = old
            for dim, axis in enumerate(self.maps):
                if not axis.is_appended or len(axis.index) > axis.n_old:
                    grown = grown.index_select(dim, axis.index.clamp(min=0).to(old.device))
        return grown if factor == 1.0 else (grown.double() * factor + shift).to(old.dtype)

    def carry(self, old: Tensor, factor: float, new_value: float) -> Tensor:
        """Grow a tensor of the weight's shape, such as an optimizer moment.

        factor: of old entries; includes the scale of the plan. new_value: of new entries.
        """
        grown = self._gathered(old, factor)
        return self._cut(filled(grown, (axis.index < 0 for axis in self.maps), new_value))

    def _cut(self, whole: Tensor) -> Tensor:
        """Cut the experts of a down-projection, if there is a `cut`."""
        if self.cut is None:
            return whole
        parts = whole.unflatten(0, (self.cut[0], -1)).unflatten(-1, (self.cut[1], -1))
        return parts.movedim(2, 1).flatten(0, 2)

    def is_new(self) -> Tensor:
        """Return bool of the new shape: True at entries that growth added."""
        old = torch.zeros(self.shape, dtype=torch.bool)
        return self._cut(filled(old, (axis.is_new for axis in self.maps), True))
