"""A model becomes one of another kind that computes the same, and all that joins it learns."""

from typing import Any

import pytest
import torch
from growth_cases import (
    Measured,
    difference,
    logits_of,
    pulled_back,
    shaped,
    small_model,
    tokens_for,
    unmoved,
    with_random_weights,
)

from widthwise.config_io import UserError
from widthwise.growth.certify.certificate import certify
from widthwise.growth.describe import expansions, kept_constants
from widthwise.growth.optimizer_state import grown_state
from widthwise.growth.plan.fresh import Constant
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.merging import merge
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.dynamic import DynamicConfig

Changes = dict[str, Any]
SLOTS = {"kind": "hyper_connections", "slot_width": 4, "n_slots": 5, "dynamic": False, "group_norm": "none"}
HOURGLASS = {"kind": "hourglass", "n_blocks": 3, "d_hidden": 10}
DYNAMIC = {"kind": "dynamic", "d_ff": 10, "start": 0.7, "min_fraction": 0.25}
DYNAMIC_HOURGLASS = {**HOURGLASS, "kind": "dynamic_hourglass", "start": 0.7, "min_fraction": 0.25}
GQA = {"head_dim": 2, "kv_group_size": 3, "qk_norm": {"over": "head"}}
MLP = {"kind": "mlp", "d_ff": 11, "activation": "silu"}

CONVERSIONS: dict[str, tuple[Changes, Changes]] = {
    "hourglass": ({}, {"ffn": HOURGLASS}),
    "hourglass, wider, one norm": ({}, {"ffn": {**HOURGLASS, "d_hidden": 13, "norm": "shared"}}),
    "hourglass without gates": ({"ffn": MLP}, {"ffn": {**HOURGLASS, "d_hidden": 13, "gated": False}}),
    "hourglass behind reordered norms": ({"norm": {"placement": "reordered"}}, {"ffn": HOURGLASS}),
    "hourglass under layer norms and slots": ({"norm": {"kind": "layer"}, "residual": SLOTS}, {"ffn": HOURGLASS}),
    "dynamic": ({}, {"ffn": DYNAMIC}),
    "dynamic, wider, by a network": ({}, {"ffn": {**DYNAMIC, "d_ff": 13, "score": {"kind": "mlp", "d_hidden": 3}}}),
    "dynamic, by token": ({}, {"ffn": {**DYNAMIC, "score": {"kind": "token", "vocab_size": 17}}}),
    "dynamic hourglass": ({"ffn": HOURGLASS}, {"ffn": DYNAMIC_HOURGLASS}),
    "dynamic hourglass, wider, with another block": (
        {"ffn": {**HOURGLASS, "n_blocks": 2}},
        {"ffn": {**DYNAMIC_HOURGLASS, "d_hidden": 13, "score": {"kind": "mlp", "d_hidden": 3}}},
    ),
    "dynamic hourglass of a swiglu": ({}, {"ffn": DYNAMIC_HOURGLASS}),
    "dynamic, that begins to choose": (
        {"ffn": {**DYNAMIC, "mask": {"kind": "none"}}},
        {"ffn": {"mask": {"kind": "ste"}}},
    ),
    "blocks, that begin to be chosen": (
        {"ffn": {**HOURGLASS, "kind": "dynamic_hourglass", "mask": {"kind": "none"}}},
        {"ffn": {"mask": {"kind": "ste"}}},
    ),
    "biases of attention": ({"attention": GQA}, {"attention": {"bias": True, "out_bias": True}}),
    "biases of an mlp": ({"ffn": MLP, "norm": {"placement": "reordered"}}, {"ffn": {"bias": True}}),
    "learned positions": ({"tie_embeddings": True}, {"positions": {"n_positions": 6}}),
    "coefficients that follow the state": ({"residual": SLOTS}, {"residual": {"dynamic": True, "n_slots": 6}}),
    "all at once, and larger": (
        {},
        {
            "d_model": 20,
            "n_layers": 5,
            "ffn": {**HOURGLASS, "n_blocks": 2, "d_hidden": 12},
            "attention": {"bias": True, "out_bias": True},
            "positions": {"n_positions": 7},
            "mtp": {"n_depths": 2, "coefficient": 0.0},
        },
    ),
}


def check_exact(old: ModelConfig, wanted: ModelConfig, fresh: Constant | None = None) -> None:
    """Logits, and gradients of the old weights."""
    weights, tokens = with_random_weights(old, seed=1), tokens_for(2)
    plan = plan_growth(old, wanted)
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    grown = dict(plan.weights(leaves, 3, fresh))
    before = Measured(old, weights, tokens)
    after = Measured(plan.new, {name: weight.detach() for name, weight in grown.items()}, tokens)
    assert difference(before.logits, after.logits) <= 1e-12
    found = pulled_back(leaves, grown, after.gradients)
    for name, gradient in before.gradients.items():
        assert difference(gradient, found[name]) <= 1e-10, name


