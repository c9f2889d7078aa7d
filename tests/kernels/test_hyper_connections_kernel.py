from math import ceil

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from widthwise.kernels import read_slots, write_slots
from widthwise.kernels.hyper_connections import coefficients, fused, reference

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


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Chain:
    """Sites one after the other, whose sublayers are a sine."""

    def __init__(
        self, site=(2, 3, 2, 5), n_sites=1, tokens=(2, 3), dynamic=True, state=torch.float64, weights=torch.float64
    ):
        self.n_read, n_slots, n_write, slot_width = site
        k = self.n_read + n_slots + n_write
        self.state = normal(*tokens, n_slots, slot_width, seed=0, dtype=state).requires_grad_()
        self.tables = []
        for i in range(1, 3 * n_sites, 3):
            projection = normal(slot_width, k, seed=i + 1, dtype=weights) / slot_width**0.5
            shapes = [
                normal(n_slots, k, seed=i, dtype=weights),
                projection,
                normal(n_slots, k, seed=i + 2, dtype=weights),
            ]
            self.tables.append(
                [table.requires_grad_() for table in shapes] if dynamic else [shapes[0].requires_grad_()]
            )
        self.mixes = [
            normal(self.n_read * slot_width, n_write * slot_width, seed=90 + i, dtype=weights).requires_grad_()
            for i in range(n_sites)
        ]

    @property
    def inputs(self) -> list[Tensor]:
        return [self.state, *(table for site in self.tables for table in site), *self.mixes]

    def run(self, read, write, multiplier=0.7, **options) -> Tensor:
        state = self.state
        for (static, *dynamic), mix in zip(self.tables, self.mixes):
            projection, scale = dynamic or (None, None)
            x, kept = read(state, static, projection, scale, self.n_read, eps=1e-5, **options)
            state = write(kept, torch.sin(x.to(mix.dtype) @ mix), multiplier)
        return state

    def fused(self, state_every=1) -> Tensor:
        return self.run(fused.read_slots, fused.write_slots, state_every=state_every)

    def reference(self) -> Tensor:
        def read(state, static, projection, scale, n_read, eps):
            x, coefficients = reference.read_slots(state, static, projection, scale, n_read, eps)
            return x, (state, coefficients, n_read)

        def write(kept, update, multiplier):
            state, coefficients, n_read = kept
            return reference.write_slots(state, update, coefficients, n_read, multiplier)

        return self.run(read, write)

    def gradients(self, out: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(out, self.inputs, normal(*out.shape, seed=99, dtype=out.dtype)))


