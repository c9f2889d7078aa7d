"""What one site of hyper-connections does to the slots of a token."""

import math
from itertools import cycle

import pytest
import torch
from literal_hyper_connections import through
from measured import on_meta
from torch import Tensor

from widthwise.model.initial_weights import fill
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.model.residual.hyper_connections_module import HyperConnection

TIGHT = {"rtol": 1e-10, "atol": 1e-11}
SIZES = [(1, 1), (1, 4), (2, 3), (2, 4), (3, 3), (3, 7)]
"""(m, n): blocks of a sublayer, slots of the stream."""
TYPED_SIZES = list(zip(SIZES, cycle([torch.float64, torch.float32, torch.bfloat16])))
SLOT_WIDTH = 9


def connection(m: int, n: int, is_random: bool = True, slot_width: int = SLOT_WIDTH, **options) -> HyperConnection:
    """A site of m blocks, as it starts or with random weights."""
    settings = {"slot_width": slot_width, "n_slots": n, "n_owned_slots": m, "group_norm": None, **options}
    site = HyperConnectionsConfig(**settings).build(m * slot_width, m * slot_width, m * slot_width).to(torch.float64)
    generator = torch.Generator().manual_seed(n)
    for module in site.modules():
        fill(module, 1.0, generator)
    if is_random:
        with torch.no_grad():
            for parameter in site.parameters():
                parameter += torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return site


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def state_of(site: HyperConnection, dtype: torch.dtype = torch.float64) -> Tensor:
    return random(2, 3, site.config.n_slots, site.config.slot_width).to(dtype)


def update_of(site: HyperConnection, dtype: torch.dtype = torch.float64, seed: int = 2) -> Tensor:
    n_write = table(site).shape[1] - site.n_read - site.config.n_slots
    return random(2, 3, n_write * site.config.slot_width, seed=seed).to(dtype)