@pytest.mark.parametrize(("base", "changes"), CONVERSIONS.values(), ids=CONVERSIONS)
def test_outputs_and_old_gradients_stay_whatever_is_free(base: Changes, changes: Changes) -> None:
    old, wanted = small_model(**base), small_model(**merge(base, changes))
    check_exact(old, wanted)
    check_exact(old, wanted, Constant(0.4))


@pytest.mark.parametrize("name", [name for name in CONVERSIONS if "all at once" not in name])
def test_every_new_parameter_learns(name: str) -> None:
    base, changes = CONVERSIONS[name]
    old, wanted = small_model(**base), small_model(**merge(base, changes))
    weights, tokens = with_random_weights(old, seed=1), tokens_for(2, batch=5)
    plan = plan_growth(old, wanted)
    dead = unmoved(plan.new, dict(plan.weights(weights)), tokens)
    for tensor, is_new in plan.is_new().items():
        never = dead[tensor] & is_new
        if tensor.endswith(("embedding.weight", "score.table.weight")):
            never[torch.isin(torch.arange(17), tokens[:, :-1], invert=True)] = False
        assert not never.any(), tensor


@pytest.mark.parametrize("endpoints", ["slim", "full"])
def test_an_hourglass_in_layers_of_different_widths(endpoints: str) -> None:
    old = shaped([20, 8, 16], endpoints)
    check_exact(old, shaped([20, 8, 16], endpoints, ffn=HOURGLASS))


@pytest.mark.parametrize(
    "changes", [{"ffn": HOURGLASS}, {"ffn": DYNAMIC}, {"positions": {"n_positions": 6}}, {"mtp": {"n_depths": 2}}]
)
def test_the_logits_are_the_same_bit_for_bit(changes: Changes) -> None:
    old = small_model()
    plan, weights, tokens = plan_growth(old, small_model(**changes)), with_random_weights(old, seed=4), tokens_for(5)
    tokens = tokens[:, :-1]
    assert torch.equal(logits_of(plan.new, dict(plan.weights(weights)), tokens), logits_of(old, weights, tokens))


