"""Rotary position embedding. Source: Su et al. 2021, arXiv:2104.09864."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TOLERANCE = 1e-12
"""Relative difference up to which two frequencies count as equal."""


class Rope(NamedTuple):
    """The rotary frequencies of a query or key head."""

    head_dim: int
    base: float
    frequencies: tuple[float, ...] | None = None
    """Radians per position of each of the head_dim / 2 pairs; None: base^(-2i / head_dim) of pair i."""

    def radians(self, device: torch.device | str = "cpu") -> Tensor:
        """(head_dim / 2,), fp64: the angle of each pair at position 1."""
        if self.frequencies is not None:
            return torch.tensor(self.frequencies, device=device, dtype=torch.float64)
        exponents = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float64) / self.head_dim
        return self.base**-exponents

    @property
    def pair_frequencies(self) -> tuple[float, ...]:
        """The same numbers, as a config holds them."""
        return tuple(self.radians().tolist())


def agree(frequencies: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether two lists of frequencies are equal up to rounding."""
    return all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(frequencies, others, strict=True))


def base_of(frequencies: Sequence[float], guess: float) -> float | None:
    """The base that yields these frequencies, or None; the guess is tried first, then a whole number, then any other.

    A head grown from d to d' coordinates that continues its geometric series has the base base^(d' / d).
    """
    n_pairs = len(frequencies)
    found = guess if n_pairs == 1 else (frequencies[0] / frequencies[-1]) ** (n_pairs / (n_pairs - 1))
    candidates = (guess, float(max(1, round(found))), found)
    return next((base for base in candidates if agree(Rope(2 * n_pairs, base).pair_frequencies, frequencies)), None)


def rope_table(positions: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the angles position * radians, in fp32 (fp64 if that is the default).

    positions: integers (B, T) or (1, T) -> the factors of `kernels.rotate`, two tensors (B or 1, T, 1, head_dim): the
    cosines twice over, and the sines, negative in the first half.
    """
    angles = positions.to(torch.float64)[:, :, None, None] * rope.radians(positions.device)
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
