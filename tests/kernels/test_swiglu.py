"""The gate of a SwiGLU, and experts, each of its own tokens, against the reference."""

import pytest
import torch
from comparing import assert_forms_agree, random
from thinned import every_pair, in_turn

from widthwise.kernels.swiglu import grouped_swiglu, reference_grouped_swiglu, reference_swiglu, swiglu


def pair(shape, dtype, scale=1.0):
    return [(scale * random(*shape, seed=seed)).to(dtype).requires_grad_() for seed in (0, 1)]


@every_pair(
    ("shape", [(1,), (63,), (3, 97), (2, 5, 33), (0, 4)]),
    ("scale", [1.0, 30.0]),
    (("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)]),
)
def test_the_gate_equals_the_reference(shape, scale, dtype, tolerance):
    arguments = pair(shape, dtype, scale)
    out = assert_forms_agree(swiglu, reference_swiglu, *arguments, rtol=tolerance, atol=tolerance * scale)
    assert out.dtype == dtype


def test_double_backward_fails_loudly():
    gate, up = pair((3, 7), torch.float64)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(swiglu(gate, up).sum(), gate, create_graph=True)


SIZES = [  # n_tokens, d_model, d_expert, d_out, n_experts, top_k
    (13, 7, 5, 7, 4, 2),
    (1, 1, 1, 1, 1, 1),
    (5, 63, 154, 41, 3, 3),
    (10, 1, 8, 1, 5, 5),  # matrices of one column, whose two strides are 1
    (9, 8, 973, 16, 22, 3),  # most experts have a token or none
    (11, 16, 24, 32, 5, 1),
    (0, 5, 3, 5, 4, 2),
]


def experts(n_tokens, d_model, d_expert, d_out, n_experts, top_k, dtype, weight_dtype):
    """x, chosen, weights and the three weight tensors; the values are of order 1 throughout."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, n_in=1):
        return (torch.randn(shape, generator=generator) / n_in**0.5).to(dtype).requires_grad_()

    chosen = torch.rand(n_tokens, n_experts, generator=generator).topk(top_k, dim=1).indices
    weights = torch.rand(n_tokens, top_k, generator=generator).to(weight_dtype).requires_grad_()
    w_gate, w_up = (normal(n_experts, d_expert, d_model, n_in=d_model) for _ in range(2))
    return normal(n_tokens, d_model), chosen, weights, w_gate, w_up, normal(n_experts, d_out, d_expert, n_in=d_expert)


TYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 5e-3)]


@in_turn(("sizes", SIZES), (("dtype", "tolerance"), TYPES))
def test_experts_equal_the_reference(sizes, dtype, tolerance):
    arguments = experts(*sizes, dtype, torch.promote_types(dtype, torch.float32))
    assert_forms_agree(grouped_swiglu, reference_grouped_swiglu, *arguments, rtol=tolerance)


@pytest.mark.parametrize("sizes", SIZES[:4:3])
def test_so_they_do_under_autocast(sizes):
    arguments = experts(*sizes, torch.float32, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = assert_forms_agree(grouped_swiglu, reference_grouped_swiglu, *arguments, rtol=3e-2)
    assert out.dtype == torch.bfloat16
