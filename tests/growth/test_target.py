"""A grown config has the sizes asked for and the old constants; what would be another function is refused."""

from collections.abc import Callable
from typing import Any

import expansions
import growth_cases as cases
import pytest
from boxes import refusal
from expansions import Expansion
from growth_cases import growth, shaped

from widthwise.growth.plan import plan_growth
from widthwise.model.config import ModelConfig
from widthwise.yaml_io import merge


def wider(n_more: int) -> Callable[[ModelConfig], Expansion]:
    return lambda m: expansions.widen_stream(m, n_more)


def test_an_attention_keeps_its_scale_and_the_divisors_of_its_norms():
    """Queries get turned copies, which multiply the sum of squares, and new keys are 0."""
    once = growth(cases.QK_NORM, expansions.widen_keys, [0], 8)
    twice = plan_growth(once.new, *expansions.widen_keys(once.new, [0], 16))
    for plan, q_norm_dim in ((once, 8), (twice, 16)):
        attention = plan.new.layers[0].attention
        assert attention.scale == 0.5
        assert (attention.qk_norm.q_norm_dim, attention.qk_norm.k_norm_dim) == (q_norm_dim, 4)


def test_new_pairs_continue_the_old_frequencies_unless_a_base_has_them():
    larger, doubled = (growth({}, expansions.widen_keys, [0], n).new.layers[0].attention for n in (6, 8))
    assert larger.rope_frequencies == pytest.approx((1.0, 0.01, 0.0001), rel=1e-12)
    assert doubled.rope_frequencies is None
    taken = growth({}, cases.HIGHER_BASE).new.layers[1].attention
    assert (taken.rope_base, taken.rope_frequencies) == (10000.0 ** (6 / 4), None)
    rope = growth({"attention": {"head_dim": 2}}, expansions.widen_keys, [0], 2 + 4).new.layers[0].attention.rope
    assert rope.pair_frequencies[0] == 1.0
    assert len(set(rope.pair_frequencies)) == 3


def test_narrow_layers_measure_a_part_and_then_the_same_part():
    model = shaped([20, 8, 16])
    widen = expansions.widen_layers
    for expand in (lambda m: widen(m, {1: 12}), lambda m: widen(m, {1: 16}), wider(3)):
        model = plan_growth(model, *expand(model)).new
        assert [layer.ffn_norm.stat_width for layer in model.layers[:2]] == [None, 8]


EXPERTS = {"ffn": {"kind": "moe", "n_experts": 4, "top_k": 2, "d_expert": 2}}
MLP = {"ffn": cases.SILU_MLP}


