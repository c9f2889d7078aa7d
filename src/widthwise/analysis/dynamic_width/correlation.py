"""Correlations of per-token numbers, with intervals that respect that the tokens of a window belong together."""

from typing import Any

import numpy as np

from widthwise.records.estimate import CONFIDENCE

N_RESAMPLES = 1000


def correlations(x: np.ndarray, y: np.ndarray, smallest_sd: float = 0.0) -> dict[str, Any] | None:
    """Spearman's correlation with the ends of its interval, and Pearson's: keys spearman, low, high, pearson.

    x, y: (n_windows, seq_len). None where one of them does not vary, x where its standard deviation is at most
    `smallest_sd`. The interval is the 95% percentile interval of a bootstrap over windows; the ranks stay those of
    the whole sample. One window gives no interval: its ends are None.
    """
    if x.std() <= smallest_sd or np.ptp(y) == 0:
        return None
    from scipy import stats  # slow to import, and training asks whether there is something to analyse

    ranks = [stats.rankdata(values).reshape(values.shape) for values in (x, y)]
    moments = _moments(*ranks)
    low, high = _interval(moments) if len(moments) > 1 else (None, None)
    return {
        "spearman": float(_correlation(moments.sum(axis=0))),
        "low": low,
        "high": high,
        "pearson": float(_correlation(_moments(x, y).sum(axis=0))),
    }


def _moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n_windows, 6): sums over each window of 1, x, y, x^2, y^2 and x y, centred over the sample."""
    x, y = x - x.mean(), y - y.mean()
    return np.stack([each.sum(axis=1) for each in (np.ones_like(x), x, y, x * x, y * y, x * y)], axis=1)


def _correlation(moments: np.ndarray) -> np.ndarray:
    """(..., 6) sums -> (...) correlations; nan where something does not vary."""
    n, x, y, xx, yy, xy = np.moveaxis(moments, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))


def _interval(moments: np.ndarray) -> tuple[float, float]:
    n_windows = len(moments)
    random = np.random.default_rng(0)
    weights = random.multinomial(n_windows, np.full(n_windows, 1 / n_windows), size=N_RESAMPLES)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(_correlation(weights @ moments), [tail, 100 - tail])
    return float(low), float(high)
