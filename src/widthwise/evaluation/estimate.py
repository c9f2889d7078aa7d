"""What a sample says of a mean, a ratio or a perplexity, with its standard error."""

import math
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A number and its standard error, which is nan where fewer than two observations stand behind it."""

    value: float
    stderr: float

    def record(self) -> dict[str, float | None]:
        """As JSON knows numbers: null for what is not finite."""
        return {name: number if math.isfinite(number) else None for name, number in self._asdict().items()}

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.stderr * abs(factor))

    def exponential(self) -> "Estimate":
        """Of a mean negative log-likelihood in nats the perplexity; the error by the delta method. Too large: inf."""
        value = math.exp(self.value) if self.value < 700 else math.inf
        return Estimate(value, value * self.stderr)


def mean(values: np.ndarray) -> Estimate:
    """values: (n,), independent of each other."""
    values = np.asarray(values, dtype=np.float64)
    spread = values.std(ddof=1) if len(values) > 1 else math.nan
    return Estimate(float(values.mean()), float(spread / math.sqrt(len(values))))


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> Estimate:
    """sum(numerators) / sum(denominators) over independent blocks, both (n,).

    The standard error is that of the linearised ratio (Cochran 1977, Sampling Techniques, chapter 6): of equal
    blocks that of the mean of their ratios.
    """
    numerators, denominators = (np.asarray(part, dtype=np.float64) for part in (numerators, denominators))
    n, total = len(numerators), denominators.sum()
    if total == 0:
        return Estimate(math.nan, math.nan)
    value = numerators.sum() / total
    residuals = numerators - value * denominators
    scale = math.sqrt(n / (n - 1)) if n > 1 else math.nan
    return Estimate(float(value), float(scale * math.sqrt(np.square(residuals).sum()) / total))
