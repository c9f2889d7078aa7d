"""Means, ratios and perplexities of samples with their standard errors, and intervals over few seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from widthwise.records.estimate import CONFIDENCE, FEWEST_SEEDS, TIE_MARGIN, Estimate, Verdict
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
        """Return the number with Student's t interval, whose ends are NaN if the standard error is NaN."""
        half_width = students_t(self.df, confidence) * self.stderr
        return Estimate(mean=self.value, low=self.value - half_width, high=self.value + half_width)

    def p_value(self) -> float:
        """Return the two-sided p of a t test for a true value of 0; NaN for a standard error of 0 or NaN."""
        if not self.stderr > 0:
            return math.nan
        from scipy.special import stdtr  # takes long to import

        return 2 * float(stdtr(min(self.df, 1e9), -abs(self.value) / self.stderr))

    def scaled(self, factor: float) -> "SampleEstimate":
        return SampleEstimate(self.value * factor, self.stderr * abs(factor), self.df)

    def exponential(self) -> "SampleEstimate":
        """Return the perplexity of a mean loss in nats, with its error by the delta method; inf on overflow."""
        value = math.exp(self.value) if self.value < 700 else math.inf
        return SampleEstimate(value, value * self.stderr, self.df)


def students_t(df: float, confidence: float = CONFIDENCE) -> float:
    """Return half the width of Student's t interval, in standard errors; NaN for 0 degrees of freedom."""
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


def mean_of_estimates(estimates: Sequence[SampleEstimate]) -> SampleEstimate:
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
    """Return the means over independent texts, taking their standard errors as exact; None for fewer than two texts."""
    if len(texts) < 2:
        return None

    def over_texts(metric: str) -> SampleEstimate:
        estimates = [SampleEstimate(finite(text[metric].value), finite(text[metric].stderr)) for text in texts]
        return mean_of_estimates(estimates)

    loss = over_texts("nats_per_token")
    means = {
        "mean_nats_per_token": loss,
        "exp_mean_nats_per_token": loss.exponential(),
        "mean_token_perplexity": over_texts("token_perplexity"),
        "mean_bits_per_byte": over_texts("bits_per_byte"),
    }
    return TextMeans(metrics=scores(means))


def seed_interval(per_seed: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean over seeds with Student's t interval; one seed gives no interval (None).

    per_seed: one number per seed.
    """
    values = np.asarray(per_seed, dtype=np.float64)
    return mean(values).with_interval(confidence).with_changes(per_seed=values.tolist())


def paired_mean(differences: np.ndarray, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of differences of losses, or of linear combinations of losses, with Student's t interval.

    differences: (n_seeds, n_windows); a row is one seed and data order, a column one held-out text. The variance of the
    mean has two parts: the variance between the means of seeds, and the variance between the means of windows without
    their noise, which the first part includes (a two-way layout with random rows and columns). One seed gives no
    interval.
    """
    n_seeds, n_windows = differences.shape
    seed_means = differences.mean(axis=1)
    window_means = differences.mean(axis=0)
    seeds = mean(seed_means)
    text = mean(window_means)
    noise = np.square(differences - seed_means[:, None] - window_means + seeds.value).sum()
    noise /= max((n_seeds - 1) * (n_windows - 1), 1) * differences.size
    text_variance = max(0.0, text.stderr**2 - noise)  # 0 for a single window, whose standard error is NaN
    parts = [(seeds.stderr**2, seeds.df), (text_variance, text.df)]
    variance = sum(part for part, _ in parts)
    # The degrees of freedom are the harmonic mean, weighted by variance. Welch and Satterthwaite square the weights,
    # which treats estimated variances as exact: with three seeds their intervals cover as little as 92 percent
    # (`test_estimate.py`), these 94 to 97.
    uncertainty = sum(part / max(df, 1) for part, df in parts)
    df = variance / uncertainty if uncertainty else math.inf
    interval = SampleEstimate(seeds.value, variance**0.5, df).with_interval(confidence)
    return interval.with_changes(per_seed=seed_means.tolist(), df=df)


def verdict(difference: Estimate) -> Verdict:
    """Return the verdict on a difference of losses.

    "better" or "worse" if the interval excludes 0; "tie" if it is within TIE_MARGIN of 0; otherwise "cannot tell".
    With fewer than FEWEST_SEEDS seeds, "no verdict".
    """
    if len(difference.per_seed) < FEWEST_SEEDS:
        return "no verdict"
    if difference.low is None or difference.high is None:
        return "cannot tell"
    if difference.high < 0:
        return "better"
    if difference.low > 0:
        return "worse"
    return "tie" if max(-difference.low, difference.high) <= TIE_MARGIN else "cannot tell"
