"""What the entries become that growth adds to a tensor."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.growth.maps.axis_map import AxisMap

Draw = Callable[[Tensor, torch.Generator], None]
"""Fills a tensor."""


def root_mean_square(old: Tensor) -> float:
    """Of the entries: their standard deviation, as if their mean were 0."""
    return float(old.detach().float().square().mean().sqrt()) if old.numel() else 0.0


class Fresh:
    """What the free entries of a tensor become: drawn like the old ones."""

    is_free = True
    """Whether any other values would preserve the function too."""

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        """grown: the new shape, with old entries in place; its new entries are filled in place, and it is returned."""
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
    """All the mean of the old entries: what gains of a norm take, which must not be 0; 1 where they are all 0, as those
    behind a sublayer just added.
    """

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        return _filled(grown, maps, float(old.detach().double().mean()) or 1.0)


@dataclass(frozen=True)
class Constant(Fresh):
    """All one number."""

    value: float

    def fill(self, grown: Tensor, old: Tensor, maps: tuple[AxisMap, ...], generator: torch.Generator) -> Tensor:
        return _filled(grown, maps, self.value)


def _filled(grown: Tensor, maps: tuple[AxisMap, ...], value: float) -> Tensor:
    for dim, axis in enumerate(maps):
        grown.index_fill_(dim, torch.nonzero(axis.is_free)[:, 0], value)
    return grown


@dataclass(frozen=True)
class AsStarted(Fresh):
    """What the same entries of an untrained model are. start: fills such a tensor whole."""

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
    """New rows that follow from the other rows, whatever the free entries have become."""

    @abstractmethod
    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        """grown: with free entries filled; rows: of its first dimension; std: of the old entries."""


@dataclass(frozen=True)
class Turned(Derived):
    """Rows behind a norm: each group of n_old rows gets m - 1 copies of itself, each turned by an orthogonal matrix.

    A copy is as long as its original for every input, so that the mean square over m times as many rows is what it was.
    The matrices follow from the seed alone: a bias is turned like its matrix. A group without old rows stays as drawn.
    """

    n_groups: int
    seed: int

    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        groups, is_new = grown.unflatten(0, (self.n_groups, -1)), rows.index.view(self.n_groups, -1) < 0
        return torch.stack([self._turned(group, new) for group, new in zip(groups, is_new)]).flatten(0, 1)

    def _turned(self, group: Tensor, is_new: Tensor) -> Tensor:
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
    """Rows of several copies of an expert: copies in pairs get the same noise with opposite signs.

    An expert is linear in these rows and all copies have one weight, so that the sum stays what it was, and copies that
    differ are pulled apart. noise: standard deviation over that of the tensor.
    """

    n_copies: int
    n_rows: int
    """Of one expert."""
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
    """Rows that are all 0 are drawn like the others: of a copied matrix with a norm behind it whose gains start at 0.
    Both together would stay 0 for ever.
    """

    def apply(self, grown: Tensor, rows: AxisMap, std: float, generator: torch.Generator) -> Tensor:
        is_dead = (grown == 0).flatten(1).all(dim=1)
        drawn = torch.empty(grown.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
        return torch.where(is_dead[:, None], drawn.to(grown.dtype), grown)