def connect(site: HyperConnection, state: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """What the sublayer sees, and the state behind it."""
    x, kept = site.read(state)
    return x, site.write(kept, update)


def table(site: HyperConnection, of: str = "static") -> Tensor:
    """(n_slots, n_coefficients), a view of the parameter."""
    return getattr(site, of).weight.data.view(site.config.n_slots, -1)


def columns(site: HyperConnection) -> tuple[slice, slice, slice]:
    """Which columns of the table are for reading, carrying and writing."""
    m, n = site.n_read, site.config.n_slots
    return slice(0, m), slice(m, m + n), slice(m + n, None)


def measured_write(site: HyperConnection, state: Tensor) -> Tensor:
    """(B, T, n_slots, n_write): how much of each block each slot takes, found by writing one block at a time."""
    n_blocks = update_of(site).shape[-1] // site.config.slot_width
    blocks = torch.eye(n_blocks, dtype=state.dtype).repeat_interleave(site.config.slot_width, dim=1)
    _, without = connect(site, state, torch.zeros_like(update_of(site)))
    taken = [(connect(site, state, block.expand(2, 3, -1))[1] - without)[..., 0] for block in blocks]
    return torch.stack(taken, dim=-1)


def measured_table(site: HyperConnection, state: Tensor) -> Tensor:
    """(B, T, n_slots, n_coefficients): what the site does to this state, solved for from what goes in and comes out."""
    x, out = connect(site, state, torch.zeros_like(update_of(site)))
    results = torch.cat((x.unflatten(-1, (-1, site.config.slot_width)), out), dim=-2)
    mixing = torch.linalg.lstsq(state.mT, results.mT).solution
    mixing[..., site.n_read :] -= torch.eye(site.config.n_slots, dtype=state.dtype)
    return torch.cat((mixing, measured_write(site, state)), dim=-1)


class TestFormulas:
    @pytest.mark.parametrize("dynamic", [False, True])
    @pytest.mark.parametrize(("m", "n"), SIZES)
    def test_a_site_is_the_papers_index_formula(self, m, n, dynamic):
        """Values, and the gradients of state, update and every parameter."""
        site = connection(m, n, dynamic=dynamic, multiplier=0.7)
        state, update = state_of(site).requires_grad_(), update_of(site).requires_grad_()
        seen: list[Tensor] = []
        literal = torch.stack(through(site, list(state.unbind(-2)), lambda x: seen.append(x) or update), dim=-2)
        x, out = connect(site, state, update)
        torch.testing.assert_close(x, seen[0], **TIGHT)
        torch.testing.assert_close(out, literal, **TIGHT)
        inputs = (state, update, *site.parameters())
        losses = [
            (a * random(*a.shape, seed=5)).sum() + (b * random(*b.shape, seed=6)).sum()
            for a, b in ((x, out), (seen[0], literal))
        ]
        for ours, truth in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
            torch.testing.assert_close(ours, truth, **TIGHT)

    @pytest.mark.parametrize("reference", [False, True])
    @pytest.mark.parametrize("slot_norm_dim", [1, SLOT_WIDTH, 20])
    def test_a_slot_is_divided_by_the_given_number_and_its_root(self, slot_norm_dim, reference, monkeypatch):
        """Values and gradients, with an eps that matters."""
        if reference:
            monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
        site = connection(2, 5, slot_norm_dim=slot_norm_dim, eps=0.3)
        state, update = state_of(site).requires_grad_(), update_of(site).requires_grad_()
        literal = torch.stack(through(site, list(state.unbind(-2)), lambda x: update), dim=-2)
        _, out = connect(site, state, update)
        torch.testing.assert_close(out, literal, **TIGHT)
        inputs = (state, update, *site.parameters())
        losses = [(y * random(*y.shape, seed=6)).sum() for y in (out, literal)]
        for ours, truth in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
            torch.testing.assert_close(ours, truth, **TIGHT)

    def test_wider_slots_with_zeros_behind_have_the_coefficients_of_the_old_divisor(self):
        site = connection(2, 5, eps=0.3)
        wider = connection(2, 5, slot_width=SLOT_WIDTH + 4, eps=0.3, slot_norm_dim=SLOT_WIDTH)
        with torch.no_grad():
            wider.dynamic.weight[:, :SLOT_WIDTH] = site.dynamic.weight
            wider.norm.weight[:SLOT_WIDTH] = site.norm.weight
            for of in ("static", "scale"):
                getattr(wider, of).weight.copy_(getattr(site, of).weight)
        state = state_of(site)
        padded = torch.nn.functional.pad(state, (0, 4))
        torch.testing.assert_close(wider.coefficients(padded), site.coefficients(state), **TIGHT)

    def test_one_block_is_the_hyper_connection_of_its_paper(self):
        """arXiv:2409.19606, Eq. (10)-(14), with RMSNorm: one scale for A and one for B, no factor 1 / sqrt(d)."""
        n, d = 4, SLOT_WIDTH
        site = connection(1, n)
        scale_a, scale_b = 0.3, 0.6
        table(site, "scale").copy_(torch.tensor([scale_a] * (1 + n) + [scale_b], dtype=torch.float64))
        weight = site.dynamic.weight.detach() / math.sqrt(d)  # rows W_m, W_r, W_beta
        static_a = table(site)[:, : 1 + n] + torch.eye(1 + n, dtype=torch.float64)[1:]  # the carry's identity
        state, update = state_of(site), update_of(site)
        x, out = connect(site, state, update)
        for row in range(2):
            for position in range(3):
                h, t = state[row, position], update[row, position]
                h_norm = h / (h.square().mean(1, keepdim=True) + 1e-6).sqrt() * site.norm.weight.detach()
                a = scale_a * torch.tanh(h_norm @ weight[: 1 + n].T) + static_a
                b = scale_b * torch.tanh(h_norm @ weight[1 + n]) + table(site)[:, 1 + n]
                torch.testing.assert_close(x[row, position], a[:, 0] @ h, **TIGHT)
                torch.testing.assert_close(out[row, position], torch.outer(b, t) + a[:, 1:].T @ h, **TIGHT)

    def test_as_many_slots_as_blocks_with_a_diagonal_write_is_the_frac_connection_of_its_paper(self):
        """arXiv:2503.14125: every fraction takes its own part of the update only, by one number."""
        m = 3
        site = connection(m, m)
        write = columns(site)[2]
        off_diagonal = ~torch.eye(m, dtype=torch.bool)
        for of in ("static", "scale"):
            table(site, of)[:, write].masked_fill_(off_diagonal, 0)
        site.dynamic.weight.data[write] = site.dynamic.weight.data[2 * m]  # one vector W_beta
        state, update = state_of(site), update_of(site)
        x, out = connect(site, state, update)
        static, scale = table(site), table(site, "scale")
        fractions = state / (state.square().mean(-1, keepdim=True) + 1e-6).sqrt() * site.norm.weight.detach()
        projected = torch.tanh(fractions @ site.dynamic.weight.detach().T / math.sqrt(SLOT_WIDTH))
        for i in range(m):
            expected = sum((static + scale * projected)[..., j, i, None] * state[..., j, :] for j in range(m))
            torch.testing.assert_close(x[..., i * SLOT_WIDTH : (i + 1) * SLOT_WIDTH], expected, **TIGHT)
            own = static[i, 2 * m + i] + scale[i, 2 * m + i] * projected[..., i, 2 * m]
            carried = sum((static + scale * projected)[..., j, m + i, None] * state[..., j, :] for j in range(m))
            part = update[..., i * SLOT_WIDTH : (i + 1) * SLOT_WIDTH]
            torch.testing.assert_close(out[..., i, :], state[..., i, :] + carried + own[..., None] * part, **TIGHT)

    @pytest.mark.parametrize(("m", "n"), SIZES)
    def test_static_sites_unroll_to_the_papers_product(self, m, n):
        """Eq. (13), its comma a product: H^L = sum_t (prod_{i<t} A^T_{L-i}) B^T_{L-t} Z^{L-t} + (prod A^T) H^0."""
        sites = [connection(m, n, dynamic=False) for _ in range(4)]
        for seed, site in enumerate(sites):
            table(site).add_(random(*table(site).shape, seed=seed))
        start = state = state_of(sites[0])
        updates = [update_of(site, seed=10 + i) for i, site in enumerate(sites)]
        for site, update in zip(sites, updates, strict=True):
            state = connect(site, state, update)[1]
        expected, product = torch.zeros_like(state), torch.eye(n, dtype=torch.float64)
        for site, update in zip(reversed(sites), reversed(updates), strict=True):
            _, carry, write = columns(site)
            expected = expected + product @ table(site)[:, write] @ update.unflatten(-1, (m, -1))
            product = product @ (torch.eye(n, dtype=torch.float64) + table(site)[:, carry]).T
        torch.testing.assert_close(state, expected + product @ start, **TIGHT)

    @pytest.mark.parametrize(("size", "dtype"), TYPED_SIZES)
    def test_without_a_dynamic_matrix_all_tokens_have_the_static_coefficients_whatever_the_scale(self, size, dtype):
        m, n = size
        dynamic, static = connection(m, n).to(dtype), connection(m, n, dynamic=False).to(dtype)
        dynamic.dynamic.weight.data.zero_()
        static.static.weight.data.copy_(dynamic.static.weight.data)
        state, update = state_of(static, dtype), update_of(static, dtype)
        for ours, truth in zip(connect(dynamic, state, update), connect(static, state, update), strict=True):
            torch.testing.assert_close(ours, truth)


class TestSymmetries:
    def test_a_static_site_does_not_know_the_basis_of_its_slots(self):
        """H -> P H, A_read -> P^-T A_read, A_carry -> P^-T A_carry P^T, B -> B P^T."""
        site, turned = connection(2, 5, dynamic=False), connection(2, 5, dynamic=False)
        p = torch.eye(5, dtype=torch.float64) + random(5, 5, seed=8) / 5
        read, carry, write = columns(site)
        full = table(site)[:, carry] + torch.eye(5, dtype=torch.float64)
        table(turned)[:, read] = p.inverse().T @ table(site)[:, read]
        table(turned)[:, carry] = p.inverse().T @ full @ p.T - torch.eye(5, dtype=torch.float64)
        table(turned)[:, write] = p @ table(site)[:, write]  # its rows are slots: the transpose of B
        state, update = state_of(site), update_of(site)
        (x, out), (x_turned, out_turned) = connect(site, state, update), connect(turned, p @ state, update)
        torch.testing.assert_close(x_turned, x, **TIGHT)
        torch.testing.assert_close(out_turned, p @ out, **TIGHT)

    @pytest.mark.parametrize("is_permutation", [True, False])
    def test_a_dynamic_site_knows_it_up_to_the_order(self, is_permutation):
        m, n = 2, 5
        site, turned = connection(m, n), connection(m, n)
        order = torch.tensor([3, 0, 4, 1, 2])
        p = torch.eye(n, dtype=torch.float64)[order]
        if not is_permutation:
            p = torch.linalg.qr(random(n, n, seed=8)).Q
        read, carry, write = columns(site)
        for of in ("static", "scale"):
            table(turned, of)[:, read] = p @ table(site, of)[:, read]
            table(turned, of)[:, carry] = p @ table(site, of)[:, carry] @ p.T
            table(turned, of)[:, write] = p @ table(site, of)[:, write]
        turned.dynamic.weight.data.copy_(site.dynamic.weight.data)
        turned.dynamic.weight.data[carry] = p @ site.dynamic.weight.data[carry]
        turned.norm.weight.data.copy_(site.norm.weight.data)
        state, update = state_of(site), update_of(site)
        (x, out), (x_turned, out_turned) = connect(site, state, update), connect(turned, p @ state, update)
        if is_permutation:
            torch.testing.assert_close(x_turned, x, **TIGHT)
            torch.testing.assert_close(out_turned, p @ out, **TIGHT)
        else:
            assert (x_turned - x).abs().max() > 0.01

    @pytest.mark.parametrize(("m", "n"), SIZES)
    def test_static_blocks_can_be_cut_finer(self, m, n):
        """Every coefficient times the identity of the parts."""
        site, parts = connection(m, n, dynamic=False), 3
        fine = connection(m * parts, n * parts, dynamic=False, slot_width=SLOT_WIDTH // parts)
        table(fine).copy_(
            torch.cat(
                [
                    torch.kron(table(site)[:, columns_], torch.eye(parts, dtype=torch.float64))
                    for columns_ in columns(site)
                ],
                dim=1,
            )
        )
        state, update = state_of(site), update_of(site)
        x, out = connect(site, state, update)
        x_fine, out_fine = connect(fine, state.view(2, 3, n * parts, -1), update)
        torch.testing.assert_close(x_fine, x, **TIGHT)
        torch.testing.assert_close(out_fine.view_as(out), out, **TIGHT)


class TestDynamicCoefficients:
    @pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 3), (3, 7)])
    def test_stay_within_the_scale_of_the_static_ones_and_reach_it(self, m, n):
        site = connection(m, n)
        site.dynamic.weight.data.mul_(1e3)
        deviation = (measured_table(site, state_of(site)) - table(site)).abs()
        scale = table(site, "scale").abs()
        assert (deviation <= scale + 1e-9).all()
        torch.testing.assert_close(deviation.amax(dim=(0, 1)), scale)

    @pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 3), (3, 7)])
    def test_do_not_change_with_the_size_of_a_slot(self, m, n):
        site = connection(m, n, eps=1e-20)
        state = state_of(site)
        sizes = torch.logspace(-3, 3, n, dtype=torch.float64)[:, None]
        torch.testing.assert_close(
            measured_write(site, sizes * state), measured_write(site, state), rtol=1e-9, atol=1e-9
        )
        tables = [measured_table(site, size * state) for size in (1.0, 100.0)]
        torch.testing.assert_close(*tables, rtol=1e-8, atol=1e-9)

    @pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 3), (3, 7)])
    def test_of_a_slot_depend_on_that_slot_alone(self, m, n):
        site = connection(m, n)
        state = state_of(site)
        other = state.clone()
        other[..., -1, :] = random(2, 3, SLOT_WIDTH, seed=9)
        before, after = measured_table(site, state), measured_table(site, other)
        torch.testing.assert_close(before[..., :-1, :], after[..., :-1, :], **TIGHT)
        assert (before[..., -1, :] - after[..., -1, :]).abs().max() > 0.1

    def test_of_a_slot_of_zeros_are_the_static_ones(self):
        site = connection(2, 5)
        state = state_of(site)
        state[..., [1, 4], :] = 0
        write = columns(site)[2]
        expected = table(site)[[1, 4], write].expand(2, 3, 2, 2)
        torch.testing.assert_close(measured_write(site, state)[..., [1, 4], :], expected, **TIGHT)

    @pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 3), (3, 7)])
    def test_learn_from_the_start_although_their_matrix_is_zero(self, m, n):
        site = connection(m, n, is_random=False)
        assert (site.dynamic.weight == 0).all()
        x, out = connect(site, state_of(site), update_of(site))
        (x.square().sum() + out.square().sum()).backward()
        assert (site.dynamic.weight.grad != 0).all()
        assert (site.static.weight.grad != 0).all()
        assert (site.scale.weight.grad == 0).all()  # of a factor of tanh(0)
        assert (site.norm.weight.grad == 0).all()


