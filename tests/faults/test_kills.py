"""A run of several processes that are killed ends bitwise as one that never was (kills.py compares)."""

import pytest
from kills import kill_at_random_moments


@pytest.mark.slow
def test_two_processes_killed_at_13_random_moments(tmp_path):
    assert kill_at_random_moments(tmp_path, 13, seed=8) >= 13


@pytest.mark.slow
def test_two_processes_that_save_in_the_background_killed_at_4_random_moments(tmp_path):
    in_background = "train.checkpoint_in_background=true"
    assert kill_at_random_moments(tmp_path, 4, 9, 2, 1, in_background) >= 4


@pytest.mark.slow
def test_four_processes_killed_at_3_random_moments(tmp_path):
    assert kill_at_random_moments(tmp_path, 3, 10, 4, 2) >= 3
