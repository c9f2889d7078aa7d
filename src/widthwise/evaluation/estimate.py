"""A mean, a ratio or a perplexity estimated from a sample, with its standard error."""

import math
from typing import NamedTuple

import numpy as np

FEWEST_BLOCKS = 10
"""Fewer blocks of text than this say too little about their spread for a standard error."""


class SampleEstimate(NamedTuple):
    """A number and its standard error, which is nan for fewer than two items or FEWEST_BLOCKS blocks."""

    value: float
    stderr: float

    def record(self) -> dict[str, float | None]:
        """The numbers for JSON, with null for what is not finite."""
        return {name: number if math.isfinite(number) else None for name, number in self._asdict().items()}

    def scaled(self, factor: float) -> "SampleEstimate":
        return SampleEstimate(self.value * factor, self.stderr * abs(factor))

    def exponential(self) -> "SampleEstimate":
        """The perplexity of a mean loss in nats, its error by the delta method; inf beyond the range of floats."""
        value = math.exp(self.value) if self.value < 700 else math.inf
        return SampleEstimate(value, value * self.stderr)


def mean(values: np.ndarray) -> SampleEstimate:
    """values: (n,), independent of each other."""
    values = np.asarray(values, dtype=np.float64)
    spread = values.std(ddof=1) if len(values) > 1 else math.nan
    return SampleEstimate(float(values.mean()), float(spread / math.sqrt(len(values))))


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> SampleEstimate:
    """sum(numerators) / sum(denominators) over independent blocks, both (n,).

    The standard error is that of the linearised ratio (Cochran 1977, Sampling Techniques, chapter 6); for blocks of
    equal size it is that of the mean of their ratios.
    """
    numerators, denominators = (np.asarray(part, dtype=np.float64) for part in (numerators, denominators))
    n, total = len(numerators), denominators.sum()
    if total == 0:
        return SampleEstimate(math.nan, math.nan)
    value = numerators.sum() / total
    residuals = numerators - value * denominators
    scale = math.sqrt(n / (n - 1)) if n >= FEWEST_BLOCKS else math.nan
    return SampleEstimate(float(value), float(scale * math.sqrt(np.square(residuals).sum()) / total))
