"""The modules of the plain residual."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from widthwise.model.axes import Linear
from widthwise.model.norm import NormConfig
from widthwise.model.residual.interface_module import Exit, Site


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

    def __init__(self, d_before: int, d_after: int):
        super().__init__()
        self.d_after = d_after

    def forward(self, stream: Stream) -> Stream:
        return stream.carry_to(self.d_after)


class Zero(Carry):
    """A wider layer finds zeros in the extra coordinates. "Zero padding" in the paper's Table 4."""

    def forward(self, stream: Stream) -> Stream:
        return _widen_with(stream, self.d_after, stream.zeros)


class Projection(Carry):
    """A wider layer finds a learned projection of the prefix in the extra coordinates. "Projection" in Table 4."""

    def __init__(self, d_before: int, d_after: int):
        super().__init__(d_before, d_after)
        if d_after > d_before:
            self.w_widen = Linear({"d_model": d_before}, {"d_widened": d_after - d_before})

    def forward(self, stream: Stream) -> Stream:
        return _widen_with(stream, self.d_after, lambda n: self.w_widen(stream.prefix))


def _widen_with(stream: Stream, width: int, new_coordinates: Callable[[int], Tensor]) -> Stream:
    if width <= stream.width:
        return stream.narrow(width)
    _, rest = stream.unpark(width - stream.width)
    return Stream(torch.cat((stream.prefix, new_coordinates(width - stream.width)), dim=-1), rest.parked)


RESIZES: dict[str, type[Carry]] = {"carry": Carry, "zero": Zero, "projection": Projection}


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
