"""Rotary positions: the frequencies of a head, the angles of positions, and the rotation of queries and keys.

Source: Su et al. 2021, arXiv:2104.09864.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widthwise.kernels.dispatch import refuse_double_backward, use_fused

TOLERANCE = 1e-12
"""Largest relative difference between frequencies that count as equal."""


class Rope(NamedTuple):
    """The rotary frequencies of the query and key heads of a layer."""

    head_dim: int
    base: float
    frequencies: tuple[float, ...] | None = None
    """Radians per position of each of the head_dim / 2 pairs; None: base^(-2i / head_dim) of pair i."""

    def radians(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the angle of each pair at position 1, (head_dim / 2,), fp64."""
        if self.frequencies is not None:
            return torch.tensor(self.frequencies, device=device, dtype=torch.float64)
        exponents = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float64) / self.head_dim
        return self.base**-exponents

    @property
    def pair_frequencies(self) -> tuple[float, ...]:
        """The angles of all pairs at position 1, as plain numbers."""
        return tuple(self.radians().tolist())


def are_close(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return True if two lists of frequencies are equal up to rounding. Raises ValueError for different lengths."""
    return all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(first, second, strict=True))


def base_of(frequencies: Sequence[float], guess: float) -> float | None:
    """Return the base with these frequencies, or None. The guess is preferred, then a whole number, then any number.

    A head that grew from d to d' coordinates and continues its geometric series has the base base^(d' / d).
    """
    n_pairs = len(frequencies)
    base = guess if n_pairs == 1 else (frequencies[0] / frequencies[-1]) ** (n_pairs / (n_pairs - 1))
    candidates = (guess, float(max(1, round(base))), base)
    return next((base for base in candidates if are_close(Rope(2 * n_pairs, base).pair_frequencies, frequencies)), None)


def rope_table(positions: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Return the factors of `rotate`, in fp32 (fp64 if that is the default): cosines and sines of position * radians.

    positions: integers (B, T) or (1, T) -> two tensors (B or 1, T, 1, head_dim). Both halves of the last axis have the
    same angles; the sines in the first half are negated.
    """
    angles = positions.to(torch.float64)[:, :, None, None] * rope.radians(positions.device)
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    cos = angles.cos().to(dtype)
    sin = angles.sin().to(dtype)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def reference_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + head_dim/2}) by the angle of its position and frequency.

    x: (B, T, n_heads, head_dim); cos, sin: (B or 1, T, 1, head_dim) from `rope_table` -> x's shape and dtype.
    """
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    first, second = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat((second, first), dim=-1), sin).to(x.dtype)


class _Rotate(torch.autograd.Function):
    """Rotation whose backward pass rotates the gradient back by the same angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        return _rotated(grad, *ctx.saved_tensors, sign=-1), None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    """Return x rotated by the angles, or with sign -1 rotated back.

    In-place additions to both halves avoid a copy of x with swapped halves.
    """
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    rotated = wide * cos
    halves, sources, sines = (tensor.chunk(2, dim=-1) for tensor in (rotated, wide, sin))
    for half, source, sine in zip(halves, reversed(sources), sines, strict=True):
        half.addcmul_(source, sine, value=sign)
    return rotated.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute `reference_rotate`."""
    if not use_fused(x):
        return reference_rotate(x, cos, sin)
    return _Rotate.apply(x, cos, sin) if torch.is_grad_enabled() else _rotated(x, cos, sin)
