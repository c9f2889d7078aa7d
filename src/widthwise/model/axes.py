"""Linear, Embedding, Vector and RMSNorm whose axes have names and sizes.

Initialisation, muP, counting, growth and export read the names. They live on the module, because an attribute of a
Parameter is lost by deepcopy, by `to_empty` and by sharding. Construct on the meta device if the weights are to be
filled later.
"""

import math

import torch
from torch import Tensor, nn

from widthwise.kernels import rms_norm

Axes = dict[str, int]
"""Axis names with their sizes, outermost first: {"n_heads": 16, "head_dim": 40} is an axis of 640 entries."""


def size(axes: Axes) -> int:
    """Number of entries along the flattened axes."""
    return math.prod(axes.values())


class Linear(nn.Module):
    """y = x W^T without bias; W has shape (size(out_axes), size(in_axes)).

    starts_at_zero: the initial weight is 0 whatever the recipe's standard deviation, so that the map starts unheard.
    """

    def __init__(self, in_axes: Axes, out_axes: Axes, starts_at_zero: bool = False):
        super().__init__()
        self.in_axes, self.out_axes, self.starts_at_zero = in_axes, out_axes, starts_at_zero
        self.weight = nn.Parameter(torch.empty(size(out_axes), size(in_axes)))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size(in_axes)) -> (..., size(out_axes))."""
        return nn.functional.linear(x, self.weight)

    def extra_repr(self) -> str:
        return f"{self.in_axes} -> {self.out_axes}"


class Embedding(nn.Module):
    """One row per token of the vocabulary."""

    def __init__(self, vocab_size: int, out_axes: Axes):
        super().__init__()
        self.in_axes, self.out_axes = {"vocab_size": vocab_size}, out_axes
        self.weight = nn.Parameter(torch.empty(vocab_size, size(out_axes)))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: integers (...) -> (..., size(out_axes))."""
        return nn.functional.embedding(tokens, self.weight)

    def extra_repr(self) -> str:
        return f"{self.in_axes} -> {self.out_axes}"


class Vector(nn.Module):
    """A parameter that multiplies no matrix: a bias, a gain, or with axes {} one number. All entries start at `start`.

    It does not decay, and learns at the rate of the gains.
    """

    def __init__(self, axes: Axes, start: float):
        super().__init__()
        self.in_axes: Axes = axes
        self.out_axes: Axes = axes
        self.start = start
        self.weight = nn.Parameter(torch.empty(size(axes)))

    def forward(self) -> Tensor:
        """(size(axes),), the entries."""
        return self.weight

    def extra_repr(self) -> str:
        return f"{self.in_axes}, start={self.start}"


class RMSNorm(nn.Module):
    """y = gain * x / sqrt(sum(x^2) / norm_dim + eps), over the last axis.

    `norm_dim` is the divisor of the sum of squares. It is the size of the axis except where the norm reads only the
    part of a wider vector that can be non-zero: the slim first layer reads d_model of its w_1 coordinates and divides
    by w_1.
    """

    def __init__(self, axes: Axes, eps: float, norm_dim: int):
        super().__init__()
        self.in_axes: Axes = axes
        self.out_axes: Axes = axes
        self.eps, self.norm_dim = eps, norm_dim
        self.weight = nn.Parameter(torch.empty(size(axes)))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size(axes)) -> the same shape, in the autocast type where autocast is on."""
        return rms_norm(x, self.weight, self.eps, self.norm_dim)

    def extra_repr(self) -> str:
        return f"{self.in_axes}, eps={self.eps}, norm_dim={self.norm_dim}"
