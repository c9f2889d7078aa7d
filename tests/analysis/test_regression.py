import numpy as np

from widthwise.analysis.dynamic_width.regression import STRENGTHS, fitted


def test_what_is_linear_is_found_again():
    random = np.random.default_rng(2)
    x, weights = random.normal(size=(90, 5)), random.normal(size=(5, 3))
    found = fitted(x, x @ weights + [1.0, -2.0, 0.5])
    points = random.normal(size=(2, 7, 5))
    np.testing.assert_allclose(found(points), points @ weights + [1.0, -2.0, 0.5], rtol=1e-3, atol=1e-3)


def test_the_penalty_is_the_one_that_generalises_best():
    """By the definition: every penalty is tried, in a ridge regression with its hat matrix written out."""
    random = np.random.default_rng(3)
    x, y = random.normal(size=(30, 6)) * [9, 4, 2, 1, 1, 1], random.normal(size=(30, 2))
    y[:, 0] += x[:, 0] / 8
    centred, aims = x - x.mean(axis=0), y - y.mean(axis=0)
    gram = centred.T @ centred
    errors, predictions = [], []
    for strength in STRENGTHS:
        penalty = strength * np.trace(gram) / 6 * np.eye(6)
        hat = centred @ np.linalg.solve(gram + penalty, centred.T) + 1 / 30
        errors.append(((y - hat @ y) ** 2).sum() / (30 - np.trace(hat)) ** 2)
        predictions.append(centred @ np.linalg.solve(gram + penalty, centred.T @ aims) + y.mean(axis=0))
    np.testing.assert_allclose(fitted(x, y)(x), predictions[int(np.argmin(errors))], rtol=1e-9, atol=1e-12)


def test_a_feature_that_never_varies_counts_for_nothing():
    random = np.random.default_rng(4)
    x, y = random.normal(size=(20, 3)), random.normal(size=(20, 1))
    x[:, 1] = 2.0
    moved = x + np.array([0.0, 5.0, 0.0])
    np.testing.assert_allclose(fitted(x, y)(moved), fitted(x, y)(x), rtol=1e-9, atol=1e-9)
