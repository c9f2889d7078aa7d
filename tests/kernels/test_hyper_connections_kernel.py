"""Reads and writes of slots against the reference, and what they keep for the backward pass."""

from collections.abc import Sequence
from math import ceil

import pytest
import torch
from comparing import random
from measured import kept_bytes
from slot_chains import Chain
from thinned import every_pair, in_turn
from torch import Tensor

from widthwise.kernels import hyper_connections_chunks
from widthwise.kernels.hyper_connections import FreeForm, read_slots
from widthwise.kernels.hyper_connections_chunks import add_product, product

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
    site=(2, 3, 2, 5), n_sites=1, tokens=(2, 3), dynamic=True, state=torch.float64, weights=torch.float64
) -> Chain:
    n_read, n_slots, n_write, slot_width = site
    k = n_read + n_slots + n_write
    tables, mixes = [], []
    for i in range(1, 3 * n_sites, 3):
        projection = random(slot_width, k, seed=i + 1, dtype=weights) / slot_width**0.5
        static, scale = (random(n_slots, k, seed=seed, dtype=weights) for seed in (i, i + 2))
        tables.append((static, projection, scale) if dynamic else (static, None, None))
        mixes.append(random(n_read * slot_width, n_write * slot_width, seed=90 + i // 3, dtype=weights))
    start = random(*tokens, n_slots, slot_width, seed=0, dtype=state)
    return Chain(start, [FreeForm(n_read, 1e-5)] * n_sites, tables, mixes)


def assert_same(ours: Sequence[Tensor], truth: Sequence[Tensor], tolerance: float) -> None:
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


@every_pair(
    (("site", "n_bytes"), [*CHUNKED, *((site, 2**20) for site in SITES)]),
    ("dynamic", [True, False]),
    ("state_every", [1, 2]),
)
def test_fused_equals_reference_for_any_number_of_tokens_at_a_time(site, n_bytes, dynamic, state_every, monkeypatch):
    """One token, and three, by which 10 cannot be divided; 16 slots have more coefficients than numbers."""
    monkeypatch.setattr(hyper_connections_chunks, "CHUNK_BYTES", n_bytes)
    for tokens in ((2, 5), (1, 1), (2, 0)):
        chain = chain_of(site, n_sites=2, tokens=tokens, dynamic=dynamic)
        chain.assert_same(chain.fused(state_every), chain.reference(), 1e-10)


@in_turn(
    ("dynamic", [True, False]),
    ("weights", [torch.float32, torch.bfloat16]),
)
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
    assert_same([ours], [truth], 2e-5)
    assert_same(gradients, chain.gradients(truth), 2e-2)


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


def test_a_read_that_nobody_writes_after():
    chain = chain_of((2, 3, 2, 5))
    (tables,) = chain.tables
    (form,) = chain.forms
    ours, _ = read_slots(chain.state, form, tables, 1)
    truth, _ = form.reference(chain.state, *tables)
    assert_same(*(torch.autograd.grad(out.sin().sum(), [chain.state, *tables]) for out in (ours, truth)), 1e-10)


@pytest.mark.parametrize("frozen", ["all", "first", "state"])
def test_only_the_wanted_gradients(frozen):
    """What is frozen: all sites, so that only sublayers learn; the first sites; or the state alone."""
    chain = chain_of(n_sites=3)
    gone = {"all": chain.inputs[:10], "first": chain.inputs[:4], "state": chain.inputs[:1]}[frozen]
    for tensor in gone:
        tensor.requires_grad_(False)
    inputs = [tensor for tensor in chain.inputs if tensor.requires_grad]
    ours, truth = chain.fused(state_every=2), chain.reference()
    assert_same(*(torch.autograd.grad(out.sin().sum(), inputs) for out in (ours, truth)), 1e-10)


def matrices(n, r, k, w):
    a, b, total = (random(*shape, seed=i) for i, shape in enumerate([(k, n, r), (n, k, w), (n, r, w)]))
    return a.permute(1, 2, 0), b, total  # as slices of a table (k, C, n) are


@pytest.mark.parametrize(
    "shape", [(5, 2, 3, 65), (5, 2, 3, 67), (7, 1, 1, 3), (4, 1, 4, 128), (3, 8, 64, 9), (0, 2, 3, 5)]
)
def test_products_of_many_tiny_matrices_are_those_of_each_pair(shape):
    """(N, r, k, w), on both sides of `MIN_MULTIPLICATIONS`."""
    a, b, total = matrices(*shape)
    expected = torch.einsum("nrk,nkw->nrw", a, b)
    out = torch.full_like(total, torch.nan)
    assert product(a, b, out) is out
    assert_same([out, add_product(total.clone(), a, b, -0.3)], [expected, total - 0.3 * expected], 1e-12)
