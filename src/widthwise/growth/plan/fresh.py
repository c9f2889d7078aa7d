"""How the entries that growth adds to a tensor are filled."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.growth.maps.axis_map import AxisMap

Draw = Callable[[Tensor, torch.Generator], None]
"""Fills a tensor in place."""


def root_mean_square(old: Tensor) -> float:
    """The root mean square of the entries, which is their standard deviation about 0."""
    return float(old.detach().float().square().mean().sqrt()) if old.numel() else 0.0


class Fresh:
    """Fills the free entries of a tensor: normal, with the root mean square of the old entries."""

    is_free = True
    """Whether any other values would preserve the function as well."""

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        """Fills the free entries in place and returns the tensor. grown: the new shape, with old entries in place."""
        if not any(axis.is_free.any() for axis in maps):
            return grown
        std = root_mean_square(old)
        for dim, axis in enumerate(maps):
            where = torch.nonzero(axis.is_free)[:, 0]
            if len(where):
                shape = list(grown.shape)
                shape[dim] = len(where)
                # Drawn on the CPU in fp32 whatever the type, so that a seed names one set of weights.
                drawn = torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
                grown.index_copy_(dim, where, drawn.to(grown.dtype))
        return grown


class Mean(Fresh):
    """Fills with the mean of the old entries: for the gains of a norm, which must not be 0.

    1 where that mean is 0, as it is for the norm after a sublayer that was only just added.
    """

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        return _filled(grown, maps, float(old.detach().double().mean()) or 1.0)


@dataclass(frozen=True)
class Constant(Fresh):
    """Fills with one number."""

    value: float

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        return _filled(grown, maps, self.value)


def _filled(grown: Tensor, maps: tuple[AxisMap, ...], value: float) -> Tensor:
    for dim, axis in enumerate(maps):
        grown.index_fill_(dim, torch.nonzero(axis.is_free)[:, 0], value)
    return grown


@dataclass(frozen=True)
class AsStarted(Fresh):
    """Fills with what an untrained model has in these entries. start: initialises a whole tensor of the new shape."""

    start: Draw
    is_free: bool = True

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        started = torch.empty(grown.shape, dtype=torch.float32)
        self.start(started, generator)
        for dim, axis in enumerate(maps):
            where = torch.nonzero(axis.is_free)[:, 0]
            grown.index_copy_(dim, where, started.index_select(dim, where).to(grown.dtype))
        return grown


class Derived(ABC):
    """New rows that are computed from the other rows, once the free entries are filled."""

    @abstractmethod
    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        """grown: with free entries filled; rows: map of its first dimension; std: root mean square of old entries."""


@dataclass(frozen=True)
class OrthogonalCopies(Derived):
    """Rows before a norm: each group of n_old rows gets m - 1 copies of itself, each times a random orthogonal matrix.

    For every input a copy's output has the norm of its original's, so the mean square over m times as many rows is
    unchanged. The matrices depend on the seed only, so that a bias gets those of its weight matrix. A group without old
    rows stays as drawn.
    """

    n_groups: int
    seed: int

    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        groups, is_new = grown.unflatten(0, (self.n_groups, -1)), rows.index.view(self.n_groups, -1) < 0
        return torch.stack([self._with_copies(group, new) for group, new in zip(groups, is_new)]).flatten(0, 1)

    def _with_copies(self, group: Tensor, is_new: Tensor) -> Tensor:
        original = group[~is_new]
        if is_new.all() or not is_new.any():
            return group
        n_copies, rest = divmod(int(is_new.sum()), len(original))
        assert rest == 0, "a norm over other than whole copies"
        copies = [_orthogonal(len(original), self.seed + i).to(group.dtype) @ original for i in range(n_copies)]
        return group.index_copy(0, torch.nonzero(is_new)[:, 0], torch.cat(copies))


def _orthogonal(n: int, seed: int) -> Tensor:
    drawn = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(drawn)[0]


@dataclass(frozen=True)
class Mirrored(Derived):
    """Rows of the copies of an expert: copies in pairs get the same noise with opposite signs, to break the symmetry.

    An expert is linear in these rows and its copies have equal routing weights, so the noise cancels in their sum.
    noise: its standard deviation over that of the tensor.
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


class Revived(Derived):
    """Redraws rows that are all 0, for a copied matrix whose following norm starts with zero gains.

    With zero gains and zero rows neither would ever get a gradient.
    """

    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        is_dead = (grown == 0).flatten(1).all(dim=1)
        drawn = torch.empty(grown.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
        return torch.where(is_dead[:, None], drawn.to(grown.dtype), grown)
