"""Rotary tables are the paper's angles; pairs are rotated as by the reference, forwards and backwards."""

import math

import pytest
import torch
from comparing import assert_forms_agree, random
from thinned import in_turn

from widthwise.kernels.rotary import Rope, reference_rotate, rope_table, rotate

FAR = torch.tensor([[0, 1, 2, 7, 4095, 100_003], [3, 3, 0, 1, 50, 8]])
POSITIONS = {"shared": torch.arange(5)[None], "own": torch.tensor([[0, 1, 2, 0, 1], [3, 4, 5, 6, 7]])}


@pytest.mark.parametrize("rope", [Rope(2, 10000.0), Rope(10, 10000.0), Rope(64, 500.0), Rope(128, 1_000_000.0)])
def test_the_table_holds_cosines_and_signed_sines_of_the_papers_angles_or_of_frequencies_written_out(rope):
    cos, sin = rope_table(FAR, rope)
    half = rope.head_dim // 2
    assert cos.shape == sin.shape == (2, 6, 1, rope.head_dim)
    for row, place in [(0, 0), (0, 3), (0, 5), (1, 4)]:
        for i in range(half):
            angle = FAR[row, place].item() * rope.base ** (-2 * i / rope.head_dim)
            for coordinate, sign in ((i, -1), (half + i, 1)):
                assert cos[row, place, 0, coordinate].item() == pytest.approx(math.cos(angle), abs=1e-7)
                assert sin[row, place, 0, coordinate].item() == pytest.approx(sign * math.sin(angle), abs=1e-7)
    written = Rope(rope.head_dim, base=3.0, frequencies=rope.pair_frequencies)
    assert written.pair_frequencies == rope.pair_frequencies
    assert all(torch.equal(a, b) for a, b in zip(rope_table(FAR, written), (cos, sin), strict=True))


def test_a_head_m_times_as_large_has_the_old_angles_at_every_mth_pair():
    """To the bit, so that a grown head may keep its base."""
    for head_dim, m in ((2, 2), (8, 2), (16, 3), (64, 2)):
        old, new = (rope_table(FAR, Rope(n * head_dim, 10000.0)) for n in (1, m))
        assert all(torch.equal(ours[..., ::m], truth) for ours, truth in zip(new, old, strict=True))


@in_turn(
    ("positions", POSITIONS.values()),
    ("head_dim", [2, 6, 34]),
    (("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 1e-6), (torch.bfloat16, 2**-7)]),
)
def test_fused_equals_reference(positions, head_dim, dtype, tolerance):
    x = random(2, 5, 3, head_dim, dtype=dtype).requires_grad_()
    table = rope_table(positions, Rope(head_dim, 100.0))
    assert assert_forms_agree(rotate, reference_rotate, x, *table, rtol=tolerance).dtype == dtype