Change = dict[str, Any] | Callable[[ModelConfig], Expansion]
REFUSED: dict[str, list[tuple[dict[str, Any], Change, str]]] = {
    "ends": [
        ({}, {"vocab_size": 18}, "vocab_size: got 18 where it was 17"),
        ({}, {"tie_embeddings": True}, "tie_embeddings: got True where it was False"),
        ({}, {"d_model": 8}, "d_model: layers of widths"),
        ({}, {"positions": {"n_positions": 9}}, "positions: got {'n_positions': 9} where it was None; growth has no"),
        ({}, {"logit_cap": 5.0}, "logit_cap: got 5.0 where it was None"),
        ({}, {"n_layers": 2}, "n_layers: got 2 where there were 3"),
        ({"mtp": {"n_depths": 1}}, {"mtp": {"n_depths": 2}}, "mtp.n_depths: got 2 where it was 1; growth has no conv"),
    ],
    "residual and norms": [
        ({}, {"residual": {"kind": "plain", "multiplier": 0.5}}, "residual.multiplier: got 0.5"),
        (cases.SLOTS, lambda m: expansions.widen_layers(m, {0: 14}), "slot_width"),
        ({"tie_embeddings": True}, lambda m: expansions.to_slots(m, 4, 4), "use residual.embedding: expand"),
        ({}, cases.LAYER_NORMS, "layers.0.attention_norm.kind: got 'layer'"),
        ({}, cases.REORDERED, "layers.0.norm_placement: got 'reordered'"),
    ],
    "a stream that cannot grow": [
        (cases.LAYER_NORMS, lambda m: expansions.widen_layers(m, {0: 16}), "d_model: under layer norms"),
        (merge(cases.LAYER_NORMS, cases.REORDERED), wider(4), "d_model: cannot grow with layer norms after"),
        ({"residual": {"kind": "plain", "resize": "zero"}}, wider(4), "residual.resize: got zero; a stream grows only"),
    ],
    "attention": [
        ({}, {"attention": {"qk_norm": {"over": "head"}}}, "layers.0.attention.qk_norm: got"),
        ({}, {"attention": {"bias": True}}, "layers.0.attention.bias: got True where it was False; growth has no conv"),
        ({}, {"attention": {"score_cap": 5.0}}, "layers.0.attention.score_cap: got 5.0 where it was None"),
        (cases.QK_NORM, {"attention": {"qk_norm": {"over": "all_heads"}}}, "qk_norm.over: got"),
        (cases.QK_NORM, lambda m: expansions.widen_keys(m, [1], 6), "layers.1.attention.head_dim: got 6"),
        (cases.ONE_QK_NORM, lambda m: expansions.widen_keys(m, [1], 6), "n_heads times head_dim: got 18"),
        ({}, {"attention": {"rope_base": 500.0}}, "layers.0.attention.rope_frequencies: the 2 frequencies of the old"),
        ({}, {"attention": {"rope_base": 500.0, "head_dim": 6}, "d_model": 18}, "or raise rope_base to"),
        ({}, {"attention": {"rope_base": None}}, "layers.0.attention.rope_base: rotation cannot be added or removed"),
        ({}, lambda m: expansions.add_heads(m, [0], 2, 2), "got 2 heads and 2 key-value heads where there"),
        ({}, lambda m: expansions.widen_values(m, [0], 3), "layers.0.attention.v_head_dim: got 3"),
        (cases.GQA, lambda m: expansions.add_heads(m, [0], 8, 4), "3 query heads a group cannot be divided"),
    ],
    "feed-forward": [
        ({}, MLP, "layers.0.ffn.kind: got 'mlp' where it was 'swiglu'"),
        ({}, {"ffn": {"d_ff": 9}}, "layers.0.ffn.w_gate: got 9 where there were 10"),
        (cases.DYNAMIC, {"ffn": {"mask": {"kind": "hard"}}}, "mask.kind: got 'hard'"),
        *(
            (EXPERTS, {"ffn": {"n_experts": n_experts, "top_k": top_k}}, ": multiply n_experts and top_k by")
            for n_experts, top_k in [(5, 2), (8, 2), (4, 3), (8, 3), (2, 1)]
        ),
    ],
    "a feed-forward of another kind": [
        (MLP, cases.BLOCKS, "layers.0.ffn.kind: got 'hourglass' where it was 'mlp'"),
        ({}, merge(cases.CHOSEN, {"ffn": {"mask": {"kind": "soft"}}}), "layers.0.ffn.mask.kind: got soft, which is"),
        ({}, merge(cases.CHOSEN, {"ffn": {"score": {"kind": "raw_mean"}}}), "layers.0.ffn.score.kind: got raw_mean"),
        (cases.BLOCKS, {"ffn": {"kind": "swiglu", "d_ff": 10}}, "growth has no conversion"),
        ({**cases.NARROW, **cases.BLOCKS}, {"ffn": {"n_blocks": 2}}, "n_blocks: got 2 where it was 3; growth takes no"),
    ],
}
"""What the old model has, what the new one has beside it (or the expansion), and what is said. That any other value of
a field of one kind is refused, or makes no difference, is in the contracts of tests/model."""


@pytest.mark.parametrize("part", REFUSED)
def test_what_would_be_another_function_is_refused_in_one_line(part):
    for base, change, message in REFUSED[part]:
        assert message in refusal(growth, base, change)