def assert_same(ours: list[Tensor], truth: list[Tensor], tolerance: float) -> None:
    for mine, other in zip(ours, truth, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("dynamic", [True, False])
def test_fused_equals_reference(site, dynamic):
    for tokens in ((2, 3), (1, 1), (2, 0)):
        chain = Chain(site, n_sites=2, tokens=tokens, dynamic=dynamic)
        ours, truth = chain.fused(), chain.reference()
        assert_same([ours, *chain.gradients(ours)], [truth, *chain.gradients(truth)], 1e-10)


@pytest.mark.parametrize(("site", "n_bytes"), [((2, 3, 2, 5), 1), ((2, 3, 2, 5), 1000), ((4, 16, 4, 6), 9000)])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("state_every", [1, 2])
def test_any_number_of_tokens_at_a_time(site, n_bytes, dynamic, state_every, monkeypatch):
    """One token, and three, by which 10 cannot be divided; 16 slots have more coefficients than numbers."""
    chain = Chain(site, n_sites=2, tokens=(2, 5), dynamic=dynamic)
    truth = chain.reference()
    monkeypatch.setattr(coefficients, "CHUNK_BYTES", n_bytes)
    ours = chain.fused(state_every)
    assert_same([ours, *chain.gradients(ours)], [truth, *chain.gradients(truth)], 1e-10)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("dynamic", [True, False])
def test_gradcheck(site, dynamic):
    chain = Chain(site, tokens=(1, 2), dynamic=dynamic)

    def both(*inputs):
        state, *tables, update = inputs
        projection, scale = tables[1:] if dynamic else (None, None)
        x, kept = fused.read_slots(state, tables[0], projection, scale, chain.n_read, 1e-2, 1)
        return x, fused.write_slots(kept, update, 0.7)

    n_slots, slot_width = chain.state.shape[-2:]
    n_write = chain.tables[0][0].shape[1] - chain.n_read - n_slots
    update = normal(1, 2, n_write * slot_width, seed=50).requires_grad_()
    assert torch.autograd.gradcheck(both, (chain.state, *chain.tables[0], update))


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_a_bf16_state_is_mixed_in_fp32(dynamic, weights):
    """The one rounding is that of the result, as in the reference: one unit in the last of 8 bits apart."""
    chain = Chain((2, 3, 2, 16), dynamic=dynamic, state=torch.bfloat16, weights=weights)
    ours, truth = chain.fused(), chain.reference()
    assert ours.dtype == truth.dtype == torch.bfloat16
    assert_same([ours, *chain.gradients(ours)], [truth, *chain.gradients(truth)], 2**-6)


def test_a_small_deviation_of_the_carry_survives_a_bf16_state():
    """1 + 2^-8 is 1 in bf16, but twice that, seen in the second site, is not."""
    state = torch.ones(1, 1, 1, 4, dtype=torch.bfloat16)
    static = torch.tensor([[1.0, 2**-8, 1.0]])
    x, kept = fused.read_slots(state, static, None, None, 1, 1e-5, 1)
    assert torch.equal(fused.write_slots(kept, 2**-8 * x, 1.0), torch.full_like(state, 1 + 2**-7))


def test_autocast_leaves_the_mixtures_in_fp32():
    chain = Chain((2, 4, 2, 16), n_sites=2, state=torch.float32, weights=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, truth = chain.fused(), chain.reference()
    with torch.autocast("cpu", torch.bfloat16):  # a backward pass under autocast is not of the products either
        gradients = chain.gradients(ours)
    assert ours.dtype == torch.float32
    assert_same([ours], [truth], 2e-5)
    assert_same(gradients, chain.gradients(truth), 2e-2)


def test_tanh_is_exact_to_the_rounding_of_a_coefficient():
    """With a scale of 1 the coefficients differ by at most two units in the last place of numbers below 2."""
    state = torch.logspace(-6, 1.5, 200)[:, None, None, None]
    static, projection = torch.ones(1, 3), torch.ones(1, 3)
    for sign in (1.0, -1.0):
        _, kept = fused.read_slots(sign * state, static, projection, torch.ones(1, 3), 1, 1000.0, 1)
        _, truth = reference.read_slots(sign * state.double(), static, projection.double(), torch.ones(1, 3), 1, 1000.0)
        torch.testing.assert_close(kept.write.flatten().double(), truth[..., 2].flatten(), rtol=0, atol=2.5e-7)


@pytest.mark.parametrize(("dynamic", "state_every"), [(True, 2), (False, 3), (True, 5), (False, 9)])
class TestStatesMadeAgain:
    N_SITES = 7

    def chain(self, dynamic, dtype=torch.float32):
        return Chain((2, 3, 2, 5), n_sites=self.N_SITES, dynamic=dynamic, state=dtype, weights=torch.float32)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_gradients_are_the_same_to_the_last_bit(self, dynamic, state_every, dtype):
        chain = self.chain(dynamic, dtype)
        truth = chain.gradients(chain.fused(state_every=1))
        for gradient, other in zip(chain.gradients(chain.fused(state_every)), truth):
            assert torch.equal(gradient, other)

    def test_what_is_kept(self, dynamic, state_every):
        """One state in so many, and of each site its update; beside them what its sublayer keeps, here its input and
        the argument of the sine, and the weights.
        """
        chain, kept = self.chain(dynamic), {}

        def pack(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            out = chain.fused(state_every)
        weights = {tensor.untyped_storage().data_ptr() for tensor in chain.inputs[1:]}
        n_bytes = sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in weights)
        n_tokens, n_slots, slot_width = 6, 3, 5
        of_a_site = 2 * slot_width * 3
        assert n_bytes == 4 * n_tokens * (ceil(self.N_SITES / state_every) * n_slots * slot_width + 7 * of_a_site)
        del out

    def test_each_is_made_once(self, dynamic, state_every, monkeypatch):
        chain, made = self.chain(dynamic), []
        write = fused._add_blocks
        monkeypatch.setattr(fused, "_add_blocks", lambda *arguments: made.append(1) or write(*arguments))
        out = chain.fused(state_every)
        assert len(made) == self.N_SITES
        chain.gradients(out)
        assert len(made) - self.N_SITES == self.N_SITES - ceil(self.N_SITES / state_every)

    def test_a_second_backward_pass_over_the_same_graph(self, dynamic, state_every):
        chain = self.chain(dynamic)
        out = chain.fused(state_every)
        first = torch.autograd.grad(out.sum(), chain.inputs, retain_graph=True)
        for gradient, other in zip(torch.autograd.grad(out.sum(), chain.inputs), first):
            assert torch.equal(gradient, other)

    def test_gradients_of_the_last_sites_alone(self, dynamic, state_every):
        chain = self.chain(dynamic)
        last = chain.tables[-1][0]
        (alone,) = torch.autograd.grad(chain.fused(state_every).sum(), last)
        (truth,) = torch.autograd.grad(chain.fused(1).sum(), last)
        assert torch.equal(alone, truth)


def test_without_gradients_the_values_are_the_same():
    chain = Chain(n_sites=3)
    with torch.no_grad():
        assert torch.equal(chain.fused(state_every=2), chain.fused())
    assert torch.equal(chain.fused().detach(), chain.fused(state_every=2).detach())


def test_a_strided_state():
    chain = Chain((2, 3, 2, 5), n_sites=2)
    chain.state = normal(3, 5, 2, 3, seed=7).permute(2, 0, 3, 1).requires_grad_()  # (2, 3, 3, 5)
    ours, truth = chain.fused(), chain.reference()
    assert_same([ours, *chain.gradients(ours)], [truth, *chain.gradients(truth)], 1e-10)


def test_a_read_that_nobody_writes_after():
    chain = Chain((2, 3, 2, 5))
    (tables,) = chain.tables
    ours, _ = fused.read_slots(chain.state, *tables, 2, 1e-5, 1)
    truth, _ = reference.read_slots(chain.state, *tables, 2, 1e-5)
    inputs = [chain.state, *tables]
    assert_same(
        list(torch.autograd.grad(ours.sin().sum(), inputs)), list(torch.autograd.grad(truth.sin().sum(), inputs)), 1e-10
    )


@pytest.mark.parametrize("frozen", ["all", "first", "state"])
def test_only_the_wanted_gradients(frozen):
    """What is frozen: all sites, so that only sublayers learn; the first sites; or the state alone."""
    chain = Chain(n_sites=3)
    gone = {"all": chain.inputs[:10], "first": chain.inputs[:4], "state": chain.inputs[:1]}[frozen]
    for tensor in gone:
        tensor.requires_grad_(False)
    inputs = [tensor for tensor in chain.inputs if tensor.requires_grad]
    ours, truth = chain.run(read_slots, write_slots, state_every=2), chain.reference()
    assert_same(
        list(torch.autograd.grad(ours.sin().sum(), inputs)), list(torch.autograd.grad(truth.sin().sum(), inputs)), 1e-10
    )


def test_gradients_that_arrive_are_left_alone():
    chain = Chain()
    out = chain.fused()
    direction = normal(*out.shape, seed=3)
    before = direction.clone()
    torch.autograd.grad(out, chain.inputs, direction)
    assert torch.equal(direction, before)


def test_double_backward_fails_loudly():
    chain = Chain()
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(chain.fused().square().sum(), chain.state, create_graph=True)


@pytest.mark.parametrize(("setting", "is_fused"), [("reference", False), ("", True)])
def test_environment_chooses_the_form(monkeypatch, setting, is_fused):
    monkeypatch.setenv("WIDTHWISE_KERNELS", setting)
    chain = Chain(n_sites=2)
    out = chain.run(read_slots, write_slots, state_every=2)
    assert isinstance(out.grad_fn, fused._Write._backward_cls) == is_fused
    torch.testing.assert_close(out, chain.reference())
