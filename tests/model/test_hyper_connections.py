"""Hyper-connections before training, with the options of the papers on Hyper- and Frac-Connections (arXiv:2409.19606,
arXiv:2503.14125), and with invalid sizes. Decoders are compared with the formulas in test_decoder.py.
"""

import pytest
import torch
from model_cases import AS_IN_THE_PAPERS, SLOTS, config, random_tokens
from thinned import in_turn

from widthwise.mistakes import UserError
from widthwise.model.decoder import build
from widthwise.model.residual.hyper_connections_module import Pattern
from widthwise.recipe.recipe import load_recipe

pytestmark = pytest.mark.usefixtures("float64")
HYPER = {"kind": "hyper_connections", **AS_IN_THE_PAPERS}


def over_width(m: int, n: int, **options):
    return config("uniform", residual={"kind": "hyper_connections", "n_fractions": m, "n_slots": n, **options})


def test_blocks_are_written_to_the_first_slots_and_in_turn_to_the_slots_that_no_layer_owns():
    for m, n_owned, n in ((1, 5, 6), (2, 6, 8), (3, 5, 13), (5, 6, 8)):
        table = torch.empty(n, m + n + m)
        Pattern(n, n_read=m, n_write=m, n_owned_slots=n_owned)(table, torch.Generator())
        block_of_slot = {j: j for j in range(m)} | {j: j % m for j in range(n_owned, n)}
        assert {int(j): int(k) for j, k in table[:, m + n :].nonzero()} == block_of_slot
        assert table[:, m + n :].sum() == len(block_of_slot)


class TestBeforeTraining:
    """Compared with a decoder with the plain residual."""

    @in_turn(
        (("reduce", "dynamic"), [("full", False), ("slot", True)]),
        (("m", "n", "embedding"), [(1, 2, "expand"), (2, 3, "slot"), (2, 4, "pad"), (4, 4, "expand"), (5, 8, "slot")]),
    )
    def test_the_model_is_bitwise_the_plain_one_of_the_same_seed(self, m, n, embedding, reduce, dynamic):
        options = {"embedding": embedding, "reduce": reduce, "dynamic": dynamic, "group_norm": "none"}
        model, plain = build(over_width(m, n, **options), seed=3), build(config("uniform"), seed=3)
        tokens = random_tokens(2, 5)
        assert torch.equal(model(tokens), plain(tokens))

    @pytest.mark.parametrize("reduce", ["full", "slot"])
    def test_reduce_init_mean_gives_the_head_the_mean_of_the_groups(self, reduce):
        options = {"embedding": "expand", "reduce": reduce, "group_norm": "none"}
        first, mean = (build(over_width(2, 6, **options, reduce_init=start), seed=3) for start in ("first", "mean"))
        tokens = random_tokens(2, 5)
        groups = first.slots(first.stream(tokens)).flatten(-2).unflatten(-1, (3, 20))
        assert (groups.std(dim=-2) > 0).all()
        torch.testing.assert_close(mean.hidden(tokens), mean.exit.norm(groups.mean(dim=-2)))

    @in_turn(
        ("shape", ["x", "diamond", "growing", "zigzag"]),
        ("dtype", [torch.float64, torch.float32]),
    )
    def test_layers_of_different_widths_read_and_write_a_prefix_and_carry_the_rest(self, shape, dtype):
        torch.set_default_dtype(dtype)
        frozen = config(shape, residual={**SLOTS, "dynamic": False, "embedding": "pad"})
        model, plain = (build(resolved, 3, dtype=dtype) for resolved in (frozen, config(shape)))
        tokens, targets = random_tokens(2, 5), random_tokens(2, 5, seed=1)
        assert torch.equal(model(tokens), plain(tokens))
        for decoder in (model, plain):
            decoder.loss(tokens, targets)[0].backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def site_params(m: int, n: int, slot_width: int) -> int:
    """Return the parameters of a site: the norm; W_m, W_r and W_beta; A_m, A_r and B; two scales."""
    return slot_width + slot_width * (m + n + 1) + n * (m + n + 1) + 2


