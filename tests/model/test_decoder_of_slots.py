"""Decoders with hyper-connections: what they are before training, tokens in time, and mistakes in their sizes."""

import pytest
import torch
from model_cases import CASES, OVER_WIDTH, config, decoder, random_tokens, started_from, variant
from torch import Tensor

from widthwise.config_io import UserError, parse, to_data
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder

TIGHT = {"rtol": 1e-10, "atol": 1e-11}


def streams(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """(B, T, n_slots, slot_width) before the first layer and behind each."""
    seen, d_model = [], model.config.d_model
    model.layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for layer in model.layers:
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    with torch.no_grad():
        model(tokens)
    return [model.config.residual.to_slots(stream, d_model) for stream in seen]


@pytest.mark.usefixtures("float64")
class TestOneWidth:
    """At the start, beside the decoder with the plain residual and the same weights."""

    def pair(self, m: int, n: int, **options) -> tuple[Decoder, Decoder]:
        residual = {"kind": "hyper_connections", "n_fractions": m, "n_slots": n, **options}
        plain = decoder(config("uniform"))
        return plain, started_from(plain, config("uniform", residual=residual))

    @pytest.mark.parametrize("dynamic", [False, True])
    @pytest.mark.parametrize("m", [1, 2, 5])
    def test_as_many_slots_as_blocks_make_the_same_logits_to_the_last_bit(self, m, dynamic):
        plain, model = self.pair(m, m, dynamic=dynamic)
        tokens = random_tokens(2, 5)
        assert torch.equal(model(tokens), plain(tokens))

    @pytest.mark.parametrize(("m", "n"), [(1, 3), (2, 3), (2, 5), (4, 8)])
    def test_the_first_slots_are_the_plain_stream_and_the_others_add_the_same_updates_to_their_own_start(self, m, n):
        plain, model = self.pair(m, n)
        tokens = random_tokens(2, 5)
        theirs, ours = streams(plain, tokens), streams(model, tokens)
        for stream, slots in zip(theirs, ours, strict=True):
            assert torch.equal(slots[..., :m, :].flatten(-2), stream.flatten(-2))
            for j in range(n):
                grown, expected = slots[..., j, :] - ours[0][..., j, :], slots[..., j % m, :] - ours[0][..., j % m, :]
                torch.testing.assert_close(grown, expected, **TIGHT)

    def test_slots_that_no_sublayer_writes_stay_as_the_table_made_them(self):
        plain, model = self.pair(2, 5, write_init="slice")
        tokens = random_tokens(2, 5)
        first, *others = streams(model, tokens)
        assert all(torch.equal(slots[..., 2:, :], first[..., 2:, :]) for slots in others)
        assert torch.equal(others[-1][..., :2, :].flatten(-2), streams(plain, tokens)[-1].flatten(-2))

    @pytest.mark.parametrize(("m", "n"), [(2, 3), (2, 4), (1, 4)])
    def test_every_table_of_coefficients_learns_from_the_first_step(self, m, n):
        _, model = self.pair(m, n)
        model.loss(random_tokens(2, 9), random_tokens(2, 9, seed=1))[0].backward()
        for name, parameter in model.named_parameters():
            if name.endswith(("residual.static.weight", "residual.dynamic.weight", "w_reduce.weight")):
                assert (parameter.grad != 0).any(), name


FROZEN = {"kind": "hyper_connections", "slot_width": 4, "dynamic": False, "embedding": "pad"}


@pytest.mark.usefixtures("float64")
class TestWidthsThatDiffer:
    """One slot width for all layers: static sites that stay as they start are the plain residual."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("shape", ["uniform", "x", "diamond", "growing", "narrowing", "zigzag"])
    @pytest.mark.parametrize("write_init", ["tail_cyclic", "slice"])
    def test_a_slice_is_read_and_written_and_the_rest_is_carried(self, shape, write_init, dtype):
        torch.set_default_dtype(dtype)
        plain = decoder(config(shape), dtype=dtype)
        model = started_from(plain, config(shape, residual={**FROZEN, "write_init": write_init}))
        tokens, targets = random_tokens(2, 5), random_tokens(2, 5, seed=1)
        assert torch.equal(model(tokens), plain(tokens))
        for each in (model, plain):
            each.loss(tokens, targets)[0].backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)

    def test_embedding_and_head_own_slots_too(self):
        """Also those beyond every layer, which are no tail for the layers to write."""
        plain = decoder(config("narrowing", d_model=40))
        model = started_from(plain, config("narrowing", d_model=40, residual={**FROZEN, "n_slots": 12}))
        assert model.config.residual.n_owned_slots == 10
        tokens = random_tokens(2, 5)
        assert torch.equal(model(tokens), plain(tokens))

    @pytest.mark.parametrize("shape", ["x", "zigzag"])
    def test_more_slots_than_the_widest_layer_has_blocks_change_nothing_at_the_start(self, shape):
        plain = decoder(config(shape))
        residual = {**FROZEN, "dynamic": True, "n_slots": 13, "group_norm": "none"}
        model = started_from(plain, config(shape, residual=residual))
        tokens = random_tokens(2, 5)
        assert torch.equal(model(tokens), plain(tokens))


@pytest.mark.usefixtures("float64")
class TestTokens:
    @torch.no_grad()
    @pytest.mark.parametrize(
        ("shape", "name"), [(shape, name) for shape, name in CASES if name in OVER_WIDTH or "slots" in name]
    )
    def test_a_token_changes_no_logits_before_it(self, shape, name):
        model, tokens = decoder(variant(shape, name)), random_tokens(2, 9)
        other = tokens.clone()
        other[:, 5] = (tokens[:, 5] + 1) % 61
        before, after = model(tokens), model(other)
        torch.testing.assert_close(after[:, :5], before[:, :5], rtol=1e-10, atol=1e-10)
        assert (after[:, 5:] - before[:, 5:]).abs().amax(dim=-1).min() > 1e-6

    @pytest.mark.parametrize(("shape", "name"), [("x", "slots"), ("uniform", "2_of_3"), ("zigzag", "slots_tied")])
    def test_the_stream_can_be_rebuilt_from_the_updates_alone(self, shape, name):
        """Without running a sublayer: what a write carries is a function of the state before."""
        model, tokens = decoder(variant(shape, name)), random_tokens(2, 5)
        updates = []
        for layer in model.layers:
            layer.attention.register_forward_hook(lambda module, inputs, output: updates.append(output))
            layer.ffn.register_forward_hook(lambda module, inputs, output: updates.append(output[0]))
        first, *expected = streams(model, tokens)
        sites = [site for layer in model.layers for site in (layer.attention_residual, layer.ffn_residual)]
        state, rebuilt = first, []
        with torch.no_grad():
            for site, update in zip(sites, updates, strict=True):
                state = site.write(site.read(state)[1], update)
                rebuilt.append(state)
        assert all(torch.equal(a, b) for a, b in zip(rebuilt[1::2], expected, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"residual": {"n_fractions": 3}}, r"model.residual.n_fractions: got 3; must divide d_model = 20"),
        (
            {"residual": {"n_fractions": 5, "n_slots": 8}},
            r"model.residual.n_slots: got 8; must be at least the 9 blocks",
        ),
        ({"residual": {"slot_width": 8}}, r"model.residual.slot_width: got 8; must divide every width, 20 too"),
        (
            {"residual": {"slot_width": 5}},
            r"model.residual.slot_width: got 5; must divide every width, 36 too",
        ),
        (
            {"residual": {"slot_width": 4}, "layers": {1: {"d_in": 18}}},
            r"model.residual.slot_width: got 4; must divide every width, 18 too",
        ),
        (
            {"residual": {"slot_width": 4}, "layers": {1: {"d_out": 10}}},
            r"model.residual.slot_width: got 4; must divide every width, 10 too",
        ),
        (
            {"residual": {"slot_width": 4, "n_slots": 11, "group_norm": "layer"}},
            r"model.residual.group_norm: got layer; its groups of 5 slots do not tile n_slots = 11",
        ),
        (
            {"residual": {"slot_width": 4, "n_slots": 10, "embedding": "pad", "write_init": "slice"}},
            r"model.residual.embedding: got pad; of the 1 slots that no layer owns only 0 would ever differ",
        ),
        (
            {"residual": {"slot_width": 4, "write_init": "cyclic"}},
            r"model.residual.write_init: got cyclic; with layers of different widths use tail_cyclic",
        ),
        (
            {"residual": {"slot_width": 4}, "tie_embeddings": True},
            r"model.tie_embeddings: the embedding has 36 columns and the head 20; use residual.embedding",
        ),
        (
            {"residual": {"slot_width": 4, "n_fractions": 5}},
            r"model.residual.hyper_connections.n_fractions: conflicts with slot_width|give only one of them",
        ),
        ({"residual": {"slot_width": 0}}, r"model: residual.slot_width: got 0; input should be greater than 0"),
        (
            {"residual": {"n_slots": 5000}},
            r"model: residual.n_slots: got 5000; input should be less than or equal to 4096",
        ),
        (
            {"residual": {"write_init": "circular"}},
            r"model: residual.write_init: got 'circular'; input should be 'tail_cyclic'",
        ),
        (
            {"residual": {"zeta": 2}},
            r"model: residual.zeta: unknown key of kind hyper_connections; allowed: dynamic, embedding",
        ),
    ],
)
def test_mistakes_are_named_in_one_line(changes, message):
    changes["residual"]["kind"] = "hyper_connections"
    with pytest.raises(UserError, match=message) as error:
        config("x", **changes)
    assert "\n" not in str(error.value)


def test_a_resolved_model_whose_last_norm_covers_more_than_the_head_reads_is_refused():
    data = {**to_data(variant("x", "slots")), "final_norm_width": 28}
    with pytest.raises(UserError, match="final_norm_width: got 28; with hyper_connections it is d_model, 20"):
        parse(ModelConfig, data, "model")
