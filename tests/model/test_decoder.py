"""The decoder compared with the papers' equations, written out in loops: values and gradients, for every variant."""

import pytest
import torch
from comparing import assert_same
from literal_decoder import literal_logits
from model_cases import (
    CASES,
    D_MODEL,
    KINDS,
    SLOTS,
    VARIANTS,
    WIDTHS,
    config,
    decoder,
    random_tokens,
    template,
    variant,
)
from thinned import hard_but, in_turn

from widthwise.model.decoder import Decoder, build

pytestmark = pytest.mark.usefixtures("float64")
TIGHT = {"rtol": 1e-11, "atol": 1e-12}


def test_a_template_is_refused_with_the_calls_that_resolve_it():
    with pytest.raises(TypeError, match=r"got a ModelTemplate; .* recipe.explicit_model, or template.resolve"):
        build(template("x"), seed=0)


def assert_equals_literal(model: Decoder, tokens: torch.Tensor) -> None:
    """Compare the logits, and the gradient of every parameter."""
    logits, expected = model(tokens), literal_logits(model, tokens)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, **TIGHT)
    # MTP heads have no effect on the logits.
    assert_same(logits, expected, [p for name, p in model.named_parameters() if not name.startswith("mtp.")])


RESIZES = ["carry", "zero", "projection", "full_projection"]


@in_turn(
    ("shape", [*WIDTHS, "zigzag", "zigzag"]),
    ("endpoints", ["slim", "full"]),
    ("resize", RESIZES),
    ("d_model", [D_MODEL, D_MODEL, 40]),
)
def test_decoder_equals_the_papers_equation_for_every_shape_and_resize(shape, endpoints, resize, d_model):
    """The shapes include narrow last layers, after which the head reads coordinates that an earlier layer wrote."""
    residual = {"kind": "plain", "resize": resize, "multiplier": 0.7}
    assert_equals_literal(decoder(config(shape, endpoints, residual=residual, d_model=d_model)), random_tokens(2, 5))


@pytest.mark.parametrize(("shape", "name"), hard_but(KINDS, CASES))
def test_decoder_equals_the_papers_equation_for_every_variant(shape, name):
    endpoints = "full" if shape == "zigzag" else "slim"
    assert_equals_literal(decoder(variant(shape, name, endpoints)), random_tokens(2, 5))


def test_norm_divisors_of_a_grown_stream_equal_the_formulas():
    resolved = config("x", residual={**SLOTS, "n_slots": 15, "eps": 0.3})
    residual = resolved.residual.model_copy(update={"slot_norm_dim": 7, "group_norm_dim": 13})
    assert residual.group_norm == "rms"
    assert_equals_literal(decoder(resolved.model_copy(update={"residual": residual})), random_tokens(2, 5))


@pytest.mark.parametrize("name", ["plain", "slots_mixed_at_both_ends"])
def test_reference_kernels_give_the_same_model(monkeypatch, name):
    monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
    assert_equals_literal(decoder(variant("x", name)), random_tokens(2, 5))


def test_loss_equals_cross_entropy_of_the_logits():
    model = decoder(config("x", **VARIANTS["released_recipe"]))
    tokens, targets = random_tokens(3, 9), random_tokens(3, 9, seed=1)
    objective, loss, log_normaliser, *_ = model.loss(tokens, targets, z_coefficient=0.1)
    logits = model(tokens)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(3, 9)
    torch.testing.assert_close(loss, expected, **TIGHT)
    torch.testing.assert_close(log_normaliser, logits.logsumexp(-1), **TIGHT)
    torch.testing.assert_close(objective, (expected + 0.1 * logits.logsumexp(-1) ** 2).mean(), **TIGHT)
