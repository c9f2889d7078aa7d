"""How much can be said from few seeds: paired differences and their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

N_RESAMPLES = 4000
FEWEST_SEEDS = 3
"""With fewer seeds a difference cannot be told from the luck of a seed, whatever the interval."""


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
    """Mean of variant - baseline with a bootstrap interval over seeds and held-out windows together.

    variant, baseline: (n_seeds, n_windows) losses; the same row is the same seed and data order, the same column the
    same held-out text. Seeds and windows are drawn with replacement (a two-way, "pigeonhole" bootstrap: Owen 2007,
    arXiv:0712.1111), and the spread is widened by sqrt(n / (n - 1)) for the seeds, which a bootstrap of few values
    otherwise understates.
    """
    differences = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    n_seeds, n_windows = differences.shape
    mean = float(differences.mean())
    random = np.random.default_rng(seed)
    seed_weights = random.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=N_RESAMPLES) / n_seeds
    window_weights = random.multinomial(n_windows, np.full(n_windows, 1 / n_windows), size=N_RESAMPLES) / n_windows
    means = np.einsum("rs,sw,rw->r", seed_weights, differences, window_weights, optimize=True)
    widening = np.sqrt(n_seeds / (n_seeds - 1)) if n_seeds > 1 else 1.0
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(
        mean,
        float(mean + (low - mean) * widening),
        float(mean + (high - mean) * widening),
        differences.mean(axis=1).tolist(),
    )


def verdict(difference: Estimate) -> str:
    """What a difference of losses says: "better", "worse", "tie" (the interval holds 0), or "cannot tell"."""
    if len(difference.per_seed) < FEWEST_SEEDS:
        return "cannot tell"
    if difference.low <= 0 <= difference.high:
        return "tie"
    return "better" if difference.high < 0 else "worse"
