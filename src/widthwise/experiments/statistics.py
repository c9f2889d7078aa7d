"""Statistics for few seeds: paired differences and their intervals."""

from collections.abc import Sequence

import numpy as np

from widthwise.evaluation.estimate import students_t
from widthwise.records.estimate import CONFIDENCE, FEWEST_SEEDS, TIE_MARGIN, Estimate, Verdict

N_RESAMPLES = 4000


def seed_interval(per_seed: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Student's t interval of the mean over seeds; one seed gives no interval (None).

    per_seed: one number per seed.
    """
    values = np.asarray(per_seed, dtype=np.float64)
    standard_error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return _interval(float(values.mean()), standard_error, values.tolist(), confidence)


def _interval(mean: float, standard_error: float, per_seed: list[float], confidence: float) -> Estimate:
    """Student's t interval with n_seeds - 1 degrees of freedom; no interval if the standard error is nan."""
    half_width = float(students_t(len(per_seed) - 1, confidence) * standard_error)
    return Estimate(mean=mean, low=mean - half_width, high=mean + half_width, per_seed=per_seed)


def paired_difference(
    variant: np.ndarray, baseline: np.ndarray, confidence: float = CONFIDENCE, seed: int = 0
) -> Estimate:
    """Mean of variant - baseline, as `paired_mean` estimates it. Both: (n_seeds, n_windows) losses, paired alike."""
    differences = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    return paired_mean(differences, confidence, seed)


def paired_mean(differences: np.ndarray, confidence: float = CONFIDENCE, seed: int = 0) -> Estimate:
    """Mean of differences of losses, or of other sums of them; its interval is Student's t times a bootstrap standard
    error.

    differences: (n_seeds, n_windows); the same row is the same seed and data order, the same column the same held-out
    text. Seeds and windows are drawn with replacement (a two-way, "pigeonhole" bootstrap: Owen 2007, arXiv:0712.1111).
    Few seeds understate the spread: it is widened by sqrt(n / (n - 1)), and t has n - 1 degrees of freedom; the
    quantiles of such a bootstrap itself would call one difference in five real that is luck. One seed gives no
    interval.
    """
    n_seeds, n_windows = differences.shape
    random = np.random.default_rng(seed)
    seed_weights = random.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=N_RESAMPLES) / n_seeds
    window_weights = random.multinomial(n_windows, np.full(n_windows, 1 / n_windows), size=N_RESAMPLES) / n_windows
    means = np.einsum("rs,sw,rw->r", seed_weights, differences, window_weights, optimize=True)
    standard_error = means.std() * np.sqrt(n_seeds / (n_seeds - 1)) if n_seeds > 1 else float("nan")
    return _interval(float(differences.mean()), standard_error, differences.mean(axis=1).tolist(), confidence)


def verdict(difference: Estimate) -> Verdict:
    """The verdict on a difference of losses.

    "better" or "worse" if the interval excludes 0; "tie" if it lies within TIE_MARGIN of 0; otherwise "cannot tell".
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
