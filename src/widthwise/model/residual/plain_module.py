"""The modules of the plain residual."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from widthwise.model.axes import Linear, UnscaledLinear
from widthwise.model.context import Exit, Site
from widthwise.model.norm import NormConfig
from widthwise.model.residual.plain import PlainResidualConfig, projected


class Stream(NamedTuple):
    """The wide residual stream of one forward pass."""

    prefix: Tensor
    """(B, T, width): the coordinates in use."""
    parked: tuple[Tensor, ...] = ()
    """The coordinates after the prefix, in pieces, nearest last; all further coordinates are 0."""

    @property
    def width(self) -> int:
        return self.prefix.shape[-1]

    def unpark(self, n: int) -> tuple[list[Tensor], "Stream"]:
        """The n coordinates after the prefix, as adjacent pieces, and the stream without them."""
        pieces, parked = [], list(self.parked)
        while n and parked:
            piece = parked.pop()
            if piece.shape[-1] > n:
                piece, rest = piece.split((n, piece.shape[-1] - n), dim=-1)
                parked.append(rest)
            pieces.append(piece)
            n -= piece.shape[-1]
        if n:
            pieces.append(self.zeros(n))
        return pieces, Stream(self.prefix, tuple(parked))

    def zeros(self, n: int) -> Tensor:
        """n coordinates never written."""
        return self.prefix.new_zeros(*self.prefix.shape[:-1], n)

    def carry_to(self, width: int) -> "Stream":
        """The same stream with a prefix of `width` coordinates: a wider one restores what was last written there, a
        narrower one parks the others."""
        if width == self.width:
            return self
        if width < self.width:
            prefix, tail = self.prefix.split((width, self.width - width), dim=-1)
            return Stream(prefix, (*self.parked, tail))
        pieces, rest = self.unpark(width - self.width)
        return Stream(torch.cat((self.prefix, *pieces), dim=-1), rest.parked)


class Resize(nn.Module):
    """Parks the coordinates that a narrower layer does not own, and gives a wider one its extra ones."""

    def __init__(self, resize: str, d_after: int, projection: Linear | None):
        """projection: from the prefix before a wider layer, for a resize that has one."""
        super().__init__()
        self.resize, self.d_after, self.w_widen = resize, d_after, projection

    def forward(self, stream: Stream) -> Stream:
        n_extra, widened = self.d_after - stream.width, WIDENED.get(self.resize)
        if n_extra <= 0 or widened is None:
            return stream.carry_to(self.d_after)
        _, rest = stream.unpark(n_extra)
        return Stream(widened(stream, n_extra, self.w_widen), rest.parked)


Widened = Callable[[Stream, int, Any], Tensor]
"""The prefix in front of a wider layer, from the stream, the number of extra coordinates, and a projection if any."""
WIDENED: dict[str, Widened] = {
    "zero": lambda stream, n_extra, _: torch.cat((stream.prefix, stream.zeros(n_extra)), dim=-1),
    "projection": lambda stream, _, project: torch.cat((stream.prefix, project(stream.prefix)), dim=-1),
    "full_projection": lambda stream, _, project: project(stream.prefix).to(stream.prefix.dtype),
}
"""Resize -> what a wider layer finds: zeros ("zero padding" in the paper's Table 4) or a learned projection of the
prefix ("projection") in the extra coordinates, or a projection in all (footnote 10). With any other, `carry`, it finds
what the last layer wide enough left there, the paper's default."""
PROJECTIONS: dict[str, type[Linear]] = {"as_matrices": Linear, "as_released": UnscaledLinear}


class PlainEntry(nn.Module):
    """The embedding is the first prefix."""

    def forward(self, embedding: Tensor) -> Stream:
        """embedding: (B, T, d_model)."""
        return Stream(embedding)


class PlainExit(Exit):
    """Normalises the first `width` coordinates and gives the first d_model to the head."""

    def __init__(self, d_model: int, width: int, norm: NormConfig):
        super().__init__()
        self.d_model, self.width = d_model, width
        self.norm = norm.build({"d_model": width})

    def forward(self, stream: Stream) -> Tensor:
        d_model, n = self.d_model, self.width
        x = stream.carry_to(max(n, d_model)).prefix
        if n >= d_model:
            return self.norm(x)[..., :d_model]
        # As in the paper's release: coordinates that the last layer does not own reach the head without normalisation.
        normalised = self.norm(x[..., :n])
        return torch.cat((normalised, x[..., n:].to(normalised.dtype)), dim=-1)


class PlainResidual(Site):
    """Reads a prefix as wide as the sublayer, and adds the update to a prefix as wide as it."""

    def __init__(self, resize: Resize, d_write: int, multiplier: float):
        super().__init__()
        self.resize, self.d_write, self.multiplier = resize, d_write, multiplier

    def read(self, stream: Stream) -> tuple[Tensor, Stream]:
        stream = self.resize(stream)
        return stream.prefix, stream

    def write(self, kept: Stream, update: Tensor) -> Stream:
        prefix, parked = kept.carry_to(self.d_write)
        return Stream(torch.add(prefix, update, alpha=self.multiplier), parked)


def build_site(config: PlainResidualConfig, d_before: int, d_read: int, d_write: int) -> PlainResidual:
    axes = projected(config.resize, d_before, d_read)
    projection = PROJECTIONS[config.projections]({"d_model": d_before}, axes) if axes else None
    return PlainResidual(Resize(config.resize, d_read, projection), d_write, config.multiplier)


def build_entry(config: PlainResidualConfig, d_model: int) -> PlainEntry:
    return PlainEntry()


def build_exit(config: PlainResidualConfig, d_model: int, width: int, norm: NormConfig) -> PlainExit:
    return PlainExit(d_model, width, norm)
