import numpy as np
import pytest

from widthwise.analysis.dynamic_width.correlation import correlations


def planted(slope, n_windows=60, seq_len=50, seed=0):
    """Two series with correlation slope / sqrt(1 + slope^2), most of the noise shared within a window."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n_windows, seq_len)) + random.normal(size=(n_windows, 1))
    noise = random.normal(size=(n_windows, seq_len)) + random.normal(size=(n_windows, 1))
    return x, slope * x + noise


def test_a_planted_correlation_is_found_and_its_interval_holds_it():
    for seed in range(5):
        found = correlations(*planted(0.75, seed=seed))
        assert found["low"] < found["spearman"] < found["high"]
        truth = 0.6  # Pearson; a normal's Spearman is 6 / pi * arcsin(r / 2)
        assert found["pearson"] == pytest.approx(truth, abs=0.1)
        assert found["low"] - 0.02 < 6 / np.pi * np.arcsin(truth / 2) < found["high"] + 0.02


def test_ranks_make_spearman_blind_to_a_monotone_map_and_ties_count_half():
    x, _ = planted(0.0)
    found = correlations(x, np.exp(5 * x))
    assert found["spearman"] == pytest.approx(1)
    assert found["pearson"] < 0.5
    assert correlations(np.array([[1.0, 1.0, 2.0, 3.0]]), np.array([[1.0, 2.0, 3.0, 4.0]]))[
        "spearman"
    ] == pytest.approx(np.corrcoef([1.5, 1.5, 3, 4], [1, 2, 3, 4])[0, 1])


def test_shared_noise_within_windows_widens_the_interval():
    x, y = planted(0.0)
    shuffled = np.random.default_rng(1).permutation(x.size)
    alone = correlations(x.ravel()[shuffled].reshape(x.shape), y.ravel()[shuffled].reshape(x.shape))
    together = correlations(x, y)
    assert together["high"] - together["low"] > 2 * (alone["high"] - alone["low"])


def test_no_variance_is_no_correlation_and_one_window_no_interval():
    x, y = planted(1.0, n_windows=1)
    assert correlations(x, np.ones_like(y)) is None
    assert correlations(0.5 + 1e-9 * x, y, smallest_sd=1e-6) is None
    assert (correlations(x, y)["low"], correlations(x, y)["high"]) == (None, None)
