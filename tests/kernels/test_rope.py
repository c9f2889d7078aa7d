"""Rotary tables: the paper's angles."""

import math

import pytest
import torch

from widthwise.kernels.rotary import Rope, rope_table

POSITIONS = torch.tensor([[0, 1, 2, 7, 4095, 100_003], [3, 3, 0, 1, 50, 8]])
PLAIN = [Rope(2, 10000.0), Rope(10, 10000.0), Rope(64, 500.0), Rope(128, 1_000_000.0)]


@pytest.mark.parametrize("rope", PLAIN)
def test_the_table_holds_cosines_and_signed_sines_of_the_papers_angles_or_of_frequencies_written_out(rope):
    cos, sin = rope_table(POSITIONS, rope)
    half = rope.head_dim // 2
    assert cos.shape == sin.shape == (2, 6, 1, rope.head_dim)
    for row, place in [(0, 0), (0, 3), (0, 5), (1, 4)]:
        for i in range(half):
            angle = POSITIONS[row, place].item() * rope.base ** (-2 * i / rope.head_dim)
            for coordinate, sign in ((i, -1), (half + i, 1)):
                assert cos[row, place, 0, coordinate].item() == pytest.approx(math.cos(angle), abs=1e-7)
                assert sin[row, place, 0, coordinate].item() == pytest.approx(sign * math.sin(angle), abs=1e-7)
    written = Rope(rope.head_dim, base=3.0, frequencies=rope.pair_frequencies)
    assert written.pair_frequencies == rope.pair_frequencies
    assert all(torch.equal(a, b) for a, b in zip(rope_table(POSITIONS, written), (cos, sin), strict=True))


def test_a_head_m_times_as_large_has_the_old_angles_at_every_mth_pair():
    """To the bit, so that a grown head may keep its base."""
    for head_dim, m in ((2, 2), (8, 2), (16, 3), (64, 2)):
        old, new = (rope_table(POSITIONS, Rope(n * head_dim, 10000.0)) for n in (1, m))
        assert all(torch.equal(ours[..., ::m], truth) for ours, truth in zip(new, old, strict=True))
