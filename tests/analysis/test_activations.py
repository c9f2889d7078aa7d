import numpy as np
import pytest
import torch
from profiled_models import unit_statistics

from widthwise.analysis.activations import ActivationMeter

THRESHOLDS = (0.0, 0.1, 1.0)


def meter_of(*pieces: np.ndarray) -> dict:
    meter = ActivationMeter(THRESHOLDS, utilisation_threshold=0.1)
    for piece in pieces:
        meter.add(torch.from_numpy(piece))
    return meter.summary()


def test_an_activation_counts_by_its_size_and_only_above_the_threshold():
    found = meter_of(np.array([[0.1, -0.2], [-2.0, 0.05]]))
    assert found["density"] == [1.0, 0.5, 0.25]
    assert found["utilisation"] == [0.5, 0.5]


def test_units_that_no_token_uses_are_dead():
    activations = np.array([[0.5, 0.01, 0.0], [0.0, 0.09, 0.0], [0.4, 0.0, 0.0]])
    assert meter_of(activations)["dead_share"] == pytest.approx(2 / 3)
    assert meter_of(activations, np.array([[0.0, 0.3, 0.0]]))["dead_share"] == pytest.approx(1 / 3)


def test_participation_is_the_number_of_units_that_share_the_energy_evenly():
    found = meter_of(np.array([[3.0, 0.0, -3.0, 0.0], [0.0, 3.0, 0.0, 0.0]]))
    assert (found["participation"], found["participation_share"]) == pytest.approx((3.0, 0.75))
    silent = meter_of(np.zeros((2, 4)))
    assert (silent["participation"], silent["participation_share"], silent["dead_share"]) == (None, None, 1.0)


def test_pieces_give_what_the_whole_gives():
    activations = np.random.default_rng(0).normal(size=(23, 5))
    expected = unit_statistics(activations, THRESHOLDS, 0.1)
    for found in (meter_of(activations), meter_of(*np.split(activations, (2, 9)))):
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, abs=1e-12)
