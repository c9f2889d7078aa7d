"""What one site of hyper-connections does to the slots of a token, as it starts and by the paper's formulas."""

from itertools import cycle

import pytest
import torch
from comparing import assert_same, random
from literal_hyper_connections import through
from measured import on_meta
from thinned import in_turn
from torch import Tensor

from widthwise.model.axes import Weight
from widthwise.model.initial_weights import drawn
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.model.residual.hyper_connections_module import HyperConnection

SIZES = [(1, 1), (1, 4), (2, 3), (2, 4), (3, 3), (3, 7)]
"""(m, n): blocks of a sublayer, slots of the stream."""
SLOT_WIDTH = 9


def connection(m: int, n: int, is_random: bool = True, **options) -> HyperConnection:
    """A site of m blocks, as it starts or with random weights."""
    settings = {"slot_width": SLOT_WIDTH, "n_slots": n, "n_owned_slots": m, "group_norm": None, **options}
    site = HyperConnectionsConfig(**settings).build(m * SLOT_WIDTH, m * SLOT_WIDTH, m * SLOT_WIDTH).to(torch.float64)
    generator = torch.Generator().manual_seed(n)
    for module in site.modules():
        if isinstance(module, Weight):
            module.weight.data.copy_(drawn(module, 1.0, generator))
    if is_random:
        with torch.no_grad():
            for parameter in site.parameters():
                parameter += torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return site


def table(site: HyperConnection) -> Tensor:
    """(n_slots, n_coefficients), a view of the parameter: those to read by, to carry by and to write by."""
    return site.static.weight.data.view(site.config.n_slots, -1)