def test_a_layer_that_has_grown_keeps_its_mask() -> None:
    grown = plan_growth(
        *(small_model(ffn={**DYNAMIC, "d_ff": size, "mask": {"kind": "none"}}) for size in (10, 13))
    ).new
    with pytest.raises(UserError, match=r"grown_from: got \[10\]; a layer that has grown keeps its mask"):
        plan_growth(grown, small_model(ffn={**DYNAMIC, "d_ff": 13}))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ({}, {"gated": False}, "gated: got False where it was True"),
        ({}, {"activation": "gelu"}, "activation: got 'gelu' where it was 'silu'"),
        ({"ffn": MLP}, {}, "gated: got True where it was False"),
        ({"ffn": MLP}, {"gated": False, "activation": "relu"}, "activation: got 'relu' where it was 'silu'"),
        ({"ffn": {**MLP, "bias": True}}, {"gated": False}, "bias: got False where it was True"),
    ],
)
def test_only_a_feed_forward_of_its_form_becomes_a_block(old: Changes, new: Changes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_growth(small_model(**old), small_model(ffn={**HOURGLASS, "d_hidden": 11, **new}))


def test_an_hourglass_of_one_block_has_the_weights_of_the_swiglu() -> None:
    old = small_model()
    plan, weights = plan_growth(old, small_model(ffn={**HOURGLASS, "n_blocks": 1})), with_random_weights(old, seed=4)
    grown = dict(plan.weights(weights))
    assert not any(is_new.any() for is_new in plan.is_new().values())
    assert all(torch.equal(weight, weights[name]) for name, weight in plan.shrunk(grown).items())
    assert torch.equal(grown["layers.1.ffn.blocks.0.w_up.weight"], weights["layers.1.ffn.w_up.weight"])


def test_every_token_starts_with_all_units_a_quarter_of_a_unit_beyond_the_last_centre() -> None:
    old, wanted = small_model(), small_model(ffn=DYNAMIC)
    plan = plan_growth(old, wanted)
    ffn = plan.new.layers[1].ffn
    assert isinstance(ffn, DynamicConfig)
    width = ffn.d_ff * (ffn.min_fraction + (1 - ffn.min_fraction) * ffn.start)
    assert width == pytest.approx(9.5 + 0.25)
    assert "layers 0-2: ffn.start is 0.966667 (the recipe would have 0.7)" in map(str, kept_constants(plan, wanted))
    higher = plan_growth(old, small_model(ffn={**DYNAMIC, "start": 0.99})).new.layers[1].ffn
    assert isinstance(higher, DynamicConfig)
    assert higher.start == 0.99


def test_moments_go_with_the_matrices_that_they_belong_to() -> None:
    old = small_model()
    plan = plan_growth(old, small_model(ffn=HOURGLASS, attention={"bias": True}))
    state = {name: {"exp_avg": each, "step": torch.tensor(7.0)} for name, each in with_random_weights(old, 6).items()}
    grown = grown_state(plan, state)
    moved = grown["layers.2.ffn.blocks.0.w_gate.weight"]
    assert torch.equal(moved["exp_avg"], state["layers.2.ffn.w_gate.weight"]["exp_avg"])
    assert moved["step"] == 7
    assert not {"layers.2.ffn.blocks.1.w_gate.weight", "layers.2.attention.w_q.bias.weight"} & grown.keys()


def test_heads_that_join_are_certified_by_the_loss_of_the_model_alone() -> None:
    old = small_model()
    plan, weights = plan_growth(old, small_model(mtp={"n_depths": 2})), with_random_weights(old, seed=7)
    weights = {name: weight.float() for name, weight in weights.items()}
    found = certify(plan, weights, dict(plan.weights(weights)), seq_len=6, lr=1e-3)
    assert found.is_preserved
    assert not found.dead
    assert found.total("n_new") == plan.new.costs()["mtp"].params


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (HOURGLASS, {"block_multiplier": 0.5}, "block_multiplier: got 0.5 where it was 1.0"),
        (HOURGLASS, {"share_weights": True}, "share_weights: got True where it was False"),
        (HOURGLASS, {"mask": {"kind": "soft"}}, "mask.kind: got soft, which is below 1 for some units"),
        (HOURGLASS, {"score": {"kind": "random"}}, "score.kind: got random, which starts at another number"),
        (DYNAMIC_HOURGLASS, {"n_blocks": 4}, "n_blocks: got 4 where it was 3"),
        (DYNAMIC_HOURGLASS, {"min_fraction": 0.3}, "min_fraction: got 0.3 where it was 0.25"),
    ],
)
def test_a_dynamic_hourglass_that_would_compute_something_else_is_refused(
    old: Changes, new: Changes, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        plan_growth(small_model(ffn=old), small_model(ffn={**DYNAMIC_HOURGLASS, **new}))


def test_conversions_in_words() -> None:
    ffn = {**HOURGLASS, "n_blocks": 2}
    wanted = small_model(ffn=ffn, attention={"bias": True, "out_bias": True}, positions={"n_positions": 6}, mtp={})
    assert expansions(plan_growth(small_model(), wanted)) == [
        "learned positions: 0 -> 6, 0 at first",
        "further heads: 1 added, which the model does not read (multi-token prediction)",
        "layers 0-2: attention biases of queries, keys and values added, 0 at first",
        "layers 0-2: attention biases behind the heads added, 0 at first",
        "layers 0-2: feed-forward swiglu -> hourglass, whose first block it becomes (conversion)",
        "layers 0-2: feed-forward block 1 added, 10 hidden units, silent at first (block addition)",
    ]


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ({}, {"ffn": {**HOURGLASS, "share_weights": True}}, "layers.0.ffn.share_weights: got True; an added block"),
        ({}, {"ffn": {**HOURGLASS, "norm": "none"}}, "layers.0.ffn.norm: got 'none' where it was 'pre', which would"),
        ({}, {"ffn": {**HOURGLASS, "d_hidden": 9}}, "layers.0.ffn.blocks.0.w_gate: got 9 hidden units"),
        ({}, {"ffn": {**DYNAMIC, "mask": {"kind": "soft"}}}, "layers.0.ffn.mask.kind: got soft, which is below 1"),
        ({}, {"ffn": {**DYNAMIC, "mask": {"kind": "nested"}}}, "layers.0.ffn.mask.kind: got nested"),
        ({}, {"ffn": {**DYNAMIC, "score": {"kind": "rms_mean"}}}, "layers.0.ffn.score.kind: got rms_mean"),
        (
            {"attention": {"bias": True}},
            {"attention": {"bias": False}},
            "bias: got False where it was True; growth takes",
        ),
        (
            {"ffn": {**HOURGLASS, "n_blocks": 1}},
            {"ffn": {}},
            "layers.0.ffn.kind: got 'swiglu' where it was 'hourglass'; growth has no conversion for it",
        ),
        (
            {"ffn": HOURGLASS},
            {"ffn": {**HOURGLASS, "norm": "reordered"}},
            "layers.0.ffn.norm: got 'reordered' where it was 'pre', which would change the function",
        ),
        ({"ffn": HOURGLASS}, {"ffn": {**HOURGLASS, "norm": "shared"}}, "layers.0.ffn.norm: got 'shared'"),
        ({"mtp": {}}, {"mtp": None}, "mtp: got None where it was"),
        ({"mtp": {}}, {"mtp": {"n_depths": 2}}, "mtp.n_depths: got 2 where it was 1; growth has no conversion for it"),
        (
            {"tie_embeddings": True},
            {"tie_embeddings": False},
            "tie_embeddings: got False where it was True; growth has",
        ),
    ],
)
def test_what_would_start_otherwise_is_refused(base: Changes, changes: Changes, message: str) -> None:
    with pytest.raises(UserError) as raised:
        plan_growth(small_model(**base), small_model(**{**base, **changes}))
    assert message in str(raised.value)


def test_a_norm_is_the_same_whether_the_hourglass_or_its_layer_names_it() -> None:
    layer, own = (small_model(ffn={**HOURGLASS, "norm": norm}) for norm in (None, "pre"))
    for old, new in ((layer, own), (own, layer)):
        assert expansions(plan_growth(old, new)) == []