class TestMoreSlots:
    """A slot can be added without a change iff it gives nothing to what was there: statically and dynamically."""

    def grown(self, is_static: bool, is_scaled: bool) -> tuple[float, float]:
        """Change of what is read and of the old slots; whether the new slot's row may give to them."""
        m, n = 2, 3
        small, large = connection(m, n), connection(m, n + 1)
        old = [*range(m + n), *range(m + n + 1, 2 * m + n + 1)]  # all columns but the carry to the new slot
        gives = [*range(m + n)]
        for of, is_free in (("static", is_static), ("scale", is_scaled)):
            table(large, of)[:n, old] = table(small, of)
            if not is_free:
                table(large, of)[n, gives] = 0
        large.dynamic.weight.data[old] = small.dynamic.weight.data
        large.norm.weight.data.copy_(small.norm.weight.data)
        state, update = state_of(small), update_of(small)
        x, out = connect(small, state, update)
        x_large, out_large = connect(large, torch.cat((state, random(2, 3, 1, SLOT_WIDTH, seed=7)), dim=-2), update)
        return (x_large - x).abs().max().item(), (out_large[..., :n, :] - out).abs().max().item()

    def test_a_slot_that_gives_nothing_changes_nothing(self):
        assert max(self.grown(is_static=False, is_scaled=False)) < 1e-12

    @pytest.mark.parametrize(("is_static", "is_scaled"), [(False, True), (True, False), (True, True)])
    def test_one_that_gives_only_statically_or_only_dynamically_changes_both(self, is_static, is_scaled):
        """The dynamic matrix is one for all slots, so that zero static coefficients are not enough."""
        assert min(self.grown(is_static, is_scaled)) > 0.01


