"""The making of one tensor of a grown model: what comes from the old one, and what fills the entries that are new."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from widthwise.growth.correspondence import AxisMap

Draw = Callable[[torch.Generator], Tensor]
"""Draws a whole tensor, in fp32."""


def root_mean_square(old: Tensor) -> float:
    """Return the root mean square of the entries, their standard deviation about 0."""
    return float(old.detach().float().square().mean().sqrt()) if old.numel() else 0.0


def filled(tensor: Tensor, entries: Iterable[Tensor], value: float) -> Tensor:
    """Set to `value`, in place, what each dimension names. entries: bool (n,) for each of them."""
    for dim, named in enumerate(entries):
        tensor.index_fill_(dim, torch.nonzero(named)[:, 0], value)
    return tensor


class FreshEntries:
    """Normal values with the root mean square of the old entries, for the free entries of a tensor."""

    is_free = True
    """Any other values would preserve the function as well."""

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        """Fill the free entries in place and return the tensor. grown: the new shape, with old entries in place."""
        if not any(axis.is_free.any() for axis in maps):
            return grown
        std = root_mean_square(old)
        for dim, axis in enumerate(maps):
            where = torch.nonzero(axis.is_free)[:, 0]
            if len(where):
                shape = list(grown.shape)
                shape[dim] = len(where)
                # Drawn on the CPU in fp32 for any dtype, so that a seed names one set of weights.
                drawn = torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
                grown.index_copy_(dim, where, drawn.to(grown.dtype))
        return grown


class Mean(FreshEntries):
    """The mean of the old entries, for the gains of a norm, which must not be 0.

    1 where that mean is 0, as it is for the norm after a sublayer that was only just added.
    """

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        return Constant(float(old.detach().double().mean()) or 1.0).fill(grown, old, maps, generator)


@dataclass(frozen=True)
class Constant(FreshEntries):
    """One number."""

    value: float

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        return filled(grown, (axis.is_free for axis in maps), self.value)


@dataclass(frozen=True)
class InitialValues(FreshEntries):
    """The values of an untrained model. draw: all of them, in the new shape."""

    draw: Draw
    is_free: bool = True

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        drawn = self.draw(generator)
        for dim, axis in enumerate(maps):
            where = torch.nonzero(axis.is_free)[:, 0]
            grown.index_copy_(dim, where, drawn.index_select(dim, where).to(grown.dtype))
        return grown


@dataclass(frozen=True)
class OrthogonalCopies:
    """Rows before a norm: each group of n_old rows gets m - 1 copies of itself, each times a random orthogonal matrix.

    For every input a copy's output has the norm of its original's, so the mean square over m times as many rows is
    unchanged. The matrices depend on the seed only, so that a bias gets the same ones as its weight. A group without
    old rows stays as drawn.
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
                drawn = [torch.randn(n, n, dtype=torch.float64, generator=each) for each in generators]
                copies = [torch.linalg.qr(matrix)[0].to(group.dtype) @ original for matrix in drawn]
                group = group.index_copy(0, torch.nonzero(is_new)[:, 0], torch.cat(copies))
            turned.append(group)
        return torch.cat(turned)


