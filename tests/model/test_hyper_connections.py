"""What one site of hyper-connections does to the slots of a token, as it starts and by the paper's formulas."""

import torch
from comparing import assert_same, random, started
from literal_hyper_connections import through
from thinned import in_turn
from torch import Tensor

from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.model.residual.hyper_connections_module import HyperConnection

SIZES = [(1, 1), (1, 4), (2, 3), (2, 4), (3, 3), (3, 7)]
"""(m, n): blocks of a sublayer, slots of the stream."""
SLOT_WIDTH = 9


def connection(m: int, n: int, is_random: bool = True, **options) -> HyperConnection:
    """A site of m blocks, as it starts or with random weights."""
    settings = {"slot_width": SLOT_WIDTH, "n_slots": n, "n_owned_slots": m, "group_norm": None, **options}
    site = HyperConnectionsConfig(**settings).build(m * SLOT_WIDTH, m * SLOT_WIDTH, m * SLOT_WIDTH).to(torch.float64)
    return started(site, noise=0.5 if is_random else 0.0, seed=n)


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


def test_blocks_are_written_to_the_first_slots_and_in_turn_to_those_that_no_layer_owns():
    for m, n_owned, n in ((1, 5, 6), (2, 6, 8), (3, 5, 13), (5, 6, 8)):
        write = table(connection(m, n, is_random=False, n_owned_slots=n_owned))[:, m + n :]
        taken = {j: j for j in range(m)} | {j: j % m for j in range(n_owned, n)}
        assert {int(j): int(k) for j, k in write.nonzero()} == taken
        assert write.sum() == len(taken)


def test_a_carry_near_one_is_not_rounded_to_one_in_bf16():
    site = connection(1, 1, is_random=False, dynamic=False).to(torch.float32)
    table(site)[:, 1] = 2**-8
    state = torch.full((2, 3, 1, SLOT_WIDTH), 1.5, dtype=torch.bfloat16)
    out = connect(site, state, torch.zeros(2, 3, SLOT_WIDTH, dtype=torch.bfloat16))[1]
    assert out.dtype == torch.bfloat16
    assert (out == 1.5078125).all()  # 1.5 * (1 + 2^-8) = 1.50586 lies nearest to it; neighbours are 2^-7 apart
