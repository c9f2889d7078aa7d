"""RMSNorm around a sublayer."""

from typing import Any, Literal

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

    def cost(self, d_model: int) -> Cost:
        return rms_norm(d_model)

    def build(self, d_model: int) -> RMSNorm:
        return RMSNorm({"d_model": d_model}, self.eps, self.norm_dim)


class PreNorm(nn.Module):
    """f(norm(x)), the usual order."""

    def __init__(self, norm: RMSNorm, sublayer: nn.Module):
        super().__init__()
        self.norm, self.sublayer = norm, sublayer

    @staticmethod
    def normalised_width(d_read: int, d_write: int) -> int:
        """The width the norm sees around a sublayer that reads d_read coordinates and writes d_write."""
        return d_read

    @staticmethod
    def input_cost(d_read: int) -> Cost:
        """What the sublayer keeps of its input for the backward pass: the norm's output, which the norm counts."""
        return Cost()

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        """x: (B, T, what the sublayer reads) -> (B, T, what it writes)."""
        return self.sublayer(self.norm(x), *context)


class ReorderedNorm(PreNorm):
    """norm(f(x)): the norm acts on the update before it joins the stream. Source: OLMo 2, arXiv:2501.00656."""

    @staticmethod
    def normalised_width(d_read: int, d_write: int) -> int:
        return d_write

    @staticmethod
    def input_cost(d_read: int) -> Cost:
        """The stream itself, in the type of the matrix products."""
        return Cost(activation_elements=d_read)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        """x: (B, T, what the sublayer reads) -> (B, T, what it writes)."""
        x = x.to(compute_dtype(x))  # once, or autocast would make and keep a copy for every matrix that reads it
        return self.norm(self.sublayer(x, *context))


Placement = Literal["pre", "reordered"]
PLACEMENTS: dict[Placement, type[PreNorm]] = {"pre": PreNorm, "reordered": ReorderedNorm}
