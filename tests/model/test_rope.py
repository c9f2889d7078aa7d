import math

import pytest
import torch

from widthwise.kernels import rotate
from widthwise.model.rope import Rope, rope_table

POSITIONS = torch.tensor([[0, 1, 2, 7, 4095, 100_003], [3, 3, 0, 1, 50, 8]])
PLAIN = [Rope(2, 10000.0), Rope(10, 10000.0), Rope(64, 500.0), Rope(128, 1_000_000.0)]


@pytest.mark.parametrize("rope", PLAIN)
def test_the_table_holds_cosines_and_signed_sines_of_the_papers_angles(rope):
    cos, sin = rope_table(POSITIONS, rope)
    half = rope.head_dim // 2
    assert cos.shape == sin.shape == (2, 6, 1, rope.head_dim)
    for row, place in [(0, 0), (0, 3), (0, 5), (1, 4)]:
        for i in range(half):
            angle = POSITIONS[row, place].item() * rope.base ** (-2 * i / rope.head_dim)
            for coordinate, sign in ((i, -1), (half + i, 1)):
                assert cos[row, place, 0, coordinate].item() == pytest.approx(math.cos(angle), abs=1e-7)
                assert sin[row, place, 0, coordinate].item() == pytest.approx(sign * math.sin(angle), abs=1e-7)


@pytest.mark.parametrize("rope", PLAIN)
def test_frequencies_written_out_give_the_table_of_their_base_to_the_bit(rope):
    written = Rope(rope.head_dim, base=3.0, frequencies=rope.pair_frequencies)
    assert written.pair_frequencies == rope.pair_frequencies
    for ours, truth in zip(rope_table(POSITIONS, written), rope_table(POSITIONS, rope), strict=True):
        assert torch.equal(ours, truth)


@pytest.mark.parametrize(("head_dim", "m"), [(2, 2), (8, 2), (16, 3), (64, 2)])
def test_a_head_m_times_as_large_has_the_old_angles_at_every_mth_pair(head_dim, m):
    """To the bit, so that a grown head may keep its base."""
    old = rope_table(POSITIONS, Rope(head_dim, 10000.0))
    new = rope_table(POSITIONS, Rope(m * head_dim, 10000.0))
    for ours, truth in zip(new, old, strict=True):
        assert torch.equal(ours[..., ::m], truth)


def test_how_heads_turn_can_be_a_key():
    ropes = {Rope(4, 100.0): "base", Rope(4, 100.0, (1.0, 0.1)): "written"}
    assert ropes[Rope(4, 100.0)] == "base"
    assert ropes[Rope(4, 100.0, (1.0, 0.1))] == "written"


def test_scores_depend_on_the_distance_alone():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(6, generator=generator, dtype=torch.float64).expand(1, 9, 1, 6) for _ in range(2))
    cos, sin = rope_table(torch.arange(9)[None], Rope(6, 10.0, (1.3, 0.4, 0.03)))
    scores = torch.einsum("bthd,bshd->ts", rotate(query, cos, sin), rotate(key, cos, sin))
    for distance in range(-8, 9):
        same = scores.diagonal(distance)
        torch.testing.assert_close(same, same[:1].expand_as(same), rtol=1e-6, atol=1e-6)
    assert scores.std() > 0.1
