"""Units up to a token's own width, in stripes, against the network with a mask over all of them."""

import pytest
import torch
from comparing import assert_forms_agree, random, with_gradients
from thinned import every_pair

from widthwise.kernels import sliced_swiglu as kernel
from widthwise.kernels.sliced_swiglu import (
    Edge,
    fused_sliced_swiglu,
    reference_sliced_swiglu,
    sliced_swiglu,
)

N, D_MODEL, D_FF, D_OUT = 11, 6, 13, 5
RAMP = 2.6


def hard(width, units):
    return units < width


def ramp(width, units):
    return (2 * (width - units) / RAMP).clamp(0, 1)


def hard_with_ramp_gradient(width, units):
    """As a straight-through mask: the value of `hard`, and the derivative of a ramp on both sides of the width."""
    ramp = ((width - units) / RAMP).clamp(-0.5, 0.5)
    return hard(width, units) + (ramp - ramp.detach())


HARD = Edge(hard, 0.0)
LINEAR = Edge(ramp, RAMP / 2)
EDGES = (HARD, LINEAR, Edge(hard_with_ramp_gradient, RAMP / 2))

WIDTHS = {
    "spread": lambda n: torch.linspace(0.1, D_FF + 2, n, dtype=torch.float64).roll(4),
    "two_buckets": lambda n: torch.tensor([4.2, 12.6], dtype=torch.float64).repeat(n)[:n],
    "one_bucket": lambda n: torch.linspace(6.2, 8.1, n, dtype=torch.float64).flip(0),
    "integers": lambda n: torch.arange(n, dtype=torch.float64) % (D_FF + 1),
    "nothing": lambda n: torch.full((n,), -2.0, dtype=torch.float64),
    "everything": lambda n: torch.full((n,), D_FF + 2.0, dtype=torch.float64),
}


def operands(dtype=torch.float64, n=N, d_model=D_MODEL, d_ff=D_FF, d_out=D_OUT):
    shapes = [(n, d_model), (d_ff, d_model), (d_ff, d_model), (d_out, d_ff)]
    return [random(*shape, seed=seed, dtype=dtype).requires_grad_() for seed, shape in enumerate(shapes)]


@every_pair(
    (
        ("form", "n", "row_tile"),
        [(fused_sliced_swiglu, N, 1), (fused_sliced_swiglu, N, 4), (fused_sliced_swiglu, 1, 4), (sliced_swiglu, N, 1)],
    ),
    ("edge", EDGES),
    ("width", WIDTHS.values()),
)
def test_equals_the_masked_form(form, width, edge, n, row_tile, monkeypatch):
    monkeypatch.setattr(kernel, "UNIT_TILE", 3)  # edges at 3, 6, 9, 12 and 13 units
    monkeypatch.setattr(kernel, "ROW_TILE", {torch.float64: row_tile})
    arguments = (*operands(n=n), width(n).requires_grad_(), edge)
    assert_forms_agree(form, reference_sliced_swiglu, *arguments, rtol=1e-12)


def test_under_autocast():
    n = 150
    tensors = operands(torch.float32, n=n, d_model=33, d_ff=300, d_out=29)
    width = (300 * torch.rand(n, generator=torch.Generator().manual_seed(2))).requires_grad_()
    arguments = (*(tensor / size for tensor, size in zip(tensors, (1, 6, 6, 17))), width, LINEAR)
    with torch.autocast("cpu", torch.bfloat16):
        ours = with_gradients(sliced_swiglu, *arguments)
    truth = with_gradients(reference_sliced_swiglu, *arguments)
    assert ours[0].dtype == torch.bfloat16
    assert all(gradient.dtype == torch.float32 for gradient in ours[1:])
    for own, true in zip(ours, truth):
        assert (own - true).norm() < 0.02 * true.norm()  # bf16 has 8 bits


def test_the_masked_form_runs_when_asked_for_and_under_compile(monkeypatch):
    def refuse(*_):
        raise AssertionError("stripes")

    monkeypatch.setattr(kernel, "fused_sliced_swiglu", refuse)
    arguments = (*operands(n=40), torch.full((40,), 7.0, dtype=torch.float64), HARD)
    truth = reference_sliced_swiglu(*arguments)
    with pytest.raises(AssertionError, match="stripes"):
        sliced_swiglu(*arguments)
    torch.testing.assert_close(torch.compile(sliced_swiglu, backend="eager", fullgraph=True)(*arguments), truth)
    monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
    assert torch.equal(sliced_swiglu(*arguments), truth)
