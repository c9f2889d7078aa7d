"""The modules of the plain residual."""

from typing import NamedTuple

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

    def narrow(self, width: int) -> "Stream":
        """Parks the coordinates from `width` on."""
        if width >= self.width:
            return self
        prefix, tail = self.prefix.split((width, self.width - width), dim=-1)
        return Stream(prefix, (*self.parked, tail))

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
        """The same stream with a prefix of `width` coordinates: a wider one restores what was last written there."""
        if width <= self.width:
            return self.narrow(width)
        pieces, rest = self.unpark(width - self.width)
        return Stream(torch.cat((self.prefix, *pieces), dim=-1), rest.parked)


class Carry(nn.Module):
    """A wider layer finds in the extra coordinates what the last layer wide enough left there. The paper's default."""

    def __init__(self, d_after: int, projection: Linear | None):
        """projection: from the prefix before a wider layer, for a resize that has one."""
        super().__init__()
        self.d_after = d_after
        if projection is not None:
            self.w_widen = projection

    def forward(self, stream: Stream) -> Stream:
        return self.widened(stream) if self.d_after > stream.width else stream.narrow(self.d_after)

    def widened(self, stream: Stream) -> Stream:
        """The stream in front of a wider layer."""
        return stream.carry_to(self.d_after)


class Zero(Carry):
    """A wider layer finds zeros in the extra coordinates. "Zero padding" in the paper's Table 4."""

    def widened(self, stream: Stream) -> Stream:
        return _with_prefix(stream, torch.cat((stream.prefix, stream.zeros(self.d_after - stream.width)), dim=-1))


class Projection(Carry):
    """A wider layer finds a learned projection of the prefix in the extra coordinates. "Projection" in Table 4."""

    def widened(self, stream: Stream) -> Stream:
        return _with_prefix(stream, torch.cat((stream.prefix, self.w_widen(stream.prefix)), dim=-1))


class FullProjection(Carry):
    """A wider layer finds a learned projection of the prefix in all its coordinates. Footnote 10 of the paper."""

    def widened(self, stream: Stream) -> Stream:
        return _with_prefix(stream, self.w_widen(stream.prefix).to(stream.prefix.dtype))


def _with_prefix(stream: Stream, prefix: Tensor) -> Stream:
    """The stream with a wider prefix, in place of what was parked there."""
    _, rest = stream.unpark(prefix.shape[-1] - stream.width)
    return Stream(prefix, rest.parked)


RESIZES: dict[str, type[Carry]] = {
    "carry": Carry,
    "zero": Zero,
    "projection": Projection,
    "full_projection": FullProjection,
}
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

    def __init__(self, resize: Carry, d_write: int, multiplier: float):
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
    return PlainResidual(RESIZES[config.resize](d_read, projection), d_write, config.multiplier)


def build_entry(config: PlainResidualConfig, d_model: int) -> PlainEntry:
    return PlainEntry()


def build_exit(config: PlainResidualConfig, d_model: int, width: int, norm: NormConfig) -> PlainExit:
    return PlainExit(d_model, width, norm)
