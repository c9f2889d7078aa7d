"""The two ends of an over-width stream, and the whole model before training, which is one without virtual width."""

import math

import pytest
import torch
from model_cases import config, decoder, random_tokens, started_from
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.model.decoder import build
from widthwise.model.initial_weights import fill
from widthwise.model.residual.over_width_module import (
    ENTRIES,
    REDUCTIONS,
    GroupNorm,
    identity,
    identity_on_top,
    mean_of_groups,
)

D_MODEL, N_SLOTS, SLOT_WIDTH = 6, 5, 3
SIZES = (D_MODEL, N_SLOTS, SLOT_WIDTH)
WIDTH = N_SLOTS * SLOT_WIDTH
pytestmark = pytest.mark.usefixtures("float64")


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def end(make, *sizes: int, is_random: bool = True) -> torch.nn.Module:
    """An entry or a reduction, with random weights or as it starts."""
    module = make(*(sizes or SIZES))
    generator = torch.Generator().manual_seed(0)
    for part in module.modules():
        fill(part, 1.0, generator)
    with torch.no_grad():
        for parameter in module.parameters() if is_random else ():
            parameter.copy_(random(*parameter.shape, seed=3))
    return module


class TestEntries:
    def test_direct_cuts_a_row_into_slots(self):
        rows = random(2, 4, WIDTH)
        slots = end(ENTRIES["direct"])(rows)
        for j in range(N_SLOTS):
            assert torch.equal(slots[..., j, :], rows[..., j * SLOT_WIDTH : (j + 1) * SLOT_WIDTH])

    def test_pad_puts_zeros_behind_a_row(self):
        rows = random(2, 4, D_MODEL)
        slots = end(ENTRIES["pad"])(rows)
        assert torch.equal(slots.flatten(-2)[..., :D_MODEL], rows)
        assert (slots.flatten(-2)[..., D_MODEL:] == 0).all()

    def test_expand_is_the_papers_matrix(self):
        entry, rows = end(ENTRIES["expand"]), random(2, 4, D_MODEL)
        torch.testing.assert_close(entry(rows).flatten(-2), torch.einsum("...d,wd->...w", rows, entry.w_expand.weight))

    def test_slot_is_expand_with_one_number_for_each_pair_of_blocks(self):
        slot, expand = end(ENTRIES["slot"]), end(ENTRIES["expand"])
        with torch.no_grad():
            expand.w_expand.weight.copy_(torch.kron(slot.w_expand.weight, torch.eye(SLOT_WIDTH)))
        rows = random(2, 4, D_MODEL)
        torch.testing.assert_close(slot(rows), expand(rows))

    @pytest.mark.parametrize("kind", ["expand", "slot", "pad"])
    def test_the_first_slots_start_as_the_row(self, kind):
        rows = random(2, 4, D_MODEL)
        slots = end(ENTRIES[kind], is_random=False)(rows)
        assert torch.equal(slots.flatten(-2)[..., :D_MODEL], rows)

    @pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 8)])
    @pytest.mark.parametrize("embedding", ["slot", "expand", "direct"])
    def test_no_two_slots_stay_equal(self, embedding, m, n):
        """Slots that start alike, are written alike and are not read have equal gradients for ever."""
        model = build(over_width(m, n, embedding=embedding, reduce="slot"), seed=3, dtype=torch.float64)
        optimizer, tokens = torch.optim.SGD(model.parameters(), lr=0.1), random_tokens(2, 9)
        for _ in range(2):
            optimizer.zero_grad()
            model.loss(tokens, tokens.flip(1)).objective.backward()
            optimizer.step()
        rows = model.exit.reduce.w_reduce.weight.T
        assert torch.pdist(rows.detach()).min() > 1e-9

    def test_expand_starts_with_further_slots_of_the_size_of_the_row(self):
        d_model, n_slots = 64, 12
        entry = end(ENTRIES["expand"], d_model, n_slots, 16, is_random=False)
        below = entry.w_expand.weight[d_model:]
        n = below.numel()
        assert abs(below.mean().item()) < 5 / math.sqrt(d_model * n)
        assert abs(below.std().item() * math.sqrt(d_model) - 1) < 5 / math.sqrt(2 * n)
        assert not torch.equal(below[:d_model], below[d_model:])
        slots = entry(random(50, 40, d_model))
        assert slots[..., d_model // 16 :, :].std().item() == pytest.approx(1, rel=0.1)


class TestReductions:
    @pytest.mark.parametrize("kind", ["full", "slot"])
    def test_starts_as_the_first_coordinates(self, kind):
        slots = random(2, 4, N_SLOTS, SLOT_WIDTH)
        assert torch.equal(end(REDUCTIONS[kind], is_random=False)(slots), slots.flatten(-2)[..., :D_MODEL])

    @pytest.mark.parametrize("kind", ["full", "slot"])
    @pytest.mark.parametrize("r", [1, 3])
    def test_can_start_as_the_mean_of_groups(self, kind, r):
        sizes = D_MODEL, r * D_MODEL // SLOT_WIDTH, SLOT_WIDTH
        slots = random(2, 4, *sizes[1:])
        groups = slots.flatten(-2).unflatten(-1, (r, D_MODEL))
        reduce = end(lambda *_: REDUCTIONS[kind](*sizes, mean_of_groups), is_random=False)
        torch.testing.assert_close(reduce(slots), groups.mean(dim=-2))

    def test_full_is_the_papers_matrix(self):
        reduce, slots = end(REDUCTIONS["full"]), random(2, 4, N_SLOTS, SLOT_WIDTH)
        expected = torch.einsum("...w,dw->...d", slots.flatten(-2), reduce.w_reduce.weight)
        torch.testing.assert_close(reduce(slots), expected)

    def test_slot_is_full_with_one_number_for_each_pair_of_blocks(self):
        slot, full = end(REDUCTIONS["slot"]), end(REDUCTIONS["full"])
        with torch.no_grad():
            full.w_reduce.weight.copy_(torch.kron(slot.w_reduce.weight, torch.eye(SLOT_WIDTH)))
        slots = random(2, 4, N_SLOTS, SLOT_WIDTH)
        torch.testing.assert_close(slot(slots), full(slots))


class TestGroupNorm:
    EPS = 1e-3
    N_GROUPS = 4

    def norm(self, kind: str) -> GroupNorm:
        return end(lambda *_: GroupNorm(kind, D_MODEL, self.N_GROUPS * D_MODEL, self.EPS, norm_dim=D_MODEL))

    def slots(self) -> Tensor:
        return random(2, 5, self.N_GROUPS * 2, D_MODEL // 2) + 0.7

    def test_layer_is_torchs_group_norm_of_each_token(self):
        norm, slots = self.norm("layer"), self.slots()
        expected = torch.nn.functional.group_norm(
            slots.reshape(10, -1), self.N_GROUPS, norm.norm.weight, norm.bias.weight, self.EPS
        )
        torch.testing.assert_close(norm(slots).reshape(10, -1), expected)

    def test_rms_leaves_every_group_with_a_root_mean_square_of_one(self):
        norm, slots = self.norm("rms"), self.slots()
        groups = (norm(slots).flatten(-2) / norm.norm.weight).unflatten(-1, (self.N_GROUPS, D_MODEL))
        size = slots.flatten(-2).unflatten(-1, (self.N_GROUPS, D_MODEL)).square().mean(-1)
        torch.testing.assert_close(groups.square().mean(-1), size / (size + self.EPS))
        assert norm.bias is None

    @pytest.mark.parametrize("kind", ["rms", "layer"])
    def test_a_token_and_a_group_are_normalised_alone(self, kind):
        norm, slots = self.norm(kind), self.slots()
        other = slots.clone()
        other[0, 3, :2] *= 7
        other[0, 3, 0] += 2
        changed = (norm(other) != norm(slots)).any(dim=-1)
        expected = torch.zeros(2, 5, self.N_GROUPS * 2, dtype=torch.bool)
        expected[0, 3, :2] = True
        assert torch.equal(changed, expected)

    @pytest.mark.parametrize("kind", ["rms", "layer"])
    def test_works_in_fp32_on_a_stream_of_bf16(self, kind):
        """One rounding, of the result, is at most 2^-9 of it."""
        norm, slots = self.norm(kind).to(torch.float32), self.slots().to(torch.bfloat16)
        torch.testing.assert_close(norm(slots).float(), norm(slots.float()), rtol=2**-8, atol=1e-6)

    @pytest.mark.parametrize(
        ("m", "n", "asked", "found"),
        [
            (2, 4, "auto", "rms"),
            (2, 3, "auto", None),  # groups of d_model do not tile 1.5 d_model: the paper leaves the norm out there
            (2, 2, "auto", None),
            (1, 3, "auto", "rms"),
            (1, 1, "rms", "rms"),
            (2, 4, "layer", "layer"),
            (2, 4, "none", None),
        ],
    )
    def test_is_there_where_groups_tile_a_wider_stream(self, m, n, asked, found):
        residual = {"kind": "hyper_connections", "n_fractions": m, "n_slots": n, "group_norm": asked}
        model = build(config("uniform", residual=residual), 0)
        assert model.config.residual.group_norm == found
        assert (model.exit.group_norm is None) == (found is None)


@pytest.mark.parametrize("start", [identity, identity_on_top])
def test_starts_overwrite_whatever_the_memory_held(start):
    weight = torch.full((9, 4), math.nan)
    start(weight, torch.Generator().manual_seed(0))
    assert torch.isfinite(weight).all()
    assert torch.equal(weight[:4], torch.eye(4))


def over_width(m: int, n: int, **options):
    return config("uniform", residual={"kind": "hyper_connections", "n_fractions": m, "n_slots": n, **options})


class TestWholeModelBeforeTraining:
    """Beside a decoder with the plain residual."""

    @pytest.mark.parametrize(("reduce", "dynamic"), [("full", False), ("slot", True)])
    @pytest.mark.parametrize(
        ("m", "n", "embedding"), [(1, 2, "expand"), (2, 3, "slot"), (2, 4, "pad"), (4, 4, "expand"), (5, 8, "slot")]
    )
    def test_is_the_plain_one_of_the_same_seed_to_the_last_bit(self, m, n, embedding, reduce, dynamic):
        options = {"embedding": embedding, "reduce": reduce, "dynamic": dynamic, "group_norm": "none"}
        model, plain = build(over_width(m, n, **options), seed=3), build(config("uniform"), seed=3)
        tokens = random_tokens(2, 5)
        assert torch.equal(model(tokens), plain(tokens))

    @pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
    def test_with_a_trained_decoder_in_the_first_columns_of_its_table_is_that_decoder(self, size):
        """Whatever the other columns hold."""
        plain = decoder(config("uniform"))
        model = started_from(plain, over_width(2, 4, group_norm="none"))
        with torch.no_grad():
            model.embedding.weight[:, 20:] *= size
        tokens = random_tokens(2, 5)
        assert torch.equal(model(tokens), plain(tokens))

    @pytest.mark.parametrize("embedding", ["direct", "expand"])
    def test_norms_in_groups_of_root_mean_squares_cost_only_their_eps(self, embedding):
        """y / sqrt(mean(y^2) + eps) of y = x / sqrt(s + eps), s = mean(x^2), is x / sqrt(s + eps (s + eps))."""
        plain = decoder(config("uniform"))
        model = started_from(plain, over_width(2, 4, embedding=embedding, group_norm="rms"))
        tokens, eps = random_tokens(2, 5), plain.config.final_norm.eps
        with torch.no_grad():
            s = plain.stream(tokens).prefix.square().mean(-1, keepdim=True)
            factor = torch.sqrt((s + eps) / (s + eps * (s + eps)))
            torch.testing.assert_close(model.hidden(tokens), factor * plain.hidden(tokens), rtol=1e-12, atol=1e-12)
        assert (factor - 1).abs().max() < eps * (1 + 1 / s.min())

    def test_norms_in_groups_that_subtract_the_mean_make_another_function(self):
        plain = decoder(config("uniform"))
        model = started_from(plain, over_width(2, 4, group_norm="layer"))
        tokens = random_tokens(2, 5)
        assert (model(tokens) - plain(tokens)).abs().max() > 0.01

    @pytest.mark.parametrize("reduce", ["full", "slot"])
    def test_a_head_that_starts_with_the_mean_sees_the_mean_of_the_groups(self, reduce):
        options = {"embedding": "expand", "reduce": reduce, "group_norm": "none"}
        first, mean = (build(over_width(2, 6, **options, reduce_init=start), seed=3) for start in ("first", "mean"))
        tokens = random_tokens(2, 5)
        groups = first.slots(first.stream(tokens)).flatten(-2).unflatten(-1, (3, 20))
        assert (groups.std(dim=-2) > 0).all()
        torch.testing.assert_close(mean.hidden(tokens), mean.exit.norm(groups.mean(dim=-2)))

    def test_a_mean_of_groups_that_do_not_tile_the_stream_is_refused(self):
        with pytest.raises(UserError, match=r"reduce_init: got mean; groups of 2 slots do not tile n_slots = 5"):
            over_width(2, 5, reduce_init="mean")

    def test_a_plain_residual_does_not_become_one_whose_head_sees_a_mean(self):
        new = over_width(2, 4, embedding="pad", reduce_init="mean")
        with pytest.raises(UserError, match=r"reduce_init: got mean; the first slots were read"):
            plan_growth(config("uniform"), new)

    @pytest.mark.parametrize("embedding", ["direct", "expand", "slot"])
    def test_the_head_learns_from_every_slot_at_the_first_step(self, embedding):
        model = build(over_width(2, 5, embedding=embedding), 0)
        model.loss(random_tokens(2, 9), random_tokens(2, 9, seed=1))[0].backward()
        assert (model.exit.reduce.w_reduce.weight.grad.abs().amax(dim=0) > 0).all()
