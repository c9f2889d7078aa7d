"""Each expansion alone: exact, alive within two steps, and with the zeros that it needs and no others."""

import math

import expansions
import pytest
import torch
from growth_cases import (
    SEQ_LEN,
    Measured,
    Weights,
    difference,
    logits_of,
    model_of,
    pulled_back,
    shaped,
    small_model,
    tokens_for,
    unmoved,
    unreachable,
    with_random_weights,
)

from widthwise.config_io import UserError
from widthwise.growth.choices import ZeroSide
from widthwise.growth.plan.fresh import Constant
from widthwise.growth.plan.model_plan import GrowthPlan, plan_growth
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.generate import SamplingConfig, generate
from widthwise.model.rope import rope_table

pytestmark = pytest.mark.usefixtures("float64")

GQA = {"attention": {"head_dim": 2, "kv_group_size": 3}}
GPT2 = {
    "attention": {"rope_base": None, "bias": True, "out_bias": True},
    "norm": {"kind": "layer"},
    "ffn": {"kind": "mlp", "activation": "gelu_tanh", "bias": True, "d_ff": 10},
    "positions": {"n_positions": 9},
    "tie_embeddings": True,
}
MOE = {"ffn": {"kind": "moe", "n_experts": 3, "top_k": 2, "d_expert": 4, "n_shared_experts": 1}}
HOURGLASS = {"ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 4}}
DYNAMIC = {"ffn": {"kind": "dynamic", "d_ff": 9, "start": 0.8, "mask": {"kind": "soft", "temperature": 2.0}}}
SLOTS = {"residual": {"kind": "hyper_connections", "slot_width": 4}}
REORDERED = {"norm": {"placement": "reordered"}}
NARROW = [16, 8, 12]

CASES = {
    "units": (small_model(), lambda m: expansions.widen_ffn(m, [0, 2], 13)),
    "units_with_biases": (small_model(**GPT2), lambda m: expansions.widen_ffn(m, [1], 11)),
    "units_of_experts": (small_model(**MOE), lambda m: expansions.widen_ffn(m, [0], 7)),
    "units_of_blocks": (small_model(**HOURGLASS), lambda m: expansions.widen_ffn(m, [0], 6)),
    "units_of_shared_blocks": (
        small_model(ffn={**HOURGLASS["ffn"], "share_weights": True}),
        lambda m: expansions.widen_ffn(m, [0], 6),
    ),
    "units_of_any_rank": (small_model(**DYNAMIC), lambda m: expansions.widen_ffn(m, [0], 14)),
    "groups": (small_model(**GQA), lambda m: expansions.add_heads(m, [0], 12, 4)),
    "wider_groups": (small_model(**GQA), lambda m: expansions.add_heads(m, [0], 8, 2)),
    "divided_groups": (small_model(**GQA), lambda m: expansions.add_heads(m, [0], 6, 6)),
    "heads_under_one_norm": (
        small_model(attention={"qk_norm": {"over": "all_heads"}}),
        lambda m: expansions.add_heads(m, [0], 6, 6),
    ),
    "values": (small_model(**GQA), lambda m: expansions.widen_values(m, [1], 5)),
    "keys": (small_model(attention={"bias": True}), lambda m: expansions.widen_keys(m, [1], 6)),
    "keys_twice_as_large": (small_model(), lambda m: expansions.widen_keys(m, [1], 8)),
    "keys_behind_norms": (
        small_model(attention={"qk_norm": {"over": "head"}, "bias": True}),
        lambda m: expansions.widen_keys(m, [1], 12),
    ),
    "keys_that_do_not_turn": (small_model(**GPT2), lambda m: expansions.widen_keys(m, [1], 5)),
    "stream": (small_model(), lambda m: expansions.widen_stream(m, 3)),
    "stream_tied": (small_model(tie_embeddings=True), lambda m: expansions.widen_stream(m, 3)),
    "stream_of_layer_norms": (small_model(**GPT2), lambda m: expansions.widen_stream(m, 3)),
    "stream_with_further_heads": (
        small_model(mtp={"n_depths": 1}),
        lambda m: expansions.widen_stream(m, 3),
    ),
    "stream_of_layer_norms_with_further_heads": (
        small_model(mtp={"n_depths": 1}, norm={"kind": "layer"}),
        lambda m: expansions.widen_stream(m, 3),
    ),
    "stream_behind_norms": (small_model(**REORDERED), lambda m: expansions.widen_stream(m, 3)),
    "stream_of_narrow_layers": (shaped(NARROW), lambda m: expansions.widen_stream(m, 3)),
    "stream_of_mixtures": (small_model(**MOE), lambda m: expansions.widen_stream(m, 3)),
    "stream_of_slots": (small_model(**SLOTS), lambda m: expansions.widen_stream(m, 6)),
    "stream_of_wide_attention": (
        small_model(attention={"head_dim": 4, "d_attention": 20}),
        lambda m: expansions.widen_stream(m, 3),
    ),
    "stream_of_a_profile": (
        small_model(shape={"kind": "profile", "heads": [1, 2], "hidden": [2, 1]}),
        lambda m: expansions.widen_stream(m, 3),
    ),
    "stream_of_ungated_blocks": (
        small_model(ffn={"kind": "hourglass", "n_blocks": 2, "d_hidden": 7, "gated": False, "activation": "relu2"}),
        lambda m: expansions.widen_stream(m, 3),
    ),
    "stream_projected": (
        shaped(NARROW, residual={"kind": "plain", "resize": "projection"}),
        lambda m: expansions.widen_stream(m, 2),
    ),
    "stream_projected_whole": (
        shaped(NARROW, residual={"kind": "plain", "resize": "full_projection"}),
        lambda m: expansions.widen_stream(m, 2),
    ),
    "narrow_layer": (shaped(NARROW), lambda m: expansions.widen_layers(m, {1: 10})),
    "narrow_layer_behind_norms": (shaped(NARROW, **REORDERED), lambda m: expansions.widen_layers(m, {1: 10})),
    "narrow_layer_of_slots": (shaped(NARROW, **SLOTS), lambda m: expansions.widen_layers(m, {1: 12})),
    "layers": (small_model(), lambda m: expansions.add_layers(m, [0, 4])),
    "layers_with_biases": (small_model(**GPT2), lambda m: expansions.add_layers(m, [2])),
    "layers_behind_norms": (small_model(**REORDERED), lambda m: expansions.add_layers(m, [1])),
    "layers_of_slots": (small_model(**SLOTS), lambda m: expansions.add_layers(m, [1])),
    "layers_of_experts": (small_model(**MOE), lambda m: expansions.add_layers(m, [1])),
    "narrow_layers": (shaped(NARROW), lambda m: expansions.add_layers(m, [1], like=1)),
    "block": (small_model(**HOURGLASS), lambda m: expansions.add_block(m, 1, 1)),
    "block_behind_norms": (small_model(**HOURGLASS, **REORDERED), lambda m: expansions.add_block(m, 1, 0, 3)),
    "more_experts": (small_model(**MOE), lambda m: expansions.duplicate_experts(m, [0], 2)),
    "narrower_experts": (small_model(**MOE), lambda m: expansions.split_experts(m, [0], 2)),
    "shared_expert": (
        small_model(ffn={**MOE["ffn"], "n_shared_experts": 0}),
        lambda m: expansions.widen_shared_expert(m, [0], 3),
    ),
    "shared_expert_behind_norms": (
        small_model(ffn={**MOE["ffn"], "n_shared_experts": 0}, **REORDERED),
        lambda m: expansions.widen_shared_expert(m, [0], 3),
    ),
    "experts_of_a_dense_layer": (small_model(), lambda m: expansions.upcycle(m, [1], 3, 2)),
    "slots": (small_model(**SLOTS), lambda m: expansions.add_slots(m, 5)),
    "slots_of_a_plain_stream": (shaped(NARROW), lambda m: expansions.to_slots(m, 4, 5)),
}
UNNEEDED = {("keys_that_do_not_turn", "outputs"): {"layers.1.attention.w_k.bias.weight"}}
"""Zeros that are not needed. A bias of keys adds the same to all scores of a query where nothing turns."""


def planned(case: str, zero_side: ZeroSide = "outputs") -> tuple[ModelConfig, GrowthPlan, Weights, Weights]:
    config, expand = CASES[case]
    plan, weights = plan_growth(config, *expand(config), zero_side=zero_side), with_random_weights(config, 1)
    return config, plan, weights, dict(plan.weights(weights, 2))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("zero_side", ["outputs", "inputs"])
def test_it_is_exact_and_so_are_its_gradients(case, zero_side):
    config, plan, weights, _ = planned(case, zero_side)
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    new = dict(plan.weights(leaves, 2))
    before = Measured(config, weights, tokens_for(1))
    after = Measured(plan.new, {name: weight.detach() for name, weight in new.items()}, tokens_for(1))
    assert difference(before.logits, after.logits) <= 1e-12
    for losses in zip(before.further_losses, after.further_losses, strict=True):
        assert difference(*losses) <= 1e-12
    if _has_router(plan.new):
        return  # its auxiliary losses are part of the objective, and see how many experts there are
    largest = max(gradient.abs().max() for gradient in before.gradients.values())
    for name, gradient in pulled_back(leaves, new, after.gradients).items():
        assert (gradient - before.gradients[name]).abs().max() <= 1e-12 * largest


def _has_router(config: ModelConfig) -> bool:
    return any(layer.ffn.kind == "moe" for layer in config.layers)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("zero_side", ["outputs", "inputs"])
def test_all_that_is_new_learns_within_two_steps(case, zero_side):
    _, plan, _, new = planned(case, zero_side)
    tokens = tokens_for(2, batch=6)
    never, cannot = unmoved(plan.new, new, tokens, 2), unreachable(plan.new, new, tokens)
    n_reached = 0
    for name, is_new in plan.is_new().items():
        assert not (never[name] & is_new & ~cannot[name]).any(), name
        n_reached += int((is_new & ~cannot[name]).sum())
    assert n_reached > 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("zero_side", ["outputs", "inputs"])
def test_free_entries_may_be_anything_and_zeros_must_be_zero(case, zero_side):
    config, plan, weights, new = planned(case, zero_side)
    tokens = tokens_for(1)
    logits = logits_of(config, weights, tokens[:, :-1])
    large = dict(plan.weights(weights, 2, Constant(1e3)))
    # What a layer norm makes of a mean is 0 up to rounding, and so are sums in another order, times a thousand.
    assert difference(logits, logits_of(plan.new, large, tokens[:, :-1])) <= (1e-8 if "layer_norms" in case else 1e-11)
    before = Measured(config, weights, tokens)
    unneeded = set()
    for name, tensor in plan.tensors.items():
        must_be_zero = tensor.must_be_zero()
        assert not new[name][must_be_zero].any()
        if must_be_zero.any():
            noise = torch.randn(new[name].shape, generator=torch.Generator().manual_seed(0)) * 1e-3
            after = Measured(plan.new, new | {name: new[name] + noise * must_be_zero}, tokens)
            differences = [difference(a, b) for a, b in zip(before.further_losses, after.further_losses, strict=True)]
            if max(difference(before.logits, after.logits), *differences, 0.0) < 1e-9:
                unneeded.add(name)
    assert unneeded == UNNEEDED.get((case, zero_side), set())


def grown_model(case: str) -> tuple[Decoder, Decoder]:
    config, plan, weights, new = planned(case)
    return model_of(config, weights).eval(), model_of(plan.new, new).eval()


@pytest.mark.parametrize("case", ["groups", "wider_groups", "divided_groups", "values", "keys", "keys_behind_norms"])
def test_decoding_with_a_cache_goes_on_as_before(case):
    old, new = grown_model(case)
    prompts = [[1, 2, 3], [5]]
    greedy = SamplingConfig(temperature=0.0)
    assert generate(old, prompts, 9, greedy) == generate(new, prompts, 9, greedy)
    tokens, cache = tokens_for(4), new.new_cache(2, SEQ_LEN + 1)
    with torch.no_grad():
        parts = [new(part, cache) for part in tokens.split([3, 1, SEQ_LEN - 3], dim=1)]
        assert difference(old(tokens), torch.cat(parts, dim=1)) <= 1e-12


@pytest.mark.parametrize("head_dim", [6, 8, 12, 14])
def test_pairs_turn_as_before_at_long_positions(head_dim):
    config = small_model()
    plan = plan_growth(config, *expansions.widen_keys(config, [0], head_dim))
    old_rope, rope = (c.layers[0].attention.rope for c in (config, plan.new))
    rows = plan.tensors["layers.0.attention.w_q.weight"].maps[0].index[:head_dim]
    places = torch.tensor([int((rows == i).nonzero()[0]) for i in range(4)])
    positions = torch.tensor([[1, 4096]])
    for old, new in zip(rope_table(positions, old_rope), rope_table(positions, rope)):
        assert (old - new[..., places]).abs().max() <= 1e-9
        assert new.shape[-1] == head_dim


def test_an_added_layer_can_start_as_a_copy():
    config = small_model()
    plan = plan_growth(config, *expansions.add_layers(config, [2]), new_layers="copied")
    weights = with_random_weights(config, 0)
    new = dict(plan.weights(weights))
    for name, weight in new.items():
        if name.startswith("layers.2."):
            assert plan.is_new()[name].all()
            silent = name.endswith(("w_o.weight", "w_down.weight"))
            assert torch.equal(weight, torch.zeros_like(weight) if silent else weights[name.replace("s.2.", "s.1.")])
    tokens = tokens_for(0)[:, :-1]
    assert difference(logits_of(config, weights, tokens), logits_of(plan.new, new, tokens)) == 0


def test_a_copied_layer_can_be_silenced_by_its_inputs():
    config = small_model(**GPT2)
    plan = plan_growth(config, *expansions.add_layers(config, [2]), new_layers="copied", zero_side="inputs")
    weights = with_random_weights(config, 0)
    new = dict(plan.weights(weights))
    zero = {name.removeprefix("layers.2.") for name in new if name.startswith("layers.2.") and not new[name].any()}
    assert zero == {
        "attention.w_v.weight", "attention.w_v.bias.weight", "attention.w_o.bias.weight",
        "ffn.w_up.weight", "ffn.w_up.bias.weight", "ffn.w_down.bias.weight",
    }  # fmt: skip
    for matrix in ("attention.w_o", "ffn.w_down"):
        assert torch.equal(new[f"layers.2.{matrix}.weight"], weights[f"layers.1.{matrix}.weight"])
    tokens = tokens_for(0)[:, :-1]
    assert difference(logits_of(config, weights, tokens), logits_of(plan.new, new, tokens)) == 0


@pytest.mark.parametrize(
    "expand", [lambda m: expansions.widen_ffn(m, [1], 13), lambda m: expansions.add_layers(m, [1])]
)
@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_units_without_a_slope_at_zero_cannot_begin_with_inputs_of_zero(expand, activation):
    config = small_model(ffn={"kind": "mlp", "activation": activation, "d_ff": 10})
    with pytest.raises(
        UserError, match=r"layers.1.ffn: zero_side: got inputs; new units .*\(mlp\) would never learn from inputs of 0"
    ):
        plan_growth(config, *expand(config), zero_side="inputs")


@pytest.mark.parametrize(
    ("new_std", "ratio"), [(None, 1.0), (0.15, 0.15 / 0.3), ("initial", 0.02 / math.sqrt(4) / 0.3)]
)
def test_new_weights_are_drawn_as_wide_as_asked(new_std, ratio):
    """Old weights have a standard deviation of 0.3; an untrained model one of 0.02, halved by width_multiplier 4."""
    config = small_model(d_model=40, init={"std": 0.02, "width_multiplier": 4.0})
    weights = with_random_weights(config, 0)
    plan = plan_growth(config, *expansions.widen_ffn(config, [0], 60), new_std=new_std)
    rows = dict(plan.weights(weights))["layers.0.ffn.w_up.weight"][10:]
    assert rows.std().item() == pytest.approx(ratio * 0.3, rel=0.08)  # of 2000 numbers
    wider = plan_growth(config, *expansions.widen_stream(config, 4), new_std=new_std)
    gain = dict(wider.weights(weights))["layers.1.ffn.norm.weight"]
    assert torch.equal(gain[40:], gain[:40].mean().expand(4))


@pytest.mark.parametrize(("new_std", "std"), [(None, 0.02), ("initial", 0.02), (0.15, 0.15)])
def test_an_added_layer_is_drawn_as_wide_as_asked(new_std, std):
    config = small_model(d_model=40, init={"std": 0.02})
    plan = plan_growth(config, *expansions.add_layers(config, [1]), new_std=new_std)
    new = dict(plan.weights(with_random_weights(config, 0)))
    assert new["layers.1.attention.w_v.weight"].std().item() == pytest.approx(std, rel=0.08)
    assert torch.equal(new["layers.1.ffn.norm.weight"], torch.ones(40))


def test_sites_of_the_residual_are_not_copied():
    """A copied site would mix the slots once more, whatever the layer writes."""
    config = small_model(**SLOTS)
    plan = plan_growth(config, *expansions.add_layers(config, [1]), new_layers="copied")
    weights, tokens = with_random_weights(config, 0), tokens_for(0)[:, :-1]
    new = dict(plan.weights(weights))
    assert torch.equal(new["layers.1.attention.w_q.weight"], weights["layers.0.attention.w_q.weight"])
    assert difference(logits_of(config, weights, tokens), logits_of(plan.new, new, tokens)) <= 1e-12


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("units", "stream"), ("groups", "values"), ("keys", "stream_tied"), ("layers", "narrow_layer"),
        ("more_experts", "stream_of_mixtures"), ("block", "units_of_blocks"), ("slots", "stream_of_slots"),
    ],
)  # fmt: skip
def test_the_order_of_two_expansions_does_not_matter(first, second):
    config = CASES[second][0] if first != "block" else CASES[first][0]
    expansions_of = [CASES[first][1], CASES[second][1]]
    weights, tokens = with_random_weights(config, 3), tokens_for(3)[:, :-1]
    found, before = [], logits_of(config, weights, tokens)
    if first == "layers":  # which are counted anew
        expansions_of[0] = lambda m: expansions.add_layers(m, [m.n_layers])
    for order in (expansions_of, expansions_of[::-1]):
        now, grown = config, weights
        for expand in order:
            plan = plan_growth(now, *expand(now))
            now, grown = plan.new, dict(plan.weights(grown, 1))
        assert difference(before, logits_of(now, grown, tokens)) <= 1e-12
        found.append({name: tuple(weight.shape) for name, weight in grown.items()})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("expand", "message"),
    [
        (lambda m: expansions.add_layers(m, [5]), "layers: got [5]; positions in the grown model are 0 to 3"),
        (lambda m: expansions.add_block(m, 0, 0), "layers.0.ffn: must be an hourglass"),
        (lambda m: expansions.add_slots(m, 4), "residual: is plain, which has no slots; see to_slots"),
        (lambda m: expansions.add_heads(m, [0], 5, 3), "n_kv_heads: got 3; must divide n_heads = 5"),
        (lambda m: expansions.widen_keys(m, [0], 5), "head_dim: got 5; rotary positions rotate pairs"),
        (lambda m: expansions.split_experts(m, [0], 3), "layers.0.ffn: is a swiglu"),
        (lambda m: expansions.duplicate_experts(m, [0], 3), "layers.0.ffn: is a swiglu"),
        (lambda m: expansions.widen_shared_expert(m, [1], 3), "layers.1.ffn: is a swiglu"),
        (lambda m: expansions.widen_ffn(m, [3], 12), "layers: got 3; the model has 0 to 2"),
        (lambda m: expansions.widen_ffn(m, [1], -3), "layers.1.ffn.d_ff: got -3; input should be greater than 0"),
        (lambda m: expansions.widen_layers(m, {-1: 20}), "layers: got -1; the model has 0 to 2"),
        (lambda m: expansions.add_layers(m, [1], like=3), "layers: got 3; the model has 0 to 2"),
        (lambda m: expansions.add_block(m, 7, 0), "layers: got 7; the model has 0 to 2"),
        (lambda m: expansions.to_slots(m, 0, 4), "residual.slot_width: got 0; must be at least 1"),
        (lambda m: expansions.to_slots(m, 4, 4, embedding="none"), "residual.embedding: got 'none'"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_have_is_refused(expand, message):
    with pytest.raises(UserError) as raised:
        expand(small_model())
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("config", "expand", "message"),
    [
        (small_model(**MOE), lambda m: expansions.upcycle(m, [0], 3, 2), "layers.0.ffn: is a moe"),
        (small_model(**MOE), lambda m: expansions.split_experts(m, [0], 3), "d_expert: got 4; cannot be cut into 3"),
        (small_model(**SLOTS), lambda m: expansions.widen_stream(m, 4), "d_model: got 16; must stay a multiple of"),
        (small_model(**SLOTS), lambda m: expansions.widen_layers(m, {0: 14}), "slot_width"),
        (small_model(**SLOTS), lambda m: expansions.to_slots(m, 4, 4), "residual: is hyper_connections"),
        (small_model(tie_embeddings=True), lambda m: expansions.to_slots(m, 4, 4), "use residual.embedding: expand"),
        (small_model(), lambda m: expansions.add_heads(m, [0], 2, 2), "growth takes nothing away"),
        (small_model(**GQA), lambda m: expansions.add_heads(m, [0], 8, 4), "3 query heads a group cannot be divided"),
        (small_model(), lambda m: expansions.widen_values(m, [0], 3), "layers.0.attention.v_head_dim: got 3"),
        (small_model(), lambda m: expansions.widen_keys(m, [0], 2), "attention.head_dim: got 2 where there were 4"),
    ],
)  # fmt: skip
def test_what_would_be_another_function_is_refused(config, expand, message):
    with pytest.raises(UserError) as raised:
        plan_growth(config, *expand(config))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
