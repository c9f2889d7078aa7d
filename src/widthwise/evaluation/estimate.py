"""A mean, a ratio or a perplexity estimated from a sample, with its standard error; and means over several texts."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from widthwise.records.estimate import CONFIDENCE, Estimate
from widthwise.records.evaluation import Score, Scores, TextMeans
from widthwise.records.record import finite

FEWEST_BLOCKS = 10
"""Smallest number of blocks of text for a standard error."""


class SampleEstimate(NamedTuple):
    """A number and its standard error; NaN for fewer than two items or FEWEST_BLOCKS blocks."""

    value: float
    stderr: float
    df: float = math.inf
    """Degrees of freedom of the standard error."""

    def with_interval(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the number with Student's t interval, whose ends are NaN if the standard error is."""
        half_width = students_t(self.df, confidence) * self.stderr
        return Estimate(mean=self.value, low=self.value - half_width, high=self.value + half_width)

    def p_value(self) -> float:
        """Return the two-sided p of Student's t against a true value of 0; NaN for a standard error of 0 or NaN."""
        if not self.stderr > 0:
            return math.nan
        from scipy.special import stdtr  # takes long to import

        return 2 * float(stdtr(min(self.df, 1e9), -abs(self.value) / self.stderr))

    def scaled(self, factor: float) -> "SampleEstimate":
        return SampleEstimate(self.value * factor, self.stderr * abs(factor), self.df)

    def exponential(self) -> "SampleEstimate":
        """Return the perplexity of a mean loss in nats, its error by the delta method; inf if too large."""
        value = math.exp(self.value) if self.value < 700 else math.inf
        return SampleEstimate(value, value * self.stderr, self.df)


def students_t(df: float, confidence: float = CONFIDENCE) -> float:
    """Return the half width of Student's t interval in standard errors; NaN for 0 degrees of freedom."""
    from scipy.special import stdtrit  # takes long to import

    return float(stdtrit(min(df, 1e9), (1 + confidence) / 2))


def scores(estimates: Mapping[str, SampleEstimate]) -> Scores:
    """Return the records of named estimates, without the degrees of freedom."""
    return {name: Score(value=estimate.value, stderr=estimate.stderr) for name, estimate in estimates.items()}


def mean(values: np.ndarray) -> SampleEstimate:
    """Estimate the mean of n independent values, (n,)."""
    values = np.asarray(values, dtype=np.float64)
    spread = values.std(ddof=1) if len(values) > 1 else math.nan
    return SampleEstimate(float(values.mean()), float(spread / math.sqrt(len(values))), len(values) - 1)


def mean_of(estimates: Sequence[SampleEstimate]) -> SampleEstimate:
    """Return the mean of independent estimates.

    The degrees of freedom follow Welch and Satterthwaite (Satterthwaite 1946, Biometrics Bulletin 2).
    """
    share = 1 / len(estimates)
    variances = [(share * estimate.stderr) ** 2 for estimate in estimates]
    variance = sum(variances)
    uncertainty = sum(part**2 / max(estimate.df, 1) for part, estimate in zip(variances, estimates))
    return SampleEstimate(
        sum(share * estimate.value for estimate in estimates),
        math.sqrt(variance),
        variance**2 / uncertainty if uncertainty else math.inf,
    )


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> SampleEstimate:
    """Return sum(numerators) / sum(denominators) over independent blocks, both (n,).

    The standard error is of the linearised ratio (Cochran 1977, Sampling Techniques, chapter 6); for blocks of equal
    size it is the error of the mean of their ratios.
    """
    numerators, denominators = (np.asarray(part, dtype=np.float64) for part in (numerators, denominators))
    n = len(numerators)
    total = denominators.sum()
    if total == 0:
        return SampleEstimate(math.nan, math.nan)
    value = numerators.sum() / total
    residuals = numerators - value * denominators
    scale = math.sqrt(n / (n - 1)) if n >= FEWEST_BLOCKS else math.nan
    return SampleEstimate(float(value), float(scale * math.sqrt(np.square(residuals).sum()) / total), n - 1)


def text_means(texts: Sequence[Scores]) -> TextMeans | None:
    """Return the means over independent texts, whose standard errors count as exact; None for fewer than two texts."""
    if len(texts) < 2:
        return None

    def over_texts(metric: str) -> SampleEstimate:
        return mean_of([SampleEstimate(finite(text[metric].value), finite(text[metric].stderr)) for text in texts])

    loss = over_texts("nats_per_token")
    means = {
        "mean_nats_per_token": loss,
        "exp_mean_nats_per_token": loss.exponential(),
        "mean_token_perplexity": over_texts("token_perplexity"),
        "mean_bits_per_byte": over_texts("bits_per_byte"),
    }
    return TextMeans(metrics=scores(means))