class TestStart:
    @pytest.mark.parametrize("dynamic", [False, True])
    @pytest.mark.parametrize(("size", "dtype"), TYPED_SIZES)
    def test_a_site_reads_the_first_slots_and_adds_block_after_block(self, size, dynamic, dtype):
        """Eq. (11) and (12), to the last bit."""
        m, n = size
        site = connection(m, n, is_random=False, dynamic=dynamic).to(dtype)
        state, update = state_of(site, dtype), update_of(site, dtype)
        x, out = connect(site, state, update)
        assert torch.equal(x, state[..., :m, :].flatten(-2))
        blocks = update.unflatten(-1, (m, -1))
        assert torch.equal(out, torch.stack([state[..., j, :] + blocks[..., j % m, :] for j in range(n)], dim=-2))

    def test_dynamic_coefficients_start_with_scales_and_gains_of_one(self):
        """Section 3.3: S is 1, and the matrix alone keeps the dynamic part at 0."""
        site = connection(2, 5, is_random=False)
        assert (site.scale.weight == 1).all()
        assert (site.norm.weight == 1).all()
        assert (site.dynamic.weight == 0).all()

    @pytest.mark.parametrize("m", [1, 2, 3, 5])
    @pytest.mark.parametrize("n_owned", [5, 6])
    @pytest.mark.parametrize("n", [6, 8, 13])
    def test_write_inits(self, m, n_owned, n):
        """Slot (from 0) -> the block it takes."""
        expected = {
            "cyclic": {j: j % m for j in range(n)},
            "slice": {j: j for j in range(m)},
            "tail_cyclic": {j: j for j in range(m)} | {j: j % m for j in range(n_owned, n)},
        }
        for write_init, takes in expected.items():
            site = connection(m, n, is_random=False, write_init=write_init, n_owned_slots=n_owned)
            write = table(site)[:, columns(site)[2]]
            assert {int(j): int(k) for j, k in write.nonzero()} == takes
            assert write.sum() == len(takes)

    def test_tail_cyclic_is_the_papers_cyclic_where_all_widths_are_equal_and_a_slice_without_a_tail(self):
        for m, n in SIZES:
            tail, cyclic = (table(connection(m, n, False, write_init=init)) for init in ("tail_cyclic", "cyclic"))
            assert torch.equal(tail, cyclic)
            tail, cut = (
                table(connection(m, n, False, write_init=init, n_owned_slots=n)) for init in ("tail_cyclic", "slice")
            )
            assert torch.equal(tail, cut)


