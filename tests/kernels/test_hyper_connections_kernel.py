"""Reads and writes of slots, free or doubly stochastic, against the reference, and what they keep for backward."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import pytest
import torch
from comparing import random
from measured import kept_bytes
from thinned import every_pair, in_turn
from torch import Tensor

from widthwise.kernels import hyper_connections_chunks
from widthwise.kernels.hyper_connections import FreeForm, read_slots, reference_write_slots
from widthwise.kernels.hyper_connections_chunks import add_product, product
from widthwise.kernels.manifold_connections import ManifoldForm, Permutations, Sinkhorn

MULTIPLIER = 0.7
Tables = Sequence[Tensor | None]


class Chain:
    """Sites whose sublayers are the sine of a matrix product; the last site is only read if it has no matrix."""

    def __init__(self, state: Tensor, forms: Sequence[Any], tables: Sequence[Tables], mixes: Sequence[Tensor]):
        self.state = state
        self.forms = forms
        self.tables = tables
        self.mixes = mixes
        tensors = [state, *(table for site in tables for table in site if table is not None), *mixes]
        self.inputs = [tensor.requires_grad_() for tensor in tensors]

    def _run(self, is_fused: bool, state_every: int = 1) -> Tensor:
        state = self.state
        for i, (form, tables) in enumerate(zip(self.forms, self.tables, strict=True)):
            x, kept = read_slots(state, form, tables, state_every) if is_fused else form.reference(state, *tables)
            if i == len(self.mixes):
                return x
            update = torch.sin(x.to(self.mixes[i].dtype) @ self.mixes[i])
            if is_fused:
                state = kept.write(update, MULTIPLIER)
            else:
                state = reference_write_slots(state, update, kept, form.n_read, MULTIPLIER)
        return state

    def fused(self, state_every: int = 1) -> Tensor:
        return self._run(True, state_every)

    def reference(self) -> Tensor:
        return self._run(False)

    def gradients(self, out: Tensor) -> list[Tensor]:
        inputs = [tensor for tensor in self.inputs if tensor.requires_grad]
        return list(torch.autograd.grad(out, inputs, random(*out.shape, seed=99, dtype=out.dtype)))

    def assert_same(self, ours: Tensor, truth: Tensor, tolerance: float) -> None:
        """Values and gradients."""
        results = [ours, *self.gradients(ours)], [truth, *self.gradients(truth)]
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


SITES = [
    (1, 4, 1, 7),
    (2, 3, 2, 5),
    (3, 5, 2, 4),
    (1, 5, 4, 3),
    (4, 4, 4, 3),
    (4, 16, 4, 6),
    (1, 1, 1, 9),
    (2, 3, 1, 1),
]
"""n_read, n_slots, n_write, slot_width"""
CHUNKED = [((2, 3, 2, 5), 1), ((2, 3, 2, 5), 1000), ((4, 16, 4, 6), 9000)]


def chain_of(
    site=(2, 3, 2, 5), n_sites=1, tokens=(2, 3), dynamic=True, state=torch.float64, weights=torch.float64, n_writes=None
) -> Chain:
    """n_writes: default: every site writes."""
    n_read, n_slots, n_write, slot_width = site
    k = n_read + n_slots + n_write
    tables, mixes = [], []
    for i in range(1, 3 * n_sites, 3):
        projection = random(slot_width, k, seed=i + 1, dtype=weights) / slot_width**0.5
        static, scale = (random(n_slots, k, seed=seed, dtype=weights) for seed in (i, i + 2))
        tables.append((static, projection, scale) if dynamic else (static, None, None))
        mixes.append(random(n_read * slot_width, n_write * slot_width, seed=90 + i // 3, dtype=weights))
    start = random(*tokens, n_slots, slot_width, seed=0, dtype=state)
    return Chain(start, [FreeForm(n_read, 1e-5)] * n_sites, tables, mixes[:n_writes])


@every_pair(
    (("site", "n_bytes"), [*CHUNKED, *((site, 2**20) for site in SITES)]),
    ("dynamic", [True, False]),
    ("state_every", [1, 2]),
)
def test_fused_equals_reference_for_any_number_of_tokens_at_a_time(site, n_bytes, dynamic, state_every, monkeypatch):
    """One token, and three, by which 10 cannot be divided; 16 slots have more coefficients than numbers. The state of
    one token is read a second time, and not written again."""
    monkeypatch.setattr(hyper_connections_chunks, "CHUNK_BYTES", n_bytes)
    for tokens, n_writes in (((2, 5), 2), ((1, 1), 1), ((2, 0), 2)):
        chain = chain_of(site, n_sites=2, tokens=tokens, dynamic=dynamic, n_writes=n_writes)
        chain.assert_same(chain.fused(state_every), chain.reference(), 1e-10)


@in_turn(("dynamic", [True, False]), ("weights", [torch.float32, torch.bfloat16]))
def test_a_bf16_state_is_mixed_in_fp32(dynamic, weights):
    """The one rounding is that of the result, as in the reference: one unit in the last of 8 bits apart."""
    chain = chain_of((2, 3, 2, 16), dynamic=dynamic, state=torch.bfloat16, weights=weights)
    ours, truth = chain.fused(), chain.reference()
    assert ours.dtype == truth.dtype == torch.bfloat16
    chain.assert_same(ours, truth, 2**-6)


def test_autocast_leaves_the_mixtures_in_fp32():
    chain = chain_of((2, 4, 2, 16), n_sites=2, state=torch.float32, weights=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, truth = chain.fused(), chain.reference()
    with torch.autocast("cpu", torch.bfloat16):  # a backward pass under autocast is not of the products either
        gradients = chain.gradients(ours)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, truth, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(gradients, chain.gradients(truth), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("dynamic", "state_every"), [(True, 2), (False, 3), (True, 5), (False, 9)])
def test_states_made_again_change_no_bit_and_leave_one_in_so_many(dynamic, state_every):
    """Beside that state, of each site its update; and what its sublayer keeps, here its input and the argument of the
    sine, and the weights.
    """
    for dtype in (torch.bfloat16, torch.float32):
        chain = chain_of(n_sites=7, dynamic=dynamic, state=dtype, weights=torch.float32)
        ours, truth = (chain.gradients(chain.fused(every)) for every in (state_every, 1))
        assert all(torch.equal(own, other) for own, other in zip(ours, truth, strict=True))
    n_bytes = kept_bytes(lambda: chain.fused(state_every), without=chain.inputs[1:])
    n_tokens, n_slots, slot_width = 6, 3, 5
    of_a_site = 2 * slot_width * 3
    assert n_bytes == 4 * n_tokens * (ceil(7 / state_every) * n_slots * slot_width + 7 * of_a_site)


@pytest.mark.parametrize("n_frozen", [10, 4, 1])
def test_only_the_wanted_gradients(n_frozen):
    """All sites are frozen, so that only sublayers learn; the first sites; or the state alone."""
    chain = chain_of(n_sites=3)
    for tensor in chain.inputs[:n_frozen]:
        tensor.requires_grad_(False)
    chain.assert_same(chain.fused(state_every=2), chain.reference(), 1e-10)


@pytest.mark.parametrize(
    "shape", [(5, 2, 3, 65), (5, 2, 3, 67), (7, 1, 1, 3), (4, 1, 4, 128), (3, 8, 64, 9), (0, 2, 3, 5)]
)
def test_products_of_many_tiny_matrices_are_those_of_each_pair(shape):
    """(N, r, k, w), on both sides of `MIN_MULTIPLICATIONS`."""
    n, r, k, w = shape
    a = random(k, n, r, seed=0).permute(1, 2, 0)  # as slices of a table (k, C, n) are
    b, total = random(n, k, w), random(n, r, w, seed=2)
    expected = torch.einsum("nrk,nkw->nrw", a, b)
    out = torch.full_like(total, torch.nan)
    assert product(a, b, out) is out
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(add_product(total.clone(), a, b, -0.3), total - 0.3 * expected, rtol=1e-12, atol=1e-12)


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


def manifold_chain(carry, n=3, width=5, dtype=torch.float64, tokens=(2, 7)) -> Chain:
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
    monkeypatch.setattr(hyper_connections_chunks, "CHUNK_BYTES", n_bytes)
    for tokens in ((2, 7), (2, 0)):
        chain = manifold_chain(carry, n, tokens=tokens)
        chain.assert_same(chain.fused(state_every), chain.reference(), 1e-11)


def test_states_of_a_manifold_made_again_change_no_bit_and_a_wide_state_keeps_its_coefficients():
    for width in (5, 200):
        chain = manifold_chain(CARRIES[0], width=width, dtype=torch.float32)
        ours, truth = (chain.gradients(chain.fused(every)) for every in (3, 1))
        assert all(torch.equal(own, other) for own, other in zip(ours, truth, strict=True))


def test_a_manifold_mixes_a_bf16_state_in_fp32():
    chain = manifold_chain(CARRIES[0])
    form, tables = chain.forms[0], [table.float() for table in chain.tables[0]]
    state = random(2, 7, 3, 5, dtype=torch.bfloat16)
    (ours, kept), (truth, coefficients) = read_slots(state, form, tables, 1), form.reference(state, *tables)
    assert ours.dtype == truth.dtype == torch.bfloat16
    assert coefficients.dtype == kept.coefficients.dtype == torch.float32
    torch.testing.assert_close(ours, truth, rtol=2**-7, atol=2**-7)