class TestAsInThePapers:
    @pytest.mark.parametrize("residual", [{**HYPER, "n_slots": 3}, {**HYPER, "n_fractions": 4, "n_slots": 4}])
    def test_a_model_starts_as_the_plain_one_except_for_the_eps_of_the_last_norm(self, residual):
        """The last norm reads the sum of n equal streams, so that its eps has n^2 times less weight."""
        resolved, tokens = config("uniform", residual=residual), random_tokens(2, 7)
        model, plain = (build(variant, 3, dtype=torch.float64) for variant in (resolved, config("uniform")))
        plain.exit.norm.eps /= (resolved.residual.n_slots // residual.get("n_fractions", 1)) ** 2
        torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-10, atol=1e-11)

    def test_hyper_connections_start_reading_the_streams_in_turn_and_writing_all(self):
        """Eq. (14): A_m of sublayer k is e_(k mod n), A_r the identity, B all ones; scales are 0.01."""
        n = 3
        model = build(config("uniform", residual={**HYPER, "n_slots": n}), 0)
        sites = [site for layer in model.layers for site in (layer.attention_residual, layer.ffn_residual)]
        for k, site in enumerate(sites):
            table = site.static.weight.view(n, n + 2)
            assert table[:, 0].tolist() == [float(i == k % n) for i in range(n)]
            assert (table[:, 1:-1] == 0).all()  # the deviation from the identity
            assert (table[:, -1] == 1).all()
            assert (site.scale.weight == 0.01).all()
            assert (site.dynamic.weight == 0).all()

    @pytest.mark.parametrize(("name", "n_streams"), [("hyper_connections_4x", 4), ("frac_connections_4", 1)])
    def test_the_recipes_have_the_sizes_of_the_papers(self, name, n_streams):
        model = load_recipe(name).explicit_model
        plain = load_recipe("uniform_200m").explicit_model
        residual, d = model.residual, model.d_model
        n, b = residual.n_slots, residual.slot_width
        assert (n, n * b) == (4, n_streams * d)
        assert model.cost().params - plain.cost().params == 2 * model.n_layers * site_params(d // b, n, b)
        assert 2 * 16 * site_params(4, 4, 2048 // 4) == 165_056  # as printed for 16 layers of width 2048, 4 fractions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"residual": {"n_fractions": 3}}, "n_fractions: got 3; must divide d_model = 20"),
        ({"residual": {"n_fractions": 5, "n_slots": 8}}, "n_slots: got 8; must be at least the 9 blocks"),
        ({"residual": {"slot_width": 5}}, "slot_width: got 5; must divide every width, 36 too"),
        ({"residual": SLOTS, "layers": {1: {"d_in": 18}}}, "slot_width: got 4; must divide every width, 18 too"),
        ({"residual": SLOTS, "layers": {1: {"d_out": 10}}}, "slot_width: got 4; must divide every width, 10 too"),
        (
            {"residual": {**SLOTS, "n_slots": 11, "group_norm": "layer"}},
            "group_norm: got layer; must be none, because groups of 5 slots",
        ),
        ({"residual": {**SLOTS, "write_init": "cyclic"}}, "residual.write_init: unknown key; was removed"),
        ({"residual": SLOTS, "tie_embeddings": True}, "the embedding has 36 columns and the head 20; use residual"),
        ({"residual": {**SLOTS, "n_fractions": 5}}, "n_fractions: conflicts with slot_width|give only one of them"),
        *(
            ({"residual": {**SLOTS, "n_slots": 10, key: value}}, f"{key}: got {value}; with layers of different")
            for key, value in AS_IN_THE_PAPERS.items()
            if key != "scale"
        ),
        *(
            ({"shape": "uniform", "residual": {**HYPER, "n_fractions": 2, **options}}, message)
            for options, message in [
                ({"n_slots": 5}, "embedding: got copies; groups of 2 slots do not tile n_slots = 5"),
                ({"n_slots": 5, "embedding": "slot"}, "reduce: got sum; groups of 2 slots do not tile n_slots = 5"),
                (
                    {"n_slots": 6, "reduce_init": "mean"},
                    "reduce_init: got mean; must be first, because reduce: sum has no weights",
                ),
                ({"n_slots": 6, "read_init": "first"}, "embedding: got copies; slots that are not read would stay equ"),
            ]
        ),
    ],
)
def test_mistakes_are_named_in_one_line(changes, message):
    changes = {"shape": "x", **changes, "residual": {"kind": "hyper_connections", **changes["residual"]}}
    with pytest.raises(UserError, match=rf"^model.*{message}") as error:
        config(**changes)
    assert "\n" not in str(error.value)