class TestPrecision:
    def test_a_carry_near_one_is_not_rounded_to_one_in_bf16(self):
        site = connection(1, 1, is_random=False, dynamic=False).to(torch.float32)
        table(site)[:, 1] = 2**-8
        state = torch.full((2, 3, 1, SLOT_WIDTH), 1.5, dtype=torch.bfloat16)
        out = connect(site, state, torch.zeros(2, 3, SLOT_WIDTH, dtype=torch.bfloat16))[1]
        assert out.dtype == torch.bfloat16
        assert (out == 1.5078125).all()  # 1.5 * (1 + 2^-8) = 1.50586 lies nearest to it; neighbours are 2^-7 apart

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_autocast_changes_no_mixture(self, dynamic):
        site = connection(2, 5, dynamic=dynamic).to(torch.float32)
        state, update = state_of(site, torch.float32), update_of(site, torch.float32)
        plain = connect(site, state, update)
        with torch.autocast("cpu", torch.bfloat16):
            cast = connect(site, state, update)
        assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))

    def test_the_state_keeps_its_type_when_the_update_has_another(self):
        site = connection(2, 5).to(torch.float32)
        state, update = state_of(site, torch.float32), update_of(site, torch.bfloat16)
        x, out = connect(site, state, update)
        assert (x.dtype, out.dtype) == (torch.float32, torch.float32)
        torch.testing.assert_close(out, connect(site, state, update.float())[1])


