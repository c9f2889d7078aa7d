"""Linear regression with a penalty that the data choose."""

from collections.abc import Callable

import numpy as np

STRENGTHS = 10.0 ** np.arange(-4, 5)
"""Penalties to choose from, over the mean squared singular value."""


def fitted(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A linear function of x plus a constant, of least squared error and the penalty that generalises best.

    x: (n, d), y: (n, k); the function maps (..., d) to (..., k). The strength minimises generalised cross-validation,
    n sum((y - prediction)^2) / (n - effective parameters)^2; Golub, Heath and Wahba 1979.
    """
    n, x_mean, y_mean = len(x), x.mean(axis=0), y.mean(axis=0)
    left, values, right = np.linalg.svd(x - x_mean, full_matrices=False)
    squares, along = values**2, left.T @ (y - y_mean)
    outside = ((y - y_mean) ** 2).sum() - (along**2).sum()

    def error(kept: np.ndarray) -> float:
        left_over = outside + (((1 - kept[:, None]) * along) ** 2).sum()
        return left_over / max(n - 1 - kept.sum(), 1e-9) ** 2

    candidates = [squares / (squares + strength * squares.mean()) for strength in STRENGTHS]
    kept = min(candidates, key=error)
    inverse = np.divide(kept, values, out=np.zeros_like(values), where=values > 0)
    weights = right.T @ (inverse[:, None] * along)
    return lambda points: (points - x_mean) @ weights + y_mean
