import numpy as np
import pytest
import torch
from profiled_models import spectrum

from widthwise.analysis.matrix_entropy import MatrixEntropy, valley


def entropy_of(states: np.ndarray, width: int) -> dict:
    found = MatrixEntropy(width, torch.device("cpu"))
    for rows in np.array_split(states, 3):
        found.add(torch.from_numpy(rows))
    return found.summary()


@pytest.mark.parametrize(("n", "width"), [(50, 7), (7, 50), (9, 9)])
def test_the_gram_matrix_gives_what_the_singular_values_give(n, width):
    states = np.random.default_rng(0).normal(size=(n, width)) ** 3 + 1
    assert entropy_of(states, width) == pytest.approx(spectrum(states), abs=1e-9)


def test_small_directions_count_beside_a_huge_one_in_single_precision():
    states = np.random.default_rng(0).normal(size=(60, 11)).astype(np.float32)
    states[:, 3] *= 3000
    assert entropy_of(states, 11) == pytest.approx(spectrum(states.astype(np.float64)), rel=1e-6)


def test_directions_of_equal_size_have_entropy_1_and_a_single_one_0():
    assert entropy_of(3.0 * np.eye(8)[[0, 1, 2, 3, 4, 5, 6, 7] * 3], 8) == pytest.approx(
        {"width": 8, "rank": 8, "entropy": 1.0, "participation": 8.0}
    )
    assert entropy_of(np.outer([1.0, -2.0, 3.0, 4.0], [2.0, 0.0, 1.0]), 3) == pytest.approx(
        {"width": 3, "rank": 3, "entropy": 0.0, "participation": 1.0}, abs=1e-12
    )


def test_no_states_and_no_choice_have_no_entropy():
    assert entropy_of(np.zeros((5, 4)), 4) == {"width": 4, "rank": 4, "entropy": None, "participation": None}
    assert entropy_of(np.ones((1, 4)), 4) == {"width": 4, "rank": 1, "entropy": None, "participation": 1.0}


@pytest.mark.parametrize(
    ("entropies", "expected"),
    [
        ([0.9, 0.5, 0.3, 0.7], (2, 0.3, 0.6, 0.4)),
        ([0.4, 0.8, 0.5, 0.6], (2, 0.5, 0.3, 0.1)),
        ([0.9, 0.5, 0.3, 0.1], None),
        ([0.1, 0.2, 0.3, 0.4], None),
        ([0.5, 0.5, 0.5], None),
        ([0.5, 0.2], None),
        ([None, 0.5, 0.2, 0.4], (2, 0.2, 0.3, 0.2)),
    ],
)
def test_a_valley_lies_below_a_depth_before_it_and_one_behind(entropies, expected):
    found = valley(entropies)
    assert found == (
        None
        if expected is None
        else pytest.approx(dict(zip(("depth", "entropy", "drop", "rise"), expected)), abs=1e-12)
    )
