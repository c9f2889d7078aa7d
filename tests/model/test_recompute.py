"""Activation checkpointing, and recomputed states of hyper-connections: losses and gradients do not change, and costs
count the bytes that are kept for the backward pass.
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
    """Return the losses of model and MTP heads, and all gradients of the objective, or of the choices of layers."""
    model = decoder(resolved, dtype=dtype)
    model.recompute = RECOMPUTE[kind]
    torch.manual_seed(7)  # for random scores
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model.loss(TOKENS, TARGETS, 1e-3)
    choices = sum(value.sum() * (i + 1) for i, layer in enumerate(loss.choices) for value in layer.values())
    (choices if of_choices else loss.objective).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert of_choices or len(gradients) > 5 * len(model.layers)
    return {"losses": loss.losses, "mtp_losses": loss.mtp_losses, "next draw": torch.rand(()), **gradients}


def assert_unchanged(resolved: ModelConfig, kinds=("layer", "selective"), atol=0.0, **options) -> None:
    """Assert that recomputation does not change the results of `losses_and_gradients`."""
    expected = losses_and_gradients(resolved, "none", **options)
    for kind in kinds:
        assert_close(losses_and_gradients(resolved, kind, **options), expected, rtol=0, atol=atol)


FAST = ["gqa", "gemma2", "layer_norm_moe", "dynamic"]
FAST += ["slots_tied", "slots_dynamic", "slots_further_heads", "2_of_4_layer_norm"]
KINDS_OF_MODEL = hard_but([case for case in KINDS if case[1] in FAST], KINDS)
"""Models whose layers are recomputed differently; `make test-hard` takes the others."""


@pytest.mark.parametrize(("shape", "name"), KINDS_OF_MODEL)
def test_losses_and_gradients_are_bitwise_the_same_for_every_kind_of_model(shape, name):
    # Several MTP heads read the embedding, and their gradients are summed in another order.
    assert_unchanged(variant(shape, name), kinds=("layer",), atol=1e-14 if name == "further_heads" else 0.0)


IN_BF16 = ("reordered", "moe", "dynamic", "slots_static_padded", "slots_further_heads")
DRAWN = {"mask": {"kind": "soft"}, "score": {"kind": "random"}}, {"mask": {"kind": "ste"}}
OTHER_RUNS = [
    *((variant("zigzag", name), {"dtype": torch.float32, "autocast": True}) for name in IN_BF16),
    *((config("x", ffn={**DYNAMIC, **options}), {}) for options in DRAWN),
    *((variant("zigzag", name), {"of_choices": True}) for name in ("dynamic", "moe")),
]


@pytest.mark.parametrize(("resolved", "options"), OTHER_RUNS)
def test_losses_and_gradients_are_the_same_under_autocast_with_random_scores_and_for_choices(resolved, options):
    assert_unchanged(resolved, **options)


@pytest.mark.parametrize("name", ["moe_reordered", "slots_further_heads"])
def test_losses_and_gradients_are_the_same_with_reference_kernels_except_for_the_order_of_sums(name, monkeypatch):
    """As on a GPU."""
    monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
    assert_unchanged(variant("x", name), atol=1e-13)


@in_turn(
    ("state_every", [1, 3, 99]),
    ("options", [{}, {"dynamic": False}, {"embedding": "expand", "group_norm": "none", "multiplier": 0.22}]),
    ("run_options", [{"dtype": torch.float32, "autocast": True}, {}]),
)
def test_states_of_hyper_connections_are_recomputed_within_a_layer_and_between_layers(
    state_every, options, run_options
):
    residual = {**SLOTS, "n_slots": 11, **options}
    recomputing, keeping = (
        config("zigzag", residual={**residual, "state_every": n}, mtp={"n_depths": 2}) for n in (state_every, 1)
    )
    assert_unchanged(recomputing, **run_options)
    expected = losses_and_gradients(keeping, "none", **run_options)
    assert_close(losses_and_gradients(recomputing, "none", **run_options), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "expected"), [("none", [1] * 7), ("layer", [2] * 7), ("selective", [2, 1, 2, 1, 2, 2, 1])]
)
def test_the_recomputed_layers_and_mtp_heads_run_twice(kind, expected):
    model = decoder(variant("uniform", "further_heads"))
    model.recompute = RECOMPUTE[kind]
    layers, calls = [*model.layers, *model.depths], []
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, *_: calls.append(layer))
    model.loss(TOKENS, TARGETS).objective.backward()
    assert [calls.count(layer) for layer in layers] == expected


RESIDUALS = [
    *({"kind": "plain", "resize": resize} for resize in ("carry", "zero", "projection")),
    *({**SLOTS, "n_slots": 11, "state_every": state_every} for state_every in (1, 2, 5)),
]
"""Plain streams with parked pieces; and streams of slots, of which a layer keeps only the states that it must."""
SECOND = ("layer_norm_moe", "hourglass", "dynamic", "gpt2", "slots_tied")
COUNTED = [
    *((variant(shape, name), "layer") for shape, name in KINDS if name in FAST and "heads" not in name),
    *((variant("zigzag", name), "selective") for name in SECOND),
    *((variant("x", name), "none") for name in ("plain", "moe", "slots")),
    (config("uniform", layers={2: {"ffn_norm": {"stat_width": 9}}}), "none"),  # as in a grown model
    *((config("zigzag", "full", residual=residual), kind) for residual in RESIDUALS for kind in ("layer", "selective")),
    *((config(shape, residual=RESIDUALS[i]), "layer") for i, shape in enumerate(("x", "growing", "x"))),
]


@pytest.mark.parametrize(("resolved", "kind"), COUNTED)
def test_kept_bytes_are_counted_with_recomputed_layers(resolved, kind):
    model, cost = decoder(resolved, dtype=torch.float32), RECOMPUTE[kind].kept_activations(resolved)
    model.recompute = RECOMPUTE[kind]
    assert kept_in_training(model) == cost.activation_bytes(bytes_per_element=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert kept_in_training(model) == cost.activation_bytes()
