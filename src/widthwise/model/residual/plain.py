"""The plain residual over one wide stream: layers read and write a prefix of it, and the rest is carried forward.

Each coordinate holds the value left by the last layer wide enough to own it; a coordinate never written is 0. That is
Eq. (1) of the variable-width paper. The stream is stored as its current prefix and the tails that narrower layers
parked, so that narrowing is a view and widening one concatenation.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import pydantic
import torch
from torch import Tensor, nn

from widthwise.model.axes import Linear
from widthwise.model.cost import Cost, linear
from widthwise.model.norm import NormConfig
from widthwise.model.residual.interface import (
    Exit,
    PrefixLayout,
    ResidualConfig,
    ResidualTemplate,
    Site,
    register_residual,
)


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

    @staticmethod
    def cost(d_before: int, d_after: int) -> Cost:
        return Cost()

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

    @staticmethod
    def cost(d_before: int, d_after: int) -> Cost:
        if d_after <= d_before:
            return Cost()
        return linear(d_before, d_after - d_before) + Cost(activation_elements=d_before)

    def forward(self, stream: Stream) -> Stream:
        return _widen_with(stream, self.d_after, lambda n: self.w_widen(stream.prefix))


def _widen_with(stream: Stream, width: int, new_coordinates: Callable[[int], Tensor]) -> Stream:
    if width <= stream.width:
        return stream.narrow(width)
    _, rest = stream.unpark(width - stream.width)
    return Stream(torch.cat((stream.prefix, new_coordinates(width - stream.width)), dim=-1), rest.parked)


RESIZES: dict[str, type[Carry]] = {"carry": Carry, "zero": Zero, "projection": Projection}


class PlainResidualConfig(ResidualConfig, ResidualTemplate):
    """prefix += multiplier * update. After the last layer, coordinates are always restored as with `carry`.

    It has no sizes, so one class is both template and resolved config.
    """

    final_norm_spans_layer = True
    kept = ("resize",)
    is_sum = True
    kind: Literal["plain"] = "plain"
    resize: Literal["carry", "zero", "projection"] = "carry"
    """What a layer wider than its predecessor finds in the extra coordinates."""
    multiplier: pydantic.PositiveFloat = 1.0
    """Factor of every update."""

    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        return Cost()

    def at_widths(self, d_model: int, widths: Sequence[int]) -> "PlainResidualConfig":
        return self

    def check_widths(self, d_model: int, widths: Sequence[int]) -> None:
        pass

    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        return RESIZES[self.resize].cost(d_before, d_read)

    def build(self, d_before: int, d_read: int, d_write: int) -> "PlainResidual":
        return PlainResidual(RESIZES[self.resize](d_before, d_read), d_write, self.multiplier)

    def embedding_width(self, d_model: int) -> int:
        return d_model

    def entry_cost(self, d_model: int) -> Cost:
        return Cost()

    def build_entry(self, d_model: int) -> "PlainEntry":
        return PlainEntry()

    def exit_cost(self, d_model: int) -> Cost:
        return Cost()

    def build_exit(self, d_model: int, width: int, norm: NormConfig) -> "PlainExit":
        return PlainExit(d_model, width, norm)

    def slot_shape(self, d_model: int) -> tuple[int, int]:
        return 1, d_model

    def to_slots(self, stream: Stream, d_model: int) -> Tensor:
        return stream.carry_to(d_model).prefix[..., None, :]

    def from_slots(self, slots: Tensor) -> Stream:
        return Stream(slots.squeeze(-2))

    @property
    def layout(self) -> PrefixLayout:
        return PrefixLayout(self.resize)


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


register_residual(PlainResidualConfig, PlainResidualConfig)
