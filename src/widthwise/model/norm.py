"""RMSNorm around a sublayer."""

from typing import Any

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

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        """x: (B, T, what the sublayer reads) -> (B, T, what it writes)."""
        return self.sublayer(self.norm(x), *context)


class ReorderedNorm(PreNorm):
    """norm(f(x)): the norm acts on the update before it joins the stream. Source: OLMo 2, arXiv:2501.00656."""

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        """x: (B, T, what the sublayer reads) -> (B, T, what it writes)."""
        x = x.to(compute_dtype(x))  # once, or autocast would make and keep a copy for every matrix that reads it
        return self.norm(self.sublayer(x, *context))


PLACEMENTS: dict[str, type[PreNorm]] = {"pre": PreNorm, "reordered": ReorderedNorm}


def normalised_width(placement: str, d_read: int, d_write: int) -> int:
    """The width the norm sees: the sublayer's input, or its output where the norm comes after."""
    return d_read if PLACEMENTS[placement] is PreNorm else d_write


def input_cost(placement: str, d_read: int) -> Cost:
    """What a sublayer keeps of its input for the backward pass: the norm's output, which the norm counts, or the stream
    itself.
    """
    return Cost(activation_elements=0 if PLACEMENTS[placement] is PreNorm else d_read)