class TestCost:
    def parameters(self, m: int, n: int, dynamic: bool) -> int:
        d_model = 2048
        resolved = HyperConnectionsConfig(
            slot_width=d_model // m, n_slots=n, n_owned_slots=m, group_norm=None, dynamic=dynamic
        )
        built = on_meta(lambda: resolved.build(d_model, d_model, d_model))
        n_parameters = sum(p.numel() for p in built.parameters())
        assert resolved.cost(d_model, d_model, d_model).params == n_parameters
        return n_parameters

    def test_parameters_are_the_papers(self):
        """2 n (2 m + n) + b (2 m + n) + b, and n (2 m + n) where all tokens have the same."""
        assert self.parameters(2, 3, dynamic=False) == 21
        assert self.parameters(2, 3, dynamic=True) == 21 + 21 + 7168 + 1024
        assert self.parameters(8, 64, dynamic=True) == 5120 + 5120 + 20480 + 256

    def test_frac_connections_have_the_parameters_of_their_paper(self):
        """165,056 in 16 layers of width 2048 with 4 fractions: there B is diagonal, its dynamic part one vector for all
        fractions, and A and B have one scale each.
        """
        m, b = 4, 512
        off_diagonal, further_vectors, further_scales = m * (m - 1), (m - 1) * b, m * 3 * m - 2
        fewer = off_diagonal + further_vectors + further_scales
        assert 2 * 16 * (self.parameters(m, m, dynamic=True) - fewer) == 165_056

    @pytest.mark.parametrize(
        ("m", "n", "per_channel"),
        [
            (2, 3, 48),
            (1, 4, 112),
            (2, 4, 72),
            (4, 8, 136),
            (4, 16, 400),
            (8, 16, 264),
            (8, 32, 784),
            (8, 64, 2592),
        ],
    )
    def test_flops_are_the_papers_without_those_of_the_norm(self, m, n, per_channel):
        """Section 3.5: 4 r (1 + 2 m + r m) for each channel of the backbone, r = n / m, of which the norm 4 r."""
        r, d_model = n / m, 256
        assert per_channel == 4 * r * (1 + 2 * m + r * m)
        resolved = HyperConnectionsConfig(slot_width=d_model // m, n_slots=n, n_owned_slots=m, group_norm=None)
        assert resolved.cost(d_model, d_model, d_model).flops == (per_channel - 4 * r) * d_model
