"""Linear, Embedding, Vector and norms whose axes have names and sizes.

Initialisation, muP, counting, growth and export read the names. They live on the module, because an attribute of a
Parameter is lost by deepcopy, by `to_empty` and by sharding. Construct on the meta device if the weights are to be
filled later.
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
"""Initial entries of a weight: one number, what a function fills in, or None where they are drawn."""


class Weight(nn.Module):
    """A module with one parameter, `weight`, whose axes have names; a vector has one mapping for in and out."""

    def __init__(self, in_axes: Axes, out_axes: Axes, start: Start):
        super().__init__()
        self.in_axes, self.out_axes, self.start = in_axes, out_axes, start
        self.weight = nn.Parameter(torch.empty([size(axes) for axes in self.dimensions]))

    @property
    def dimensions(self) -> tuple[Axes, ...]:
        """The named axes of each dimension of the weight: of rows and columns, or of the entries of a vector."""
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
        """True for the last matrix of a sublayer, which has the stream on its output side alone."""
        return "d_model" in self.out_axes and "d_model" not in self.in_axes

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size(in_axes)) -> (..., size(out_axes))."""
        return nn.functional.linear(x, self.weight, None if self.bias is None else self.bias())


class UnscaledLinear(Linear):
    """A Linear that starts as torch's do, for any widths of the model, and learns at the rate of the tables."""

    def __init__(self, in_axes: Axes, out_axes: Axes):
        super().__init__(in_axes, out_axes, start=_torchs_start)


def _torchs_start(weight: Tensor, generator: torch.Generator) -> None:
    """Fills it uniformly within 1 / sqrt(inputs)."""
    limit = weight.shape[1] ** -0.5
    weight.uniform_(-limit, limit, generator=generator)


class Control(Linear):
    """A Linear whose output is no hidden state but controls what happens to one.

    Its outputs, or its entries themselves, are scores of experts, widths, or coefficients of a mixture.
    """


class Experts(Linear):
    """The matrices of several experts, stacked along the rows."""


class Table(Weight):
    """A lookup table: rows are its in_axes, columns its out_axes."""

    @property
    def dimensions(self) -> tuple[Axes, ...]:
        return (self.in_axes, self.out_axes)

    def forward(self, rows: Tensor) -> Tensor:
        """rows: integers (...) -> (..., size(out_axes))."""
        return nn.functional.embedding(rows, self.weight)


class Embedding(Table):
    """One row per token of the vocabulary."""

    def __init__(self, vocab_size: int, out_axes: Axes):
        super().__init__({"vocab_size": vocab_size}, out_axes, start=None)


class LearnedPositions(Table):
    """One row per position."""

    def __init__(self, n_positions: int, width: int):
        super().__init__({"n_positions": n_positions}, {"d_model": width}, start=None)

    @property
    def n_positions(self) -> int:
        return len(self.weight)


class Vector(Weight):
    """A parameter that is no matrix: a bias, a gain, or, with axes {}, one number.

    It has no weight decay and learns at the rate of the gains.
    """

    def __init__(self, axes: Axes, start: Start):
        super().__init__(axes, axes, start)

    def forward(self) -> Tensor:
        """The entries, (size(axes),)."""
        return self.weight


class Scale(Vector):
    """A learned factor of another learned parameter, so that only their product matters. It can be set to decay."""


class Norm(Weight):
    """A norm over the last axis. Its weight is the gain.

    `norm_dim` is the divisor of the sum of squares. It is the size of the axis except where the norm reads only the
    part of a wider vector that can be non-zero: the slim first layer reads d_model of its w_1 coordinates and divides
    by w_1; and in a grown model, whose norms divide by what they divided by before. `stat_width`: the squares of the
    first so many coordinates are summed, None: all; a layer grown into coordinates that others had written measures
    what it measured before. `output_multiplier`: constant factor of the output. `is_after`: whether, as the norm of a
    sublayer, it acts on what that writes; if not, on what it reads.
    """

    is_after = False

    def __init__(
        self, axes: Axes, eps: float, norm_dim: int, stat_width: int | None = None, output_multiplier: float = 1.0
    ):
        super().__init__(axes, axes, start=1.0)
        self.eps, self.norm_dim, self.stat_width, self.output_multiplier = eps, norm_dim, stat_width, output_multiplier

    def before(self, x: Tensor) -> Tensor:
        """x: (B, T, d_read), the stream -> what the sublayer works on."""
        # Cast once: autocast would keep a copy for every matrix that reads x.
        return x.to(compute_dtype(x)) if self.is_after else self(x)

    def after(self, update: Tensor) -> Tensor:
        """update: (B, T, d_write), what the sublayer made -> what joins the stream."""
        return self(update) if self.is_after else update

    def times_multiplier(self, weight: Tensor) -> Tensor:
        """A gain or a bias that makes the output as large as it is to be."""
        return weight if self.output_multiplier == 1.0 else weight * self.output_multiplier

    def gain_factor(self, other: "Norm") -> float:
        """Return the factor that the gain needs in another norm of the same eps * norm_dim, for the same output."""
        return math.sqrt(self.norm_dim / other.norm_dim)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}, norm_dim={self.norm_dim}"


class RMSNorm(Norm):
    """y = gain * x / sqrt(sum(x^2) / norm_dim + eps)."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size(axes)) -> the same shape, in the autocast type where autocast is on."""
        gain = self.times_multiplier(self.weight)
        if self.stat_width is not None:
            return reference_rms_norm(x, gain, self.eps, self.norm_dim, self.stat_width)
        return rms_norm(x, gain, self.eps, self.norm_dim)


class LayerNorm(Norm):
    """y = gain * (x - mean(x)) / sqrt(sum((x - mean(x))^2) / norm_dim + eps) + bias, of all coordinates.

    Computed in fp32 or wider. Source: Ba et al. 2016, arXiv:1607.06450.
    """

    def __init__(self, axes: Axes, *options: Any):
        super().__init__(axes, *options)
        self.bias = Vector(axes, start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size(axes)) -> the same shape, in the autocast type where autocast is on."""
        wide = widened(x)
        with without_autocast(wide):
            centred = wide - wide.mean(dim=-1, keepdim=True)
            inverse = torch.rsqrt(centred.square().sum(dim=-1, keepdim=True) / self.norm_dim + self.eps)
            y = centred * inverse * self.times_multiplier(self.weight) + self.times_multiplier(self.bias())
        return y.to(compute_dtype(x))


NORM_MODULES: dict[str, type[Norm]] = {"rms": RMSNorm, "layer": LayerNorm}


class NoNorm(nn.Module):
    """f(x), a sublayer without a norm."""

    def before(self, x: Tensor) -> Tensor:
        """The stream in the compute type, cast once as in `Norm.before`."""
        return x.to(compute_dtype(x))

    def after(self, update: Tensor) -> Tensor:
        """The update as it is."""
        return update
