"""Doubly stochastic carries: their sums, their gradients, and the hand-written form against the reference."""

import pytest
import torch
from comparing import random
from slot_chains import Chain

from widthwise.kernels import hyper_connections_chunks
from widthwise.kernels.hyper_connections import read_slots
from widthwise.kernels.manifold_connections import ManifoldForm, Permutations, Sinkhorn

EPS = 1e-6
CARRIES = [Sinkhorn(20, EPS, EPS), Sinkhorn(1, 0.0, 0.0), Sinkhorn(3, 0.01, 0.003), Permutations()]


def n_logits(carry: Sinkhorn | Permutations, n: int) -> int:
    return [0, 1, 2, 6, 24][n] if isinstance(carry, Permutations) else n * n


@pytest.mark.parametrize("n", [2, 4, 7])
def test_sums_of_a_sinkhorn_carry_are_1_within_the_eps_and_the_iterations(n):
    carry = Sinkhorn(20, EPS, EPS).reference(0.3 * random(1000, n * n), n)
    assert (carry > 0).all()
    assert (carry.sum(-1) - 1).abs().max() <= 1e-5
    assert (carry.sum(-2) - 1).abs().max() <= n * EPS


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_carry_of_permutations_is_doubly_stochastic_and_any_permutation(n):
    logits = 5 * random(1000, n_logits(Permutations(), n))
    carry = Permutations().reference(logits, n)
    for dim in (-1, -2):
        assert (carry.sum(dim) - 1).abs().max() <= 1e-15
    corners = Permutations().reference(800 * torch.eye(logits.shape[-1], dtype=torch.float64), n)
    assert len(corners.flatten(1).unique(dim=0)) == logits.shape[-1]
    assert set(corners.unique().tolist()) == {0.0, 1.0}


def chain_of(carry, n=3, width=5, tokens=(2, 7), dtype=torch.float64) -> Chain:
    """Three sites and an exit."""
    k = 2 * n + n_logits(carry, n)
    shares = tuple(0.5 + 0.3 * i for i in range(n))
    forms = [ManifoldForm(n * width + 2, 0.01, 1e-3, shares, each) for each in (carry, carry, carry, None)]
    tables = [
        (random(1, size, seed=2 * i + 1, dtype=dtype), random(n * width, size, seed=2 * i, dtype=dtype))
        for i, size in enumerate((k, k, k, n))
    ]
    mixes = [random(width, width, seed=20 + i, dtype=dtype) for i in range(3)]
    return Chain(random(*tokens, n, width, dtype=dtype), forms, tables, mixes)


@pytest.mark.parametrize("carry", CARRIES)
@pytest.mark.parametrize(("n", "n_bytes", "state_every"), [(3, 2**20, 1), (2, 1, 2), (4, 9000, 3)])
def test_sites_and_exit_are_the_reference_for_any_number_of_tokens_at_a_time(
    carry, n, n_bytes, state_every, monkeypatch
):
    chain = chain_of(carry, n)
    truth = chain.reference()
    monkeypatch.setattr(hyper_connections_chunks, "CHUNK_BYTES", n_bytes)
    chain.assert_same(chain.fused(state_every), truth, 1e-11)


def test_states_made_again_change_no_bit_and_a_wide_state_keeps_its_coefficients():
    for width in (5, 200):
        chain = chain_of(CARRIES[0], width=width, dtype=torch.float32)
        ours, truth = (chain.gradients(chain.fused(every)) for every in (3, 1))
        assert all(torch.equal(own, other) for own, other in zip(ours, truth, strict=True))


def test_no_tokens_and_a_bf16_state_mixed_in_fp32():
    chain = chain_of(CARRIES[0], tokens=(2, 0))
    assert all((gradient == 0).all() for gradient in chain.gradients(chain.fused())[1:])
    form, tables = chain.forms[0], [table.float() for table in chain.tables[0]]
    state = random(2, 7, 3, 5, dtype=torch.bfloat16)
    (ours, kept), (truth, coefficients) = read_slots(state, form, tables, 1), form.reference(state, *tables)
    assert ours.dtype == truth.dtype == torch.bfloat16
    assert coefficients.dtype == kept.write.dtype == torch.float32
    torch.testing.assert_close(ours, truth, rtol=2**-7, atol=2**-7)
