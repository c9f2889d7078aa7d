"""Running means and variances."""

import torch
from torch import Tensor


class Moments:
    """Running mean and variance of many quantities at once, in fp64 and constant memory."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = torch.zeros((), dtype=torch.float64)
        self._squares = torch.zeros((), dtype=torch.float64)

    @property
    def variance(self) -> Tensor:
        """Mean squared distance from the mean."""
        return self._squares / self.n

    def add(self, values: Tensor) -> None:
        """values: (n, ...), the same quantities every time."""
        values = values.double()
        n, mean = len(values), values.mean(dim=0)
        n_all, shift = self.n + n, mean - self.mean
        # Means and squared distances merge without the cancellation of a sum of squares (Chan, Golub, LeVeque 1979).
        self._squares = self._squares + (values - mean).square().sum(dim=0) + shift.square() * (self.n * n / n_all)
        self.mean = self.mean + shift * (n / n_all)
        self.n = n_all
