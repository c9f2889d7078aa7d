"""A run whose process, or several, are killed ends bitwise as one that never was (kills.py compares)."""

import pytest
from kills import kill_at_random_moments
from thinned import hard_but

STORMS = {
    "one": (4, 8, 1, 1),
    "one, often": (70, 8, 1, 1),
    "two": (2, 7, 2, 2),
    "two, often": (20, 8, 2, 2),
    "two, saving in the background": (4, 9, 2, 1, "train.checkpoint_in_background=true"),
    "four": (3, 10, 4, 2),
}
"""How many kills, of which seed, of how many processes in how many shards."""


@pytest.mark.parametrize("storm", hard_but(["one"], STORMS))
def test_a_run_killed_at_random_moments_ends_bitwise_as_one_that_was_not(tmp_path, storm):
    assert kill_at_random_moments(tmp_path, *STORMS[storm]) >= STORMS[storm][0]
