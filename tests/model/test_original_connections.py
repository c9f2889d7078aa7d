"""Hyper-Connections (arXiv:2409.19606) and Frac-Connections (arXiv:2503.14125) as their papers have them."""

from pathlib import Path

import pytest
import torch
from literal_decoder import attention, normalised, swiglu
from measured import on_meta
from model_cases import AS_IN_THE_PAPERS, config, decoder, random_tokens
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.model.decoder import Decoder, build
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.recipe.recipe import load_recipe

pytestmark = pytest.mark.usefixtures("float64")
CONFIGS = Path(__file__).parents[2] / "configs"
HYPER = {"kind": "hyper_connections", **AS_IN_THE_PAPERS}
FRACTIONS = {**HYPER, "n_fractions": 4}


def sites(model: Decoder):
    """Site and sublayer (with its norm), in the order of the stream."""
    for layer in model.layers:
        yield layer.attention_residual, lambda x, of=layer.attention: attention(of, normalised(of.norm, x))
        yield layer.ffn_residual, lambda x, of=layer.ffn: swiglu(of, normalised(of.norm, x))


def unpacked(site, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the papers call reads (..., n, m), A_r (..., n, n) and B (..., n) of the hidden vectors h (..., n, d)."""
    n, m = h.shape[-2], site.n_read
    h_norm = h / (h.square().mean(-1, keepdim=True) + site.config.eps).sqrt() * site.norm.weight
    s_alpha, s_beta = site.scale.weight
    w, static = site.dynamic.weight, site.static.weight.view(n, m + n + 1)
    alpha = s_alpha * torch.tanh(h_norm @ w[: m + n].T) + static[:, : m + n]
    beta = s_beta * torch.tanh(h_norm @ w[m + n]) + static[:, m + n]
    return alpha[..., :m], alpha[..., m:] + torch.eye(n), beta


def hyper_connected(model: Decoder, tokens: Tensor) -> Tensor:
    """n copies of the embedding; each sublayer sees one mixture and is added to every copy; the sum at the end."""
    rows = model.embedding.weight[tokens] * model.config.embedding_multiplier
    h = torch.stack([rows] * model.config.residual.n_slots, dim=-2)
    for site, sublayer in sites(model):
        a_m, a_r, beta = unpacked(site, h)
        z = sublayer((a_m * h).sum(-2))
        h = torch.einsum("btij,btid->btjd", a_r, h) + beta[..., None] * z[..., None, :]
    return normalised(model.exit.norm, h.sum(-2))


def frac_connected(model: Decoder, tokens: Tensor) -> Tensor:
    """The embedding in m fractions; a sublayer sees m mixtures, and each fraction takes its own part of the update."""
    rows, m = model.embedding.weight[tokens] * model.config.embedding_multiplier, model.config.residual.n_slots
    h = torch.stack(rows.chunk(m, dim=-1), dim=-2)
    for site, sublayer in sites(model):
        y, a, beta = unpacked(site, h)
        z = sublayer(torch.cat([(y[..., k, None] * h).sum(-2) for k in range(m)], dim=-1))
        z = torch.stack(z.chunk(m, dim=-1), dim=-2)
        h = torch.einsum("btij,btid->btjd", a, h) + beta[..., None] * z
    return normalised(model.exit.norm, torch.cat(list(h.unbind(-2)), dim=-1))


@pytest.mark.parametrize("kernels", ["fused", "reference"])
@pytest.mark.parametrize(
    ("residual", "paper"),
    [({**HYPER, "n_slots": 3}, hyper_connected), ({**FRACTIONS, "n_slots": 4}, frac_connected)],
    ids=["hyper", "frac"],
)
def test_a_model_is_the_papers_with_all_gradients(residual, paper, kernels, monkeypatch):
    monkeypatch.setenv("WIDTHWISE_KERNELS", kernels)
    model, tokens = decoder(config("uniform", residual=residual)), random_tokens(2, 7)
    found, expected = model.hidden(tokens), paper(model, tokens)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    inside = [parameter for name, parameter in model.named_parameters() if name != "head.weight"]
    gradients = (torch.autograd.grad((hidden * direction).sum(), inside) for hidden in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


class TestStart:
    def test_hyper_connections_read_one_stream_after_the_other_and_write_all(self):
        """Eq. (14): A_m of sublayer k is e_(k mod n), A_r the identity, B all ones; scales are 0.01."""
        n = 3
        model = build(config("uniform", residual={**HYPER, "n_slots": n}), 0)
        for k, (site, _) in enumerate(sites(model)):
            table = site.static.weight.view(n, n + 2)
            assert table[:, 0].tolist() == [float(i == k % n) for i in range(n)]
            assert (table[:, 1:-1] == 0).all()  # the deviation from the identity
            assert (table[:, -1] == 1).all()
            assert (site.scale.weight == 0.01).all()
            assert (site.dynamic.weight == 0).all()

    def test_fractions_are_read_in_place(self):
        model = build(config("uniform", residual={**FRACTIONS, "n_slots": 4}), 0)
        for site, _ in sites(model):
            assert torch.equal(site.static.weight.view(4, 9)[:, :4], torch.eye(4))

    def test_blocks_of_a_wider_stream_are_read_in_turn(self):
        residual = {**HYPER, "n_fractions": 2, "n_slots": 6}
        for k, (site, _) in enumerate(sites(build(config("uniform", residual=residual), 0))):
            rows = site.static.weight.view(6, -1)[:, :2].nonzero().tolist()
            assert sorted(rows) == sorted([[(2 * k) % 6, 0], [(2 * k + 1) % 6, 1]])

    @pytest.mark.parametrize("residual", [{**HYPER, "n_slots": 3}, {**FRACTIONS, "n_slots": 4}])
    def test_a_model_is_the_plain_one_but_for_the_eps_of_the_last_norm(self, residual):
        """The last norm sees the sum of n equal streams, so that its eps counts n^2 times less."""
        model, plain = (
            build(config("uniform", **said), 3, dtype=torch.float64) for said in ({"residual": residual}, {})
        )
        n_copies = model.config.residual.n_slots // residual.get("n_fractions", 1)
        plain.exit.norm.eps /= n_copies**2
        tokens = random_tokens(2, 5)
        torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-10, atol=1e-11)

    def test_no_two_streams_stay_equal(self):
        model = build(config("uniform", residual={**HYPER, "n_slots": 4}), seed=3)
        optimizer, tokens = torch.optim.SGD(model.parameters(), lr=0.1), random_tokens(2, 9)
        for _ in range(2):
            optimizer.zero_grad()
            model.loss(tokens, tokens.flip(1)).objective.backward()
            optimizer.step()
        streams = model.slots(model.stream(tokens)).transpose(0, 2).flatten(1)
        assert torch.pdist(streams.detach()).min() > 1e-9


class TestParameters:
    def counted(self, m: int, n: int, d_model: int) -> int:
        options = {name: HYPER[name] for name in ("writes", "scale")}
        resolved = HyperConnectionsConfig(
            slot_width=d_model // m, n_slots=n, n_owned_slots=m, group_norm=None, reduce="sum", **options
        )
        site = on_meta(lambda: resolved.build(d_model, d_model, d_model))
        n_parameters = sum(parameter.numel() for parameter in site.parameters())
        assert resolved.cost(d_model, d_model, d_model).params == n_parameters
        assert resolved.exit_cost(d_model).params == 0
        return n_parameters

    @pytest.mark.parametrize("n", [1, 2, 4, 8])
    def test_hyper_connections_have_those_of_their_paper(self, n):
        """Norm, W_beta, W_m and W_r, B, A_m and A_r, two scales."""
        d = 2048
        assert self.counted(1, n, d) == d + (d + d + d * n) + (n + n + n * n) + 2

    def test_frac_connections_have_those_of_their_paper(self):
        """165,056 in 16 layers of width 2048 with 4 fractions, as it prints."""
        assert 2 * 16 * self.counted(4, 4, 2048) == 165_056


@pytest.mark.parametrize(("name", "n_streams"), [("hyper_connections_4x", 4), ("frac_connections_4", 1)])
def test_the_recipes_are_the_papers(name, n_streams):
    model = load_recipe(CONFIGS / f"{name}.yaml").explicit_model
    plain = load_recipe(CONFIGS / "uniform_200m.yaml").explicit_model
    residual = model.residual
    d, n = model.d_model, residual.n_slots
    b, m = residual.slot_width, d // residual.slot_width
    of_a_site = b + b * (m + n + 1) + n * (m + n + 1) + 2
    assert (n, n * b) == (4, n_streams * d)
    assert model.cost().params - plain.cost().params == 2 * model.n_layers * of_a_site


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"read_init": "in_turn"}, r"read_init: got in_turn; with layers of different widths use first"),
            ({"writes": "own"}, r"writes: got own; with layers of different widths use all"),
            ({"embedding": "copies"}, r"embedding: got copies; with layers of different widths use slot"),
            ({"reduce": "sum"}, r"reduce: got sum; with layers of different widths use slot"),
        ],
    )
    def test_what_layers_of_different_widths_cannot_agree_on(self, changes, message):
        with pytest.raises(UserError, match=rf"^model.residual.{message}"):
            config("x", residual={"kind": "hyper_connections", "slot_width": 4, "n_slots": 10, **changes})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"n_slots": 5}, r"embedding: got copies; groups of 2 slots do not tile n_slots = 5"),
            ({"n_slots": 5, "embedding": "slot"}, r"reduce: got sum; groups of 2 slots do not tile n_slots = 5"),
            ({"n_slots": 6, "reduce_init": "mean"}, r"reduce_init: got mean; reduce: sum has no weights"),
            ({"n_slots": 6, "read_init": "first"}, r"embedding: got copies; those that nobody reads would stay equal"),
        ],
    )
    def test_what_would_not_fit_or_never_learn(self, changes, message):
        with pytest.raises(UserError, match=rf"^model.residual.{message}"):
            config("uniform", residual={**HYPER, "n_fractions": 2, **changes})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"n_slots": 6}, r"residual.n_slots: got 6 where it was 4; growth has no conversion"),
            ({"scale": "entries"}, r"residual.scale: got 'entries' where it was 'numbers'; growth has no conversion"),
            ({"writes": "all"}, r"residual.writes: got 'all' where it was 'own'; growth has no conversion"),
        ],
    )
    def test_growth_that_nothing_could_keep_unheard(self, changes, message):
        old = {**HYPER, "n_fractions": 2, "n_slots": 4}
        with pytest.raises(UserError, match=message):
            plan_growth(config("uniform", residual=old), config("uniform", residual={**old, **changes}))

    def test_a_plain_residual_that_would_be_read_in_turn_or_added_up(self):
        for changes, message in (
            ({}, r"residual.read_init: got in_turn; the first slots were read"),
            ({"read_init": "first"}, r"residual.reduce: got sum; the first slots were read"),
        ):
            new = config("uniform", residual={**HYPER, "n_fractions": 2, "n_slots": 4, **changes})
            with pytest.raises(UserError, match=message):
                plan_growth(config("uniform"), new)
