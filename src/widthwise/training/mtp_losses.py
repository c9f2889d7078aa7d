"""Losses of multi-token prediction in records and results."""

from collections.abc import Sequence

import torch
from torch import Tensor


class MTPLosses:
    """Mean losses of the depths over forward passes. They stay on the device until they are read."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._counts: list[int] = []

    def add(self, losses: Sequence[Tensor]) -> None:
        """Takes in a pass; see `model.decoder.Loss.mtp_losses`."""
        if not self._sums:
            self._sums = [torch.zeros((), dtype=torch.float64, device=found.device) for found in losses]
            self._counts = [0] * len(losses)
        for k, found in enumerate(losses):
            self._sums[k] = self._sums[k] + found.sum(dtype=torch.float64)
            self._counts[k] += found.numel()

    @property
    def sums(self) -> list[Tensor]:
        """The sum of each depth."""
        return self._sums

    def over(self, n_processes: int, sums: Sequence[Tensor]) -> "MTPLosses":
        """The losses over so many processes. sums: `sums`, each summed over the processes."""
        losses = MTPLosses()
        losses._sums, losses._counts = list(sums), [n * n_processes for n in self._counts]
        return losses

    def means(self) -> list[float]:
        """Nats per token of each depth, over the positions it was asked at; empty without such heads."""
        return [float(total) / count for total, count in zip(self._sums, self._counts)]

    def record(self) -> dict[str, list[float]]:
        """Key -> means, for a record; empty without such heads."""
        return {"mtp_losses": self.means()} if self._sums else {}