def state_and_update(site: HyperConnection, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    n_write = table(site).shape[1] - site.n_read - site.config.n_slots
    return random(2, 3, site.config.n_slots, SLOT_WIDTH, dtype=dtype), random(
        2, 3, n_write * SLOT_WIDTH, seed=2, dtype=dtype
    )


def connect(site: HyperConnection, state: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """What the sublayer sees, and the state behind it."""
    x, kept = site.read(state)
    return x, site.write(kept, update)


@in_turn(
    (("m", "n"), SIZES),
    ("dynamic", [True, True, False]),
    ("slot_norm_dim", [1, SLOT_WIDTH, 20]),
    ("kernels", ["fused", "reference"]),
)
def test_a_site_is_the_papers_index_formula_whatever_its_slots_are_divided_by(
    m, n, dynamic, slot_norm_dim, kernels, monkeypatch
):
    """With an eps that matters."""
    monkeypatch.setenv("WIDTHWISE_KERNELS", kernels)
    site = connection(m, n, dynamic=dynamic, multiplier=0.7, slot_norm_dim=slot_norm_dim, eps=0.3)
    state, update = (each.requires_grad_() for each in state_and_update(site))
    seen: list[Tensor] = []
    literal = torch.stack(through(site, list(state.unbind(-2)), lambda x: seen.append(x) or update), dim=-2)
    assert_same(connect(site, state, update), [*seen, literal], (state, update, *site.parameters()), atol=1e-11)


@in_turn(
    (("size", "dtype"), list(zip(SIZES, cycle([torch.float64, torch.float32, torch.bfloat16])))),
    ("dynamic", [False, True]),
)
def test_a_site_starts_as_one_that_reads_the_first_slots_and_adds_block_after_block(size, dynamic, dtype):
    """Eq. (11) and (12), to the last bit; yet it learns from the first step."""
    m, n = size
    site = connection(m, n, is_random=False, dynamic=dynamic).to(dtype)
    state, update = state_and_update(site, dtype)
    x, out = connect(site, state, update)
    assert torch.equal(x, state[..., :m, :].flatten(-2))
    blocks = update.unflatten(-1, (m, -1))
    assert torch.equal(out, torch.stack([state[..., j, :] + blocks[..., j % m, :] for j in range(n)], dim=-2))
    (x.square().sum() + out.square().sum()).backward()
    assert (site.static.weight.grad != 0).all()
    if dynamic:
        assert (site.dynamic.weight == 0).all()
        assert (site.dynamic.weight.grad != 0).all()
        assert (site.scale.weight.grad == 0).all()  # of a factor of tanh(0)


def test_write_inits():
    """Slot (from 0) -> the block it takes."""
    for m, n_owned, n in ((1, 5, 6), (2, 6, 8), (3, 5, 13), (5, 6, 8)):
        expected = {
            "cyclic": {j: j % m for j in range(n)},
            "slice": {j: j for j in range(m)},
            "tail_cyclic": {j: j for j in range(m)} | {j: j % m for j in range(n_owned, n)},
        }
        for write_init, takes in expected.items():
            site = connection(m, n, is_random=False, write_init=write_init, n_owned_slots=n_owned)
            write = table(site)[:, m + n :]
            assert {int(j): int(k) for j, k in write.nonzero()} == takes
            assert write.sum() == len(takes)


def test_a_carry_near_one_is_not_rounded_to_one_in_bf16():
    site = connection(1, 1, is_random=False, dynamic=False).to(torch.float32)
    table(site)[:, 1] = 2**-8
    state = torch.full((2, 3, 1, SLOT_WIDTH), 1.5, dtype=torch.bfloat16)
    out = connect(site, state, torch.zeros(2, 3, SLOT_WIDTH, dtype=torch.bfloat16))[1]
    assert out.dtype == torch.bfloat16
    assert (out == 1.5078125).all()  # 1.5 * (1 + 2^-8) = 1.50586 lies nearest to it; neighbours are 2^-7 apart


class TestCost:
    D_MODEL = 2048

    def parameters(self, m: int, n: int, **options) -> int:
        d = self.D_MODEL
        resolved = HyperConnectionsConfig(
            slot_width=d // m, n_slots=n, n_owned_slots=m, group_norm=None, reduce="sum", **options
        )
        n_parameters = sum(p.numel() for p in on_meta(lambda: resolved.build(d, d, d)).parameters())
        assert resolved.cost(d, d, d).params == n_parameters
        return n_parameters

    def test_parameters_are_the_papers(self):
        """2 n (2 m + n) + b (2 m + n) + b, and n (2 m + n) where all tokens have the same."""
        assert self.parameters(2, 3, dynamic=False) == 21
        assert self.parameters(2, 3) == 21 + 21 + 7168 + 1024
        assert self.parameters(8, 64) == 5120 + 5120 + 20480 + 256

    def test_hyper_and_frac_connections_have_the_parameters_of_their_papers(self):
        """The first: norm, W_beta, W_m and W_r, B, A_m and A_r, two scales. The second: 165,056 in 16 layers of width
        2048 with 4 fractions; there B is diagonal, its dynamic part one vector for all fractions, and A and B have one
        scale each.
        """
        d, n = self.D_MODEL, 4
        assert self.parameters(1, n, writes="own", scale="numbers") == d + (d + d + d * n) + (n + n + n * n) + 2
        m, b = 4, 512
        off_diagonal, further_vectors, further_scales = m * (m - 1), (m - 1) * b, m * 3 * m - 2
        fewer = off_diagonal + further_vectors + further_scales
        assert 2 * 16 * (self.parameters(m, m) - fewer) == 165_056

    @pytest.mark.parametrize(("m", "n", "per_channel"), [(2, 3, 48), (1, 4, 112), (4, 16, 400), (8, 64, 2592)])
    def test_flops_are_the_papers_without_those_of_the_norm(self, m, n, per_channel):
        """Section 3.5: 4 r (1 + 2 m + r m) for each channel of the backbone, r = n / m, of which the norm 4 r."""
        r, d_model = n / m, 256
        assert per_channel == 4 * r * (1 + 2 * m + r * m)
        resolved = HyperConnectionsConfig(slot_width=d_model // m, n_slots=n, n_owned_slots=m, group_norm=None)
        assert resolved.cost(d_model, d_model, d_model).flops == (per_channel - 4 * r) * d_model
