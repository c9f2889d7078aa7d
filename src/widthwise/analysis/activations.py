"""How much of a feed-forward is in use: how often units are active, and how evenly energy lies on them.

Source: variable-width paper, arXiv:2606.18246, section 4.1 and appendix C. The activation of a unit is its input to the
down-projection; it is active where its size is above a threshold.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ROWS_AT_ONCE = 4096


class ActivationMeter:
    """Sums over the tokens of one block. What is kept does not grow with the number of tokens."""

    def __init__(self, thresholds: Sequence[float], utilisation_threshold: float):
        self._thresholds, self._utilisation_threshold = thresholds, utilisation_threshold
        self._n_tokens = 0
        self._n_active: Tensor | int = 0
        """(n_thresholds,), activations above each threshold, over all units."""
        self._n_used: Tensor | int = 0
        """(d_ff,), tokens that activate each unit."""
        self._energy: Tensor | float = 0.0
        """(d_ff,) fp64, sums of squares."""

    def add(self, activations: Tensor) -> None:
        """Adds n tokens. activations: (n, d_ff)."""
        for rows in activations.split(ROWS_AT_ONCE):
            size = rows.to(torch.promote_types(rows.dtype, torch.float32)).abs()
            self._n_tokens += len(size)
            self._n_active += torch.stack([(size > threshold).sum() for threshold in self._thresholds])
            self._n_used += (size > self._utilisation_threshold).sum(dim=0)
            self._energy += size.square().sum(dim=0, dtype=torch.float64)

    def summary(self) -> dict[str, Any]:
        """density: share of the activations above each threshold; utilisation: of each unit the share of the tokens
        that activate it; dead_share: of the units that none activates; participation: (sum of energies)^2 / sum of
        their squares, in units, and over d_ff. null where all activations are 0.
        """
        n_used, energy = torch.as_tensor(self._n_used), torch.as_tensor(self._energy)
        d_ff = len(n_used)
        participation = participation_ratio(energy)
        return {
            "d_ff": d_ff,
            "density": (torch.as_tensor(self._n_active).double() / (self._n_tokens * d_ff)).tolist(),
            "utilisation": (n_used.double() / self._n_tokens).tolist(),
            "dead_share": float((n_used == 0).double().mean()),
            "participation": participation,
            "participation_share": None if participation is None else participation / d_ff,
        }


def participation_ratio(energies: Tensor) -> float | None:
    """(sum e)^2 / sum e^2: how many of them it would take if they were equal. None where all are 0."""
    total = energies.sum()
    return float(1 / (energies / total).square().sum()) if total > 0 else None
