"""Activation checkpointing, and states of hyper-connections that are made again: what is not kept for the backward pass
computes what it computed before, and the bytes that are kept are counted.
"""

import pytest
import torch
from measured import kept_in_training
from model_cases import KINDS, SLOTS, config, decoder, random_tokens, variant
from thinned import hard_but, in_turn
from torch.testing import assert_close

from widthwise.model.config import ModelConfig
from widthwise.model.recompute import RECOMPUTE

TOKENS, TARGETS = random_tokens(2, 9), random_tokens(2, 9, seed=1)
DYNAMIC = {"kind": "dynamic", "d_ff": 11, "min_fraction": 0.1, "start": 0.5}


def losses_and_gradients(
    resolved: ModelConfig, kind: str, dtype=torch.float64, autocast=False, of_choices=False
) -> dict[str, torch.Tensor]:
    """The losses of each token, at every depth, and all gradients of the objective, or of what layers chose."""
    model = decoder(resolved, dtype=dtype)
    model.recompute = RECOMPUTE[kind]
    torch.manual_seed(7)  # for layers that draw
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model.loss(TOKENS, TARGETS, 1e-3)
    chosen = sum(value.sum() * (i + 1) for i, each in enumerate(loss.choices) for value in each.values())
    (chosen if of_choices else loss.objective).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert of_choices or len(gradients) > 5 * len(model.layers)
    return {"losses": loss.losses, "mtp_losses": loss.mtp_losses, "drawn after": torch.rand(()), **gradients}


def assert_the_same(resolved: ModelConfig, kinds=("layer", "selective"), atol=0.0, **how) -> None:
    kept = losses_and_gradients(resolved, "none", **how)
    for kind in kinds:
        assert_close(losses_and_gradients(resolved, kind, **how), kept, rtol=0, atol=atol)


SOON = ["gqa", "gemma2", "layer_norm_moe", "dynamic"]
SOON += ["slots_tied", "slots_dynamic", "slots_further_heads", "2_of_4_layer_norm"]
KINDS_OF_MODEL = hard_but([case for case in KINDS if case[1] in SOON], KINDS)
"""What differs in a layer that runs again; `make test-hard` takes the others."""


@pytest.mark.parametrize(("shape", "name"), KINDS_OF_MODEL)
def test_losses_and_gradients_are_bitwise_the_same_for_every_kind_of_model(shape, name):
    # An embedding that several depths read sums their gradients in another order.
    assert_the_same(variant(shape, name), kinds=("layer",), atol=1e-14 if name == "further_heads" else 0.0)


IN_BF16 = ("reordered", "moe", "dynamic", "slots_static_padded", "slots_further_heads")
DRAWN = {"mask": {"kind": "soft"}, "score": {"kind": "random"}}, {"mask": {"kind": "ste"}}
OTHERWISE = [
    *((variant("zigzag", name), {"dtype": torch.float32, "autocast": True}) for name in IN_BF16),
    *((config("x", ffn={**DYNAMIC, **options}), {}) for options in DRAWN),
    *((variant("zigzag", name), {"of_choices": True}) for name in ("dynamic", "moe")),
]


@pytest.mark.parametrize(("resolved", "how"), OTHERWISE)
def test_and_with_products_in_bf16_where_widths_are_drawn_and_of_what_layers_choose(resolved, how):
    assert_the_same(resolved, **how)


@pytest.mark.parametrize("name", ["moe_reordered", "slots_further_heads"])
def test_and_in_plain_torch_as_on_a_gpu_but_for_the_order_of_sums(name, monkeypatch):
    monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
    assert_the_same(variant("x", name), atol=1e-13)


@in_turn(
    ("state_every", [1, 3, 99]),
    ("options", [{}, {"dynamic": False}, {"embedding": "expand", "group_norm": "none", "multiplier": 0.22}]),
    ("how", [{"dtype": torch.float32, "autocast": True}, {}]),
)
def test_states_of_hyper_connections_are_made_again_within_a_layer_and_between_layers(state_every, options, how):
    residual = {**SLOTS, "n_slots": 11, **options}
    every, first = (
        config("zigzag", residual={**residual, "state_every": n}, mtp={"n_depths": 2}) for n in (state_every, 1)
    )
    assert_the_same(every, **how)
    found, truth = (losses_and_gradients(each, "none", **how) for each in (every, first))
    assert_close(found, truth, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "expected"), [("none", [1] * 7), ("layer", [2] * 7), ("selective", [2, 1, 2, 1, 2, 2, 1])]
)
def test_layers_and_further_heads_run_again_as_the_recipe_says(kind, expected):
    model = decoder(variant("uniform", "further_heads"))
    model.recompute = RECOMPUTE[kind]
    layers, ran = [*model.layers, *model.depths], []
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, *_: ran.append(layer))
    model.loss(TOKENS, TARGETS).objective.backward()
    assert [ran.count(layer) for layer in layers] == expected


RESIDUALS = [
    *({"kind": "plain", "resize": resize} for resize in ("carry", "zero", "projection")),
    *({**SLOTS, "n_slots": 11, "state_every": state_every} for state_every in (1, 2, 5)),
]
"""Streams of several parts; and of two states a layer keeps one where the other can be made from it."""
SECOND = ("layer_norm_moe", "hourglass", "dynamic", "gpt2", "slots_tied")
COUNTED = [
    *((variant(shape, name), "layer") for shape, name in KINDS if name in SOON and "heads" not in name),
    *((variant("zigzag", name), "selective") for name in SECOND),
    *((variant("x", name), "none") for name in ("plain", "moe", "slots")),
    (config("uniform", layers={2: {"ffn_norm": {"stat_width": 9}}}), "none"),  # as in a grown model
    *((config("zigzag", "full", residual=residual), kind) for residual in RESIDUALS for kind in ("layer", "selective")),
    *((config(shape, residual=RESIDUALS[i]), "layer") for i, shape in enumerate(("x", "growing", "x"))),
]


@pytest.mark.parametrize(("resolved", "kind"), COUNTED)
def test_bytes_kept_are_counted_where_layers_run_again(resolved, kind):
    model, cost = decoder(resolved, dtype=torch.float32), RECOMPUTE[kind].kept_activations(resolved)
    model.recompute = RECOMPUTE[kind]
    assert kept_in_training(model) == cost.activation_bytes(bytes_per_element=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert kept_in_training(model) == cost.activation_bytes()
