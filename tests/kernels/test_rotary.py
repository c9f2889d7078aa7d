"""Rotation of pairs against the reference, forwards and backwards."""

import torch
from differentiated import with_gradients
from thinned import in_turn

from widthwise.kernels.rotary import Rope, reference_rotate, rope_table, rotate

POSITIONS = {"shared": torch.arange(5)[None], "own": torch.tensor([[0, 1, 2, 0, 1], [3, 4, 5, 6, 7]])}


def case(positions, head_dim, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, head_dim, generator=generator).to(dtype).requires_grad_()
    return x, *rope_table(POSITIONS[positions], Rope(head_dim, 100.0))


@in_turn(
    ("positions", POSITIONS),
    ("head_dim", [2, 6, 34]),
    (("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 1e-6), (torch.bfloat16, 2**-7)]),
)
def test_fused_equals_reference(positions, head_dim, dtype, tolerance):
    arguments = case(positions, head_dim, dtype)
    ours, truth = (with_gradients(form, *arguments) for form in (rotate, reference_rotate))
    assert ours[0].dtype == dtype
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)
