"""Layers that learn how much of the stream they read and write, against layers of those widths."""

import math

import pytest
import torch
from comparing import random
from model_cases import VARIANTS, config, decoder, random_tokens

from widthwise.config_io import UserError, checked_copy
from widthwise.model.decoder import Decoder
from widthwise.model.priced_layers import priced_layers
from widthwise.model.residual.learned_prefix import LearnedPrefixConfig
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.model.residual.plain_module import Stream

pytestmark = pytest.mark.usefixtures("float64")
LEARNED = {"kind": "learned_prefix", "min_fraction": 0.05}
WIDTHS = [13, 7, 20, 2, 16]


def set_widths(model: Decoder, widths: list[float]) -> None:
    """Gives the layers learned widths, in channels."""
    least = model.config.residual.min_fraction
    for layer, width in zip(model.layers, widths):
        level = torch.tensor((width / layer.config.d_model - least) / (1 - least))
        layer.attention_residual.bias.weight.data.fill_(torch.logit(level))


def plain_twin(model: Decoder, widths: list[int]) -> Decoder:
    """Layers as wide as that on a plain residual, with the first entries of every weight and the same divisors."""
    layers = tuple(
        layer.model_copy(update=dict.fromkeys(("d_model", "d_in", "d_out"), width))
        for layer, width in zip(model.config.layers, widths)
    )
    plain = PlainResidualConfig(multiplier=model.config.residual.multiplier)
    twin = decoder(checked_copy(model.config, "model", layers=layers, residual=plain))
    weights = dict(model.named_parameters())
    for name, own in twin.named_parameters():
        own.data.copy_(weights[name][tuple(map(slice, own.shape))])
    return twin


@pytest.mark.parametrize("variant", ["plain", "gqa", "biases", "mlp", "dynamic", "released_recipe"])
def test_layers_compute_what_layers_of_the_widths_they_learned_would(variant):
    changes = VARIANTS[variant]
    residual = {**LEARNED, "multiplier": changes.get("residual", {}).get("multiplier", 1.0)}
    model = decoder(config("uniform", "full", **{**changes, "residual": residual}))
    set_widths(model, [width + 0.3 for width in WIDTHS[:2]] + [19.9] + [width - 0.4 for width in WIDTHS[3:]])
    twin = plain_twin(model, WIDTHS)
    tokens = random_tokens(2, 7)
    torch.testing.assert_close(model(tokens), twin(tokens), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("d_model", [20, 12])
def test_at_full_width_it_is_the_plain_residual_exactly(d_model):
    """Also in layers wider than the embedding."""
    residual = {**LEARNED, "start": 1 - 1e-9, "multiplier": 0.22}
    model = decoder(config("uniform", "full", d_model=d_model, residual=residual))
    set_widths(model, [19.999] * 5)
    twin, tokens = plain_twin(model, [20] * 5), random_tokens(2, 7)
    assert torch.equal(model(tokens), twin(tokens))


def test_the_mask_is_a_step_with_the_derivative_of_a_sigmoid():
    d, least, bias = 70, 0.15, -0.4
    site = LearnedPrefixConfig(min_fraction=least, multiplier=0.7).build(d, d, d)
    site.bias.weight.data.fill_(bias)
    prefix, update, direction = (random(2, 3, d, seed=seed) for seed in range(3))
    level = 1 / (1 + math.exp(-bias))
    width, temperature = d * (least + (1 - least) * level), 70 / 32
    centres = torch.arange(d) + 0.5
    step, soft = (centres < width).double(), torch.sigmoid((width - centres) / temperature)
    by_width = soft * (1 - soft) / temperature
    for found, masked, carried in (
        (site.read(Stream(prefix))[0], prefix, 0.0),
        (site.write(Stream(prefix), update).prefix, 0.7 * update, prefix),
    ):
        torch.testing.assert_close(found, carried + masked * step, rtol=1e-14, atol=1e-14)
        (gradient,) = torch.autograd.grad((found * direction).sum(), site.bias.weight)
        expected = (masked * direction * by_width).sum() * d * (1 - least) * level * (1 - level)
        torch.testing.assert_close(gradient, expected[None], rtol=1e-12, atol=1e-14)


def test_further_heads_learn_the_width_of_their_own_layer():
    model = decoder(config("uniform", "full", residual=LEARNED, mtp={"n_depths": 2}))
    assert model.config.cost().params == sum(parameter.numel() for parameter in model.parameters())
    tokens = random_tokens(2, 7)
    model.loss(tokens, tokens).objective.backward()
    for layer in (*model.layers, *(depth.layer for depth in model.depths)):
        assert layer.attention_residual.bias.weight.grad.abs() > 0


@pytest.mark.parametrize(
    "ffn", [{"ratio": 0.6}, {"kind": "mlp", "d_ff": 9}, {"kind": "moe", "n_experts": 3, "top_k": 2}]
)
def test_what_is_priced_is_the_share_of_the_flops_of_all_matrices(ffn):
    model = config("uniform", "full", residual=LEARNED, ffn=ffn, layers={1: {"attention": {"n_kv_heads": 1}}})
    layers = priced_layers(model)
    for layer, priced in zip(model.layers, layers, strict=True):
        full = layer.attention.cost(20, 20).flops + layer.ffn.cost(20, 20).flops
        used = layer.attention.cost(13, 13).flops + layer.ffn.cost(13, 13).flops
        assert priced.full_flops == full
        assert float(priced.share(13 / 20, 1.0)) == pytest.approx(used / full, rel=1e-12)
        assert priced.narrowest == pytest.approx(0.05, rel=1e-12)


def test_hidden_units_that_tokens_choose_are_priced_by_the_product_of_both_widths():
    ffn = {"kind": "dynamic", "d_ff": 11, "min_fraction": 0.3, "score": {"kind": "const"}}
    model = config("uniform", "full", residual=LEARNED, ffn=ffn)
    priced, layer = priced_layers(model)[0], model.layers[0]
    attention = 2 * 20 * (3 * 20 + 20)
    assert layer.attention.cost(20, 20).flops == attention
    prefix = torch.tensor([0.35], requires_grad=True)
    hidden = torch.tensor([[0.4, 0.9], [1.0, 0.5]], requires_grad=True)
    used = priced.used({"prefix_fraction": prefix, "width_fraction": hidden})
    swiglu, full = 2 * 3 * 20 * 11, attention + 2 * 3 * 20 * 11
    torch.testing.assert_close(used, 0.35 * (attention + swiglu * hidden) / full)
    assert used.shape == (2, 2)
    used.mean().backward()
    torch.testing.assert_close(prefix.grad, torch.tensor([(attention + swiglu * 0.7) / full]))
    torch.testing.assert_close(hidden.grad, torch.full((2, 2), 0.35 * swiglu / full / 4))
    assert priced.narrowest == pytest.approx(0.05 * (attention + swiglu * 0.3) / full)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("reordered", "layers.0.norm: got rms, rms, reordered;"),
        ("layer_norm_moe", "layers.0.norm: got layer, layer, "),
        ("hourglass", "layers.0.ffn.kind: got hourglass, of several blocks"),
    ],
)
def test_what_would_not_leave_masked_coordinates_alone_is_refused(variant, message):
    with pytest.raises(UserError, match=f"{message}.* learned_prefix needs"):
        config("uniform", **{**VARIANTS[variant], "residual": LEARNED})
