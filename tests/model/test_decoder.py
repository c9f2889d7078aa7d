import pytest
import torch
from literal_decoder import literal_logits, literal_states
from model_cases import (
    CASES,
    D_MODEL,
    SHAPES_AND_ENDPOINTS,
    VARIANTS,
    WIDTHS,
    config,
    decoder,
    random_tokens,
    variant,
)

from widthwise.config_io import parse
from widthwise.model.decoder import Decoder, build
from widthwise.shape.template import ModelTemplate

pytestmark = pytest.mark.usefixtures("float64")
TIGHT = {"rtol": 1e-11, "atol": 1e-12}


def test_a_template_is_refused_with_the_way_to_its_layers():
    template = parse(
        ModelTemplate, {"vocab_size": 17, "d_model": 16, "n_layers": 2, "attention": {"head_dim": 8}}, "model"
    )
    with pytest.raises(
        TypeError, match=r"got a ModelTemplate; .* recipe.explicit_model, or template.resolve\(seq_len\)"
    ):
        build(template, seed=0)
    assert build(template.resolve(seq_len=8), seed=0).config.n_layers == 2


def assert_equals_literal(model: Decoder, tokens: torch.Tensor) -> None:
    """Logits and the gradient of every parameter."""
    logits, expected = model(tokens), literal_logits(model, tokens)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, **TIGHT)
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    parameters = [p for name, p in model.named_parameters() if not name.startswith("mtp.")]  # these make no logits
    gradients = torch.autograd.grad((logits * direction).sum(), parameters)
    literal = torch.autograd.grad((expected * direction).sum(), parameters)
    for gradient, truth in zip(gradients, literal, strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-9, atol=1e-10 * max(1.0, truth.abs().max().item()))


@pytest.mark.parametrize(("shape", "endpoints"), SHAPES_AND_ENDPOINTS)
@pytest.mark.parametrize("resize", ["carry", "zero", "projection", "full_projection"])
def test_decoder_equals_the_papers_equation_for_every_shape_and_resize(shape, endpoints, resize):
    model = decoder(config(shape, endpoints, residual={"kind": "plain", "resize": resize, "multiplier": 0.7}))
    assert_equals_literal(model, random_tokens(2, 5))


@pytest.mark.parametrize("resize", ["carry", "zero", "projection", "full_projection"])
def test_the_head_reads_what_the_last_layer_wide_enough_wrote(resize):
    """Behind layers that widened in between and filled their own coordinates otherwise."""
    resolved = config("zigzag", d_model=40, residual={"kind": "plain", "resize": resize})
    assert_equals_literal(decoder(resolved), random_tokens(2, 5))


@pytest.mark.parametrize(("shape", "name"), CASES)
def test_decoder_equals_the_papers_equation_for_every_variant(shape, name):
    endpoints = "full" if shape == "zigzag" else "slim"
    assert_equals_literal(decoder(variant(shape, name, endpoints)), random_tokens(2, 5))


@pytest.mark.parametrize("name", ["plain", "slots", "slots_static_padded", "slots_mixed_at_both_ends"])
def test_reference_kernels_give_the_same_model(monkeypatch, name):
    monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
    assert_equals_literal(decoder(variant("x", name)), random_tokens(2, 5))


@pytest.mark.parametrize(("shape", "name"), CASES)
def test_the_loss_reaches_every_parameter(shape, name):
    model = decoder(variant(shape, name))
    model.loss(random_tokens(2, 9), random_tokens(2, 9, seed=1)).objective.backward()
    for parameter_name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert (parameter.grad != 0).any(), parameter_name


def test_an_unowned_coordinate_changes_only_when_a_wide_layer_writes_it():
    model = decoder(config("zigzag"))
    states = literal_states(model, random_tokens(1, 5))
    assert [state.shape[-1] for state in states] == [D_MODEL, *WIDTHS["zigzag"][:-1], D_MODEL]


@pytest.mark.parametrize("resize", ["carry", "zero", "projection", "full_projection"])
def test_resizes_differ_only_where_a_layer_widens(resize):
    tokens = random_tokens(2, 5)
    narrowing = [
        decoder(config("narrowing", "slim", d_model=40, residual={"kind": "plain", "resize": kind}))(tokens)
        for kind in ("carry", resize)
    ]
    torch.testing.assert_close(*narrowing, rtol=0, atol=0)
    if resize != "carry":
        widening = [
            decoder(config("x", "slim", residual={"kind": "plain", "resize": kind}))(tokens)
            for kind in ("carry", resize)
        ]
        assert (widening[0] - widening[1]).abs().max() > 1e-3


@pytest.mark.parametrize("resize", ["projection", "full_projection"])
def test_projection_has_one_matrix_for_every_widening(resize):
    model = decoder(config("zigzag", "full", residual={"kind": "plain", "resize": resize}))
    arriving = [D_MODEL, *WIDTHS["zigzag"][:-1]]
    expected = {
        f"layers.{i}.attention_residual.resize.w_widen.weight": (width - (resize == "projection") * before, before)
        for i, (before, width) in enumerate(zip(arriving, WIDTHS["zigzag"], strict=True))
        if width > before
    }
    built = {name: tuple(p.shape) for name, p in model.named_parameters() if "residual" in name}
    assert built == expected
    assert model.config.costs()["residual"].params == sum(a * b for a, b in expected.values())


