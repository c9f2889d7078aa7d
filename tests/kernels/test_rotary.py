"""Rotation of pairs against the reference, forwards and backwards."""

import torch
from thinned import in_turn

from widthwise.kernels.rotary import Rope, reference_rotate, rope_table, rotate

POSITIONS = {"shared": torch.arange(5)[None], "own": torch.tensor([[0, 1, 2, 0, 1], [3, 4, 5, 6, 7]])}


def case(positions, head_dim, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, head_dim, generator=generator).to(dtype).requires_grad_()
    return x, *rope_table(POSITIONS[positions], Rope(head_dim, 100.0))


def result(op, x, cos, sin):
    out = op(x, cos, sin)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return out, *torch.autograd.grad(out, x, direction)


@in_turn(
    ("positions", POSITIONS),
    ("head_dim", [2, 6, 34]),
    (("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 1e-6), (torch.bfloat16, 2**-7)]),
)
def test_fused_equals_reference(positions, head_dim, dtype, tolerance):
    x, cos, sin = case(positions, head_dim, dtype)
    for ours, truth in zip(result(rotate, x, cos, sin), result(reference_rotate, x, cos, sin), strict=True):
        assert ours.dtype == truth.dtype == dtype
        torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)
