"""Linear, Table, Vector and norms whose axes have names and sizes.

Initialisation, muP, counting, growth and export read the names. They are attributes of the module, because a Parameter
loses its attributes in deepcopy, `to_empty` and sharding. Construct on the meta device to fill weights later.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.kernels.dispatch import compute_dtype, widened, without_autocast
from widthwise.kernels.rms_norm import reference_rms_norm, rms_norm
from widthwise.model.cost import Axes, size

Start = float | Callable[[Tensor, torch.Generator], None] | None
"""Initial entries of a weight: one number, a function that fills them in, or None to draw them."""


class Weight(nn.Module):
    """A module with one parameter, `weight`, whose axes have names. A vector has the same object as in_axes and
    out_axes.
    """

    def __init__(self, in_axes: Axes, out_axes: Axes, start: Start):
        super().__init__()
        self.in_axes = in_axes
        self.out_axes = out_axes
        self.start: Start = start
        self.weight = nn.Parameter(torch.empty([size(axes) for axes in self.dimensions]))

    @property
    def dimensions(self) -> tuple[Axes, ...]:
        """The named axes of each dimension of the weight: rows, then columns; for a vector its entries."""
        return (self.out_axes,) if self.in_axes is self.out_axes else (self.out_axes, self.in_axes)

    def extra_repr(self) -> str:
        return f"{self.in_axes}" if self.in_axes is self.out_axes else f"{self.in_axes} -> {self.out_axes}"


class Linear(Weight):
    """y = x W^T, plus an optional bias; W has shape (size(out_axes), size(in_axes)).

    With start = 0 its output starts at 0. A bias starts at 0 and is a `Vector`, `bias.weight`.
    """

    def __init__(self, in_axes: Axes, out_axes: Axes, start: Start = None, has_bias: bool = False):
        super().__init__(in_axes, out_axes, start)
        self.bias = Vector(out_axes, start=0.0) if has_bias else None

    @property
    def writes_stream(self) -> bool:
        """True for the last matrix of a sublayer: its output has the axis d_model, its input has not."""
        return "d_model" in self.out_axes and "d_model" not in self.in_axes

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size(in_axes)) -> (..., size(out_axes))."""
        return nn.functional.linear(x, self.weight, None if self.bias is None else self.bias())


class UnscaledLinear(Linear):
    """A Linear with torch's initial weights for any width, and with the learning rate of embedding and head."""

    def __init__(self, in_axes: Axes, out_axes: Axes):
        super().__init__(in_axes, out_axes, start=_uniform)


def _uniform(weight: Tensor, generator: torch.Generator) -> None:
    """Fill the weight uniformly within 1 / sqrt(inputs), as torch does."""
    limit = weight.shape[1] ** -0.5
    weight.uniform_(-limit, limit, generator=generator)


class Control(Linear):
    """A Linear whose output controls hidden states: scores of experts, widths, or coefficients of a mixture."""


class Experts(Linear):
    """Matrices of several experts, stacked along the rows."""


class Table(Weight):
    """A lookup table with a row (in_axes) per token of the vocabulary or per position, and columns (out_axes)."""

    @property
    def dimensions(self) -> tuple[Axes, ...]:
        return (self.in_axes, self.out_axes)

    def forward(self, rows: Tensor) -> Tensor:
        """rows: integers (...) -> (..., size(out_axes))."""
        return nn.functional.embedding(rows, self.weight)


class Vector(Weight):
    """A vector of parameters: a bias, a gain, or with axes {} one number.

    It has no weight decay and the learning rate of the gains.
    """

    def __init__(self, axes: Axes, start: Start):
        super().__init__(axes, axes, start)

    def forward(self) -> Tensor:
        """Return the entries, (size(axes),)."""
        return self.weight


class Scale(Vector):
    """A learned factor of another learned parameter. Only their product matters. Weight decay is optional."""


class Norm(Weight):
    """A norm over the last axis. The gain is `weight + gain_offset`.

    `norm_dim`: divisor of the sum of squares. It is the size of the axis, with two exceptions: a slim first layer of
    width w_1 reads only d_model coordinates, because the others are 0, but divides by w_1; and the norms of a grown
    model keep their old divisors. `stat_width`: number of leading coordinates in the sum of squares; None: all. It
    keeps the statistics of a layer that has grown into coordinates written by other layers. `is_after`: True to
    normalise the output of a sublayer, False to normalise its input. `post`: a second norm, of the output, if the
    sublayer has norms before and after it.
    """

    is_after = False

    def __init__(self, axes: Axes, eps: float, norm_dim: int, stat_width: int | None = None, gain_offset: float = 0.0):
        super().__init__(axes, axes, start=1.0 - gain_offset)
        self.eps = eps
        self.norm_dim = norm_dim
        self.stat_width = stat_width
        self.gain_offset = gain_offset
        self.post: Norm | None = None

    @property
    def output_norm(self) -> "Norm | None":
        """The norm of the sublayer's output; None if only its input is normalised."""
        return self if self.is_after else self.post

    @property
    def gain(self) -> Tensor:
        """The factor of the normalised coordinates, (size(axes),)."""
        return widened(self.weight) + self.gain_offset if self.gain_offset else self.weight

    def before(self, x: Tensor) -> Tensor:
        """x: (B, T, d_read), the stream -> the input of the sublayer, which is not normalised if `is_after`."""
        # Cast once: autocast would keep a copy for every matrix that reads x.
        return x.to(compute_dtype(x)) if self.is_after else self(x)

    def after(self, update: Tensor) -> Tensor:
        """update: (B, T, d_write), the output of the sublayer -> the update of the stream."""
        return update if self.output_norm is None else self.output_norm(update)

    def gain_factor(self, target: "Norm") -> float:
        """Return the factor by which `target` must multiply the gain to have the same output.

        target: a norm with the same eps * norm_dim.
        """
        return math.sqrt(self.norm_dim / target.norm_dim)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}, norm_dim={self.norm_dim}"


class RMSNorm(Norm):
    """y = gain * x / sqrt(sum(x^2) / norm_dim + eps)."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size(axes)) -> the same shape, in the autocast dtype if autocast is on."""
        if self.stat_width is not None:
            return reference_rms_norm(x, self.gain, self.eps, self.norm_dim, self.stat_width)
        return rms_norm(x, self.gain, self.eps, self.norm_dim)


class LayerNorm(Norm):
    """y = gain * (x - mean(x)) / sqrt(sum((x - mean(x))^2) / norm_dim + eps) + bias, of all coordinates.

    Computed in fp32 or wider. Source: Ba et al. 2016, arXiv:1607.06450.
    """

    def __init__(self, axes: Axes, *options: Any):
        super().__init__(axes, *options)
        self.bias = Vector(axes, start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size(axes)) -> the same shape, in the autocast dtype if autocast is on."""
        wide = widened(x)
        with without_autocast(wide):
            centred = wide - wide.mean(dim=-1, keepdim=True)
            inverse = torch.rsqrt(centred.square().sum(dim=-1, keepdim=True) / self.norm_dim + self.eps)
            y = centred * inverse * self.gain + self.bias()
        return y.to(compute_dtype(x))


NORM_MODULES: dict[str, type[Norm]] = {"rms": RMSNorm, "layer": LayerNorm}


class NoNorm(nn.Module):
    """The absence of a norm around a sublayer."""

    def before(self, x: Tensor) -> Tensor:
        """Return the stream in the compute dtype, cast once as in `Norm.before`."""
        return x.to(compute_dtype(x))

    def after(self, update: Tensor) -> Tensor:
        """Return the update unchanged."""
        return update
