"""Experts, each of its own tokens, against the reference; what is kept, and what is counted."""

import pytest
import torch
from comparing import assert_forms_agree
from thinned import in_turn

from widthwise.kernels.grouped_swiglu import grouped_swiglu, reference_grouped_swiglu

SIZES = [  # n_tokens, d_model, d_expert, d_out, n_experts, top_k
    (13, 7, 5, 7, 4, 2),
    (1, 1, 1, 1, 1, 1),
    (5, 63, 154, 41, 3, 3),
    (10, 1, 8, 1, 5, 5),  # matrices of one column, whose two strides are 1
    (9, 8, 973, 16, 22, 3),  # most experts have a token or none
    (11, 16, 24, 32, 5, 1),
    (0, 5, 3, 5, 4, 2),
]


def inputs(n_tokens, d_model, d_expert, d_out, n_experts, top_k, dtype=torch.float64, weight_dtype=None):
    """x, chosen, weights and the three weight tensors; the values are of order 1 throughout."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, n_in=1):
        return (torch.randn(shape, generator=generator) / n_in**0.5).to(dtype).requires_grad_()

    chosen = torch.rand(n_tokens, n_experts, generator=generator).topk(top_k, dim=1).indices
    weights = torch.rand(n_tokens, top_k, generator=generator).to(weight_dtype or dtype).requires_grad_()
    w_gate, w_up = (normal(n_experts, d_expert, d_model, n_in=d_model) for _ in range(2))
    return normal(n_tokens, d_model), chosen, weights, w_gate, w_up, normal(n_experts, d_out, d_expert, n_in=d_expert)


@in_turn(
    ("sizes", SIZES),
    (
        ("dtype", "tolerance"),
        [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 5e-3)],
    ),
)
def test_fused_equals_reference(sizes, dtype, tolerance):
    arguments = inputs(*sizes, dtype, torch.promote_types(dtype, torch.float32))
    assert_forms_agree(grouped_swiglu, reference_grouped_swiglu, *arguments, rtol=tolerance)


@pytest.mark.parametrize("sizes", SIZES[:4:3])
def test_autocast_equals_reference_under_autocast(sizes):
    arguments = inputs(*sizes, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = assert_forms_agree(grouped_swiglu, reference_grouped_swiglu, *arguments, rtol=3e-2)
    assert out.dtype == torch.bfloat16