def test_loss_equals_cross_entropy_of_the_logits():
    model = decoder(config("x", **VARIANTS["released_recipe"]))
    tokens, targets = random_tokens(3, 9), random_tokens(3, 9, seed=1)
    objective, loss, log_normaliser, *_ = model.loss(tokens, targets, z_coefficient=0.1)
    logits = model(tokens)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(3, 9)
    torch.testing.assert_close(loss, expected, **TIGHT)
    torch.testing.assert_close(log_normaliser, logits.logsumexp(-1), **TIGHT)
    torch.testing.assert_close(objective, (expected + 0.1 * logits.logsumexp(-1) ** 2).mean(), **TIGHT)


@pytest.mark.parametrize("name", ["plain", "slots", "slots_mixed_at_both_ends"])
def test_bf16_autocast_is_as_near_to_fp64_as_plain_torch(monkeypatch, name):
    resolved = variant("x", name, endpoints="full")
    tokens, targets = random_tokens(2, 9), random_tokens(2, 9, seed=1)

    def gradient(model: Decoder) -> torch.Tensor:
        model.loss(tokens, targets)[0].backward()
        return torch.cat([p.grad.double().flatten() for p in model.parameters()])

    exact = gradient(decoder(resolved))
    torch.set_default_dtype(torch.float32)
    errors = {}
    for kernels in ("reference", "fused"):
        monkeypatch.setenv("WIDTHWISE_KERNELS", kernels)
        with torch.autocast("cpu", torch.bfloat16):
            errors[kernels] = (gradient(decoder(resolved, dtype=torch.float32)) - exact).norm() / exact.norm()
    assert errors["reference"] < 0.2
    assert errors["fused"] < 1.3 * errors["reference"]


def test_a_prefix_of_the_tokens_has_the_same_logits():
    model, tokens = decoder(config("zigzag")), random_tokens(2, 11)
    torch.testing.assert_close(model(tokens)[:, :6], model(tokens[:, :6]), **TIGHT)


class TestFullEndpoints:
    """`endpoints: full`, the form of the paper's release."""

    def gradients(self, shape: str) -> Decoder:
        model = decoder(config(shape, "full"))
        model.loss(random_tokens(3, 9), random_tokens(3, 9, seed=1))[0].backward()
        return model

    def test_first_layer_columns_behind_the_embedding_get_no_gradient(self):
        attention = self.gradients("x").layers[0].attention
        for matrix in (attention.w_q, attention.w_k, attention.w_v):
            assert (matrix.weight.grad[:, D_MODEL:] == 0).all()
            assert (matrix.weight.grad[:, :D_MODEL] != 0).any()

    def test_last_rows_behind_the_head_act_only_through_the_final_norm(self):
        model = self.gradients("x")
        w_down = model.layers[-1].ffn.w_down.weight
        assert (w_down.grad[D_MODEL:] != 0).all()
        assert (model.exit.norm.weight.grad[D_MODEL:] == 0).all()
        tokens = random_tokens(2, 5)
        before = model(tokens)
        with torch.no_grad():
            w_down[D_MODEL:] = 0
        ratio = model(tokens) / before  # only the divisor of the norm changes: one factor for all logits of a position
        assert (ratio - 1).abs().max() > 1e-3
        torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("shape", ["diamond", "narrowing"])
    def test_head_coordinates_behind_a_narrow_last_layer_are_not_normalised(self, shape):
        model = decoder(config(shape, "full"))
        tokens = random_tokens(2, 5)
        n = WIDTHS[shape][-1]
        assert model.exit.norm.weight.shape == (n,)
        hidden, states = model.hidden(tokens), literal_states(model, tokens)
        owner = next(state for state in reversed(states) if state.shape[-1] >= D_MODEL)
        torch.testing.assert_close(hidden[..., D_MODEL - 1], owner[..., D_MODEL - 1], **TIGHT)

    def test_slim_first_layer_is_the_full_one_without_its_dead_columns(self):
        full = decoder(config("x", "full"))
        layers = list(full.config.layers)
        layers[0] = layers[0].model_copy(update={"d_in": D_MODEL})
        slim = Decoder(full.config.model_copy(update={"layers": tuple(layers)}))
        weights = full.state_dict()
        for name in ("norm.weight", *(f"w_{x}.weight" for x in "qkv")):
            weights[f"layers.0.attention.{name}"] = weights[f"layers.0.attention.{name}"][..., :D_MODEL]
        slim.load_state_dict(weights)
        tokens = random_tokens(2, 5)
        torch.testing.assert_close(slim(tokens), full(tokens), **TIGHT)


def test_same_width_endpoints_are_the_same_model():
    slim, full = (config("uniform", endpoints) for endpoints in ("slim", "full"))
    assert slim == full


def test_carried_coordinates_reach_the_head_with_gradient():
    """A coordinate parked early and restored late must pass gradient to the layer that wrote it."""
    resolved = config("x", "slim", d_model=40)
    model = decoder(resolved)
    model.loss(random_tokens(2, 5), random_tokens(2, 5, seed=1))[0].backward()
    assert all((p.grad != 0).any() for p in model.parameters())
