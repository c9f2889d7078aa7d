"""RMSNorm of a sublayer: before it, after it, or not at all."""

from dataclasses import dataclass
from typing import Literal

import pydantic
from torch import Tensor, nn

from widthwise.config_io import Config
from widthwise.kernels.dispatch import compute_dtype
from widthwise.model.axes import RMSNorm
from widthwise.model.cost import Cost, rms_norm


class NormConfig(Config):
    """One RMSNorm; see `model.axes.RMSNorm` for the divisor."""

    eps: pydantic.PositiveFloat = 1e-5
    norm_dim: pydantic.PositiveInt
    """Divisor of the sum of squares."""


class PreNorm(RMSNorm):
    """f(norm(x)), the usual order."""

    @staticmethod
    def normalised_width(d_read: int, d_write: int) -> int:
        """The width the norm sees around a sublayer that reads d_read coordinates and writes d_write."""
        return d_read

    @staticmethod
    def cost(d_read: int, d_write: int) -> Cost:
        """With what the sublayer keeps of its input for the backward pass: the norm's output."""
        return rms_norm(d_read)

    def before(self, x: Tensor) -> Tensor:
        """x: (B, T, d_read), the stream -> what the sublayer works on."""
        return self(x)

    def after(self, update: Tensor) -> Tensor:
        """update: (B, T, d_write), what the sublayer made -> what joins the stream."""
        return update


class ReorderedNorm(RMSNorm):
    """norm(f(x)): the norm acts on the update before it joins the stream. Source: OLMo 2, arXiv:2501.00656."""

    @staticmethod
    def normalised_width(d_read: int, d_write: int) -> int:
        """As in `PreNorm`."""
        return d_write

    @staticmethod
    def cost(d_read: int, d_write: int) -> Cost:
        """With what the sublayer keeps of its input: the stream itself, in the type of the matrix products."""
        return rms_norm(d_write) + Cost(activation_elements=d_read)

    def before(self, x: Tensor) -> Tensor:
        """As in `PreNorm`. Cast once, or autocast would make and keep a copy for every matrix that reads x."""
        return x.to(compute_dtype(x))

    def after(self, update: Tensor) -> Tensor:
        """As in `PreNorm`."""
        return self(update)


class NoNorm(nn.Module):
    """f(x)."""

    def __init__(self, *unused: object):
        super().__init__()

    @staticmethod
    def normalised_width(d_read: int, d_write: int) -> int:
        """As in `PreNorm`."""
        return 0

    @staticmethod
    def cost(d_read: int, d_write: int) -> Cost:
        """As in `ReorderedNorm`."""
        return Cost(activation_elements=d_read)

    def before(self, x: Tensor) -> Tensor:
        """As in `ReorderedNorm`."""
        return x.to(compute_dtype(x))

    def after(self, update: Tensor) -> Tensor:
        """As in `PreNorm`."""
        return update


SublayerNorm = PreNorm | ReorderedNorm | NoNorm
Placement = Literal["pre", "reordered"]
PLACEMENTS: dict[str, type[SublayerNorm]] = {"pre": PreNorm, "reordered": ReorderedNorm, "none": NoNorm}


@dataclass(frozen=True)
class NormSite:
    """The norm of one sublayer before its widths are known: a sublayer builds its own."""

    placement: str
    config: NormConfig

    def cost(self, d_read: int, d_write: int) -> Cost:
        """Of the norm around a sublayer that reads d_read coordinates and writes d_write."""
        return PLACEMENTS[self.placement].cost(d_read, d_write)

    def moved(self, placement: str, d_read: int, d_write: int, d_part: int) -> "NormSite":
        """Where a part of that sublayer which writes d_part coordinates has its norm at `placement`.

        The divisor moves with the width that is normalised.
        """
        width = PLACEMENTS[self.placement].normalised_width(d_read, d_write)
        moved_width = PLACEMENTS[placement].normalised_width(d_read, d_part) or width  # 0 where there is no norm
        norm_dim = self.config.norm_dim + moved_width - width
        return NormSite(placement, NormConfig(eps=self.config.eps, norm_dim=norm_dim))

    def build(self, d_read: int, d_write: int) -> SublayerNorm:
        """The arguments are those of `cost`."""
        placed = PLACEMENTS[self.placement]
        width = placed.normalised_width(d_read, d_write)
        return placed({"d_model": width}, self.config.eps, self.config.norm_dim)
