"""The modules of the plain residual."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from widthwise.model.axes import Linear, UnscaledLinear
from widthwise.model.context import Exit, Site
from widthwise.model.norm import NormConfig
from widthwise.model.residual.plain import PlainResidualConfig, projected_axes


class Stream(NamedTuple):
    """The wide residual stream of one forward pass."""

    prefix: Tensor
    """(B, T, width): the coordinates in use."""
    parked: tuple[Tensor, ...] = ()
    """The coordinates after the prefix in pieces, the nearest piece last. Coordinates after all pieces are 0."""

    def unpark(self, n: int) -> tuple[list[Tensor], "Stream"]:
        """Return the n coordinates after the prefix, as a list of adjacent pieces, and the stream without them."""
        pieces = []
        parked = list(self.parked)
        while n and parked:
            piece = parked.pop()
            if piece.shape[-1] > n:
                piece, rest = piece.split((n, piece.shape[-1] - n), dim=-1)
                parked.append(rest)
            pieces.append(piece)
            n -= piece.shape[-1]
        if n:
            pieces.append(self.prefix.new_zeros(*self.prefix.shape[:-1], n))  # never written
        return pieces, Stream(self.prefix, tuple(parked))

    def carry_to(self, width: int) -> "Stream":
        """Return the stream with a prefix of `width` coordinates.

        Widening restores the last written values; narrowing parks the tail of the prefix.
        """
        n_extra = width - self.prefix.shape[-1]
        if n_extra == 0:
            return self
        if n_extra < 0:
            prefix, tail = self.prefix.split((width, -n_extra), dim=-1)
            return Stream(prefix, (*self.parked, tail))
        pieces, rest = self.unpark(n_extra)
        return Stream(torch.cat((self.prefix, *pieces), dim=-1), rest.parked)


class Resize(nn.Module):
    """Resizes the prefix: parks coordinates before a narrower layer, and adds extra ones before a wider layer."""

    def __init__(self, resize: str, d_after: int, projection: Linear | None):
        """resize: see `PlainResidualConfig`; d_after: width of the prefix after it; projection: if `resize` has one."""
        super().__init__()
        self.resize = resize
        self.d_after = d_after
        self.w_widen = projection

    def forward(self, stream: Stream) -> Stream:
        n_extra = self.d_after - stream.prefix.shape[-1]
        widen = WIDEN.get(self.resize)
        if n_extra <= 0 or widen is None:
            return stream.carry_to(self.d_after)
        _, rest = stream.unpark(n_extra)
        return Stream(widen(stream.prefix, n_extra, self.w_widen), rest.parked)


WIDEN: dict[str, Callable[[Tensor, int, Any], Tensor]] = {
    "zero": lambda prefix, n_extra, _: nn.functional.pad(prefix, (0, n_extra)),
    "projection": lambda prefix, _, project: torch.cat((prefix, project(prefix)), dim=-1),
    "full_projection": lambda prefix, _, project: project(prefix).to(prefix.dtype),
}
"""Resize -> function that widens a prefix by n_extra coordinates, with the projection if there is one: zeros ("zero
padding" in the paper's Table 4) or a learned projection ("projection") in the extra coordinates, or a projection in all
(footnote 10). The paper's default, `carry`, has no function: the last written values are restored."""
PROJECTIONS: dict[str, type[Linear]] = {"as_matrices": Linear, "as_released": UnscaledLinear}


class PlainEntry(nn.Module):
    """The entry: the first prefix is the embedding."""

    def forward(self, embedding: Tensor) -> Stream:
        """embedding: (B, T, d_model)."""
        return Stream(embedding)


class PlainExit(Exit):
    """The exit: the first `width` coordinates are normalised, and the head reads the first d_model."""

    def __init__(self, config: PlainResidualConfig, d_model: int, width: int, norm: NormConfig):
        super().__init__()
        self.d_model = d_model
        self.width = width
        self.norm = norm.build({"d_model": width})

    def forward(self, stream: Stream) -> Tensor:
        x = stream.carry_to(max(self.width, self.d_model)).prefix
        if self.width >= self.d_model:
            return self.norm(x)[..., : self.d_model]
        # As in the paper's release: coordinates that the last layer does not own reach the head without normalisation.
        normalised = self.norm(x[..., : self.width])
        return torch.cat((normalised, x[..., self.width :].to(normalised.dtype)), dim=-1)


class PlainResidual(Site):
    """A site that reads a prefix of the stream, and adds the update to a prefix of the update's width."""

    def __init__(self, config: PlainResidualConfig, d_before: int, d_read: int, d_write: int):
        super().__init__()
        axes = projected_axes(config.resize, d_before, d_read)
        projection = PROJECTIONS[config.projections]({"d_model": d_before}, axes) if axes else None
        self.resize = Resize(config.resize, d_read, projection)
        self.d_write = d_write
        self.multiplier = config.multiplier

    def read(self, stream: Stream) -> tuple[Tensor, Stream]:
        stream = self.resize(stream)
        return stream.prefix, stream

    def write(self, skip: Stream, update: Tensor) -> Stream:
        prefix, parked = skip.carry_to(self.d_write)
        return Stream(torch.add(prefix, update, alpha=self.multiplier), parked)


def build_entry(config: PlainResidualConfig, d_model: int) -> PlainEntry:
    return PlainEntry()


build_site = PlainResidual
build_exit = PlainExit