@dataclass(frozen=True)
class MirroredNoise:
    """Rows of the copies of an expert: copies in pairs get the same noise with opposite signs, to break the symmetry.

    An expert is linear in these rows and its copies have equal routing weights, so the noise cancels in their sum.
    noise: its standard deviation over the tensor's.
    """

    n_copies: int
    n_rows: int
    """Rows of one expert."""
    noise: float = 0.1

    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        copies = grown.unflatten(0, (-1, self.n_copies, self.n_rows))
        drawn = torch.empty(copies.shape[0], self.n_copies // 2, *copies.shape[2:], dtype=torch.float32)
        drawn.normal_(0.0, self.noise * std, generator=generator)
        signed = torch.stack((drawn, -drawn), dim=2).flatten(1, 2).to(grown.dtype)
        if self.n_copies % 2:
            signed = torch.cat((signed, torch.zeros_like(copies[:, :1])), dim=1)
        return (copies + signed).flatten(0, 2)


DerivedRows = OrthogonalCopies | MirroredNoise
"""New rows that are computed from the other rows, once the free entries are filled. `apply` takes the grown tensor, the
map of dimension 0, and the RMS of the old entries."""


@dataclass(frozen=True)
class TensorPlan:
    """A tensor of the grown model, made from a tensor of the old one."""

    source: str
    """Name of the old tensor; empty if the whole tensor is new."""
    maps: tuple[AxisMap, ...]
    """For each dimension of the grown tensor, which entries of the old one it takes."""
    fresh: FreshEntries = field(default_factory=FreshEntries)
    derived: DerivedRows | None = None
    """Computes new rows that are not free, after the others are filled."""
    scale: float = 1.0
    """Factor of the old entries."""
    zero_entries: Tensor | None = None
    """bool, of the new shape when viewed so: further new entries that must be 0, besides those that `maps` name."""
    n_copies: int = 1
    """Number of copies of each old entry, which share its former gradient."""
    copies_differ: bool = False
    """The copies compute different things, so that their parts of it differ."""
    cut: tuple[int, int] | None = None
    """(n_experts, n_parts): the down-projections (n_experts * d_out, d_expert) are of experts that are each cut into
    narrower ones; `maps` are those before the cut. The router gives each part 1 / n_parts of the weight its expert had,
    so that the scale is n_parts."""

    @classmethod
    def same(cls, source: str, shape: tuple[int, ...], **options: Any) -> "TensorPlan":
        """Take every entry from its old place. options: further fields."""
        return cls(source, tuple(AxisMap.same(n) for n in shape), **options)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the grown tensor, before experts are cut."""
        return tuple(len(axis.index) for axis in self.maps)

    def grow(self, old: Tensor, generator: torch.Generator, fresh: FreshEntries | None = None) -> Tensor:
        """Return the grown tensor in the dtype of the old one. Differentiable; sums and products are in float64.

        old: the source, or any tensor of the model if there is none.
        fresh: replaces the plan's own filling where any value would preserve the function.
        """
        grown = self._gathered(old, self.scale)
        filling = fresh if fresh is not None and self.fresh.is_free else self.fresh
        grown = filling.fill(grown, old, self.maps, generator)
        if self.derived is not None:
            grown = self.derived.apply(grown, self.maps[0], root_mean_square(old), generator)
        grown = self._zero(grown)
        for dim, axis in enumerate(self.maps):
            if axis.average_over is not None:  # new entries become the mean of the old ones in their group
                groups = grown.movedim(dim, 0).unflatten(0, (-1, axis.average_over))
                is_old = (axis.index >= 0).view(groups.shape[:2])
                weights = is_old.double() / is_old.sum(dim=1, keepdim=True)
                means = torch.einsum("gn,gn...->g...", weights, groups.double()).to(grown.dtype)
                is_kept = is_old.view(*is_old.shape, *[1] * (groups.dim() - 2))
                grown = torch.where(is_kept, groups, means[:, None]).flatten(0, 1).movedim(0, dim)
        return self._cut(grown)

    def _gathered(self, old: Tensor, factor: float = 1.0) -> Tensor:
        """Move old entries, times a factor, to their new positions; new entries hold arbitrary values.

        Always a new tensor: it is filled in place, and models or layers must not share memory.
        """
        if not self.source:
            return old.new_zeros(self.shape)
        if all(axis.is_appended for axis in self.maps):  # one copy instead of one for each dimension
            behind = [(0, n_new - n_old) for n_new, n_old in zip(self.shape, old.shape)]
            grown = pad(old, [n for ends in reversed(behind) for n in ends])
        else:
            grown = old
            for dim, axis in enumerate(self.maps):
                if not axis.is_identity:
                    grown = grown.index_select(dim, axis.index.clamp(min=0).to(old.device))
        return grown if factor == 1.0 else (grown.double() * factor).to(old.dtype)

    def _zero(self, grown: Tensor) -> Tensor:
        """Set entries that must be 0, in place."""
        grown = filled(grown, (axis.is_zero for axis in self.maps), 0.0)
        return grown if self.zero_entries is None else grown.masked_fill_(self.zero_entries.view(grown.shape), 0.0)

    def carry(self, old: Tensor, factor: float, new: float) -> Tensor:
        """Grow a companion, such as an optimizer moment: old entries times `factor`, new entries `new`."""
        grown = self._gathered(old, factor)  # without the scale, which is part of the factor
        return self._cut(filled(grown, (axis.index < 0 for axis in self.maps), new))

    def _cut(self, whole: Tensor) -> Tensor:
        if self.cut is None:
            return whole
        parts = whole.unflatten(0, (self.cut[0], -1)).unflatten(-1, (self.cut[1], -1))
        return parts.movedim(2, 1).flatten(0, 2)

    def is_new(self, was_new: Tensor | None = None) -> Tensor:
        """Return bool, of the new shape: the entries that growth added. was_new: the same of an earlier growth."""
        is_added = torch.zeros(self.shape, dtype=torch.bool) if was_new is None else self._gathered(was_new)
        return self._cut(filled(is_added, (axis.is_new for axis in self.maps), True))

    def must_be_zero(self) -> Tensor:
        """Return bool, of the new shape: the new entries that must be 0."""
        return self._cut(self._zero(torch.ones(self.shape)) == 0)

    def shrink(self, grown: Tensor) -> Tensor:
        """Recover the old tensor from the grown one, bitwise if nothing was scaled."""
        old = grown
        if self.cut is not None:
            old = old.unflatten(0, (*self.cut, -1)).movedim(1, 2).flatten(2).flatten(0, 1)
        for dim, axis in enumerate(self.maps):
            if not axis.is_identity:
                old = old.index_select(dim, axis.first_positions())
        return old if self.scale == 1.0 else (old.double() / self.scale).to(grown.dtype)
