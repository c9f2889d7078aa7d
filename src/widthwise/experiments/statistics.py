"""How much can be said from few seeds: paired differences and their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

N_RESAMPLES = 4000
FEWEST_SEEDS = 3
"""With fewer seeds a difference cannot be told from the luck of a seed, whatever the interval."""

TIE_MARGIN = 0.01
"""Nats per token; two losses that are surely closer than this count as equal."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its interval."""

    mean: float
    low: float
    high: float
    per_seed: list[float]


def seed_interval(per_seed: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Student's t interval of the mean over seeds; of one seed the interval is unbounded, given as nan.

    per_seed: one number a seed.
    """
    values = np.asarray(per_seed, dtype=np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, float("nan"), float("nan"), values.tolist())
    half_width = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1) * stats.sem(values))
    return Estimate(mean, mean - half_width, mean + half_width, values.tolist())


def paired_difference(variant: np.ndarray, baseline: np.ndarray, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Mean of variant - baseline; its interval is Student's t times a bootstrap standard error.

    variant, baseline: (n_seeds, n_windows) losses; the same row is the same seed and data order, the same column the
    same held-out text. Seeds and windows are drawn with replacement (a two-way, "pigeonhole" bootstrap: Owen 2007,
    arXiv:0712.1111). Few seeds understate the spread: it is widened by sqrt(n / (n - 1)), and t has n - 1 degrees of
    freedom; the quantiles of such a bootstrap itself would call one difference in five real that is luck. One seed
    gives no interval: its ends are nan.
    """
    differences = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    n_seeds, n_windows = differences.shape
    mean, per_seed = float(differences.mean()), differences.mean(axis=1).tolist()
    if n_seeds < 2:
        return Estimate(mean, float("nan"), float("nan"), per_seed)
    random = np.random.default_rng(seed)
    seed_weights = random.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=N_RESAMPLES) / n_seeds
    window_weights = random.multinomial(n_windows, np.full(n_windows, 1 / n_windows), size=N_RESAMPLES) / n_windows
    means = np.einsum("rs,sw,rw->r", seed_weights, differences, window_weights, optimize=True)
    standard_error = means.std() * np.sqrt(n_seeds / (n_seeds - 1))
    half_width = float(stats.t.ppf((1 + confidence) / 2, n_seeds - 1) * standard_error)
    return Estimate(mean, mean - half_width, mean + half_width, per_seed)


def verdict(difference: Estimate) -> str:
    """What a difference of losses says.

    "better" or "worse" where the interval leaves out 0; "tie" where it lies within TIE_MARGIN of 0; else, and always
    with fewer than FEWEST_SEEDS seeds, "cannot tell".
    """
    if len(difference.per_seed) < FEWEST_SEEDS:
        return "cannot tell"
    if difference.high < 0:
        return "better"
    if difference.low > 0:
        return "worse"
    return "tie" if max(-difference.low, difference.high) <= TIE_MARGIN else "cannot tell"
