"""Experts, each of its own tokens, against the reference; what is kept, and what is counted."""

import pytest
import torch
from differentiated import with_gradients
from measured import kept_bytes
from thinned import in_turn
from torch.utils.flop_counter import FlopCounterMode

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


FORMS = (grouped_swiglu, reference_grouped_swiglu)


@in_turn(
    ("sizes", SIZES),
    (
        ("dtype", "tolerance"),
        [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 5e-3)],
    ),
)
def test_fused_equals_reference(sizes, dtype, tolerance):
    arguments = inputs(*sizes, dtype, torch.promote_types(dtype, torch.float32))
    ours, truth = (with_gradients(form, *arguments) for form in FORMS)
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sizes", SIZES[:4:3])
def test_autocast_equals_reference_under_autocast(sizes):
    arguments = inputs(*sizes, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, truth = (with_gradients(form, *arguments) for form in FORMS)
    assert ours[0].dtype == torch.bfloat16
    torch.testing.assert_close(ours, truth, rtol=3e-2, atol=3e-2)


def test_an_expert_without_tokens_has_a_gradient_of_zero():
    x, _, weights, *matrices = inputs(*SIZES[0], torch.float32)
    chosen = torch.tensor([[1, 3]]).expand(len(x), 2)
    for gradient in with_gradients(grouped_swiglu, x, chosen, weights, *matrices)[3:]:
        assert gradient[[0, 2]].count_nonzero() == 0
        assert gradient[[1, 3]].abs().amin(dim=(1, 2)).min() > 0


def test_keeps_gate_and_up_of_every_choice_beside_its_inputs():
    n_tokens, _, d_expert, _, _, top_k = SIZES[0]
    arguments = inputs(*SIZES[0])
    found = kept_bytes(lambda: grouped_swiglu(*arguments), without=arguments)
    assert found == 2 * n_tokens * top_k * d_expert * torch.float64.itemsize


def test_the_flop_counter_sees_the_chosen_experts_only():
    arguments = inputs(13, 7, 5, 11, 4, 2)
    with FlopCounterMode(display=False) as counter:
        out = grouped_swiglu(*arguments)
        assert counter.get_total_flops() == 2 * 13 * 2 * (7 * 5 + 7 * 5 + 5 * 11)
        out.sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 13 * 2 * (7 * 5 + 7 * 5 + 5 * 11)


def test_compiles_to_one_graph():
    torch._dynamo.reset()
    compiled = torch.compile(grouped_swiglu, backend="aot_eager", fullgraph=True, dynamic=False)
    arguments = inputs(13, 7, 5, 9, 4, 2, torch.float32, torch.float32)
    ours, truth = (with_gradients(form, *arguments) for form in (compiled, grouped_swiglu))
    torch.testing.assert_close(ours, truth, rtol=1e-5, atol=1e-5)
