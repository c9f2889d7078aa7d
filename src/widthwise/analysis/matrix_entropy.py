"""How evenly the states of many tokens fill the residual stream: entropy of the spectrum of their matrix.

Source: variable-width paper, arXiv:2606.18246, section 4.2. X has a row for every token and is not centred; its
eigenvalue shares p_j = sigma_j^2 / |X|^2 are those of the Gram matrix X^T X, which does not grow with the tokens.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from widthwise.analysis.activations import participation_ratio

ROWS_AT_ONCE = 4096


class MatrixEntropy:
    """The matrix entropy of the stream at one depth. Keeps width^2 numbers."""

    def __init__(self, width: int, device: torch.device):
        self._gram = torch.zeros(width, width, dtype=torch.float64, device=device)
        self._n_tokens = 0

    def add(self, states: Tensor) -> None:
        """Adds n tokens. states: (n, width)."""
        for rows in states.split(ROWS_AT_ONCE):
            # In fp64 throughout: a few huge coordinates are usual, and would drown the others in rounding.
            wide = rows.double()
            self._gram.addmm_(wide.T, wide)
            self._n_tokens += len(rows)

    def summary(self) -> dict[str, Any]:
        """rank: the largest that so many tokens of this width can have; entropy: -sum p log p over the logarithm of
        that; participation: (sum sigma^2)^2 / sum sigma^4. null where they are not defined.
        """
        width = len(self._gram)
        rank = min(self._n_tokens, width)
        energies = torch.linalg.eigvalsh(self._gram).clamp(min=0)
        is_defined = rank > 1 and energies.sum() > 0
        entropy = float(torch.special.entr(energies / energies.sum()).sum()) / math.log(rank) if is_defined else None
        return {"width": width, "rank": rank, "entropy": entropy, "participation": participation_ratio(energies)}


def valley(entropies: Sequence[float | None]) -> dict[str, Any] | None:
    """The compression valley: the depth between the first and the last with the lowest entropy, how far it lies below
    the highest before it (drop) and behind it (rise). None where it is not below both: there is none.

    entropies: of all depths from 0 on. Source: Skean et al. 2025, arXiv:2502.02013.
    """
    known = [(entropy, depth) for depth, entropy in enumerate(entropies) if entropy is not None]
    if len(known) < 3:
        return None
    entropy, depth = min(known[1:-1])
    before = max(value for value, at in known if at < depth)
    behind = max(value for value, at in known if at > depth)
    if entropy >= min(before, behind):
        return None
    return {"depth": depth, "entropy": entropy, "drop": before - entropy, "rise": behind - entropy}
