"""A growth in words: what becomes larger and by which expansion, and which constants stay."""

import expansions as grow
from model_cases import config, variant

from widthwise.growth.describe import expansions, kept_constants
from widthwise.growth.plan import plan_growth

X, UNIFORM, GQA = config("x"), config("uniform"), variant("uniform", "gqa")
HOURGLASS = config("uniform", ffn={"kind": "hourglass", "n_blocks": 2, "d_hidden": 5})
EXPERTS = config("uniform", ffn={"kind": "moe", "n_experts": 5, "top_k": 2, "d_expert": 6})
SLOTS = variant("uniform", "slots")
SILENT = "silent at first (layer addition)"
CASES = {
    "units": (
        UNIFORM,
        grow.widen_ffn(UNIFORM, [0, 1, 3], 50),
        ["layers 0-1, 3: feed-forward 34 -> 50 hidden units (MLP expansion)"],
    ),
    "groups": (
        GQA,
        grow.add_heads(GQA, [0, 2], 12, 6),
        [
            "layers 0, 2: attention 10 -> 12 heads (head addition)",
            "layers 0, 2: attention 5 -> 6 key-value heads (head addition)",
        ],
    ),
    "ungrouped": (
        GQA,
        grow.add_heads(GQA, [4], 10, 10),
        ["layer 4: attention 5 -> 10 key-value heads (head addition, 2 copies of each: groups divided)"],
    ),
    "keys": (
        UNIFORM,
        grow.widen_keys(UNIFORM, [2], 14),
        ["layer 2: attention queries and keys 10 -> 14 a head (attention expansion)"],
    ),
    "stream": (
        UNIFORM,
        grow.widen_stream(UNIFORM, 6),
        [
            "embedding and head: width 20 -> 26 (hidden dimension expansion)",
            "layers 0-4: width 20 -> 26 (6 new coordinates: hidden dimension expansion)",
        ],
    ),
    "narrow_layer": (
        X,
        grow.widen_layers(X, {2: 16}),
        ["layer 2: width 8 -> 16 (8 coordinates that wider layers had: variable width)"],
    ),
    "layer": (
        UNIFORM,
        grow.add_layers(UNIFORM, [2]),
        [f"layer 2: added, width 20, 2 heads of 10, swiglu feed-forward of 34 hidden units, {SILENT}"],
    ),
    "block": (
        HOURGLASS,
        grow.add_block(HOURGLASS, 1, 9),
        ["layer 1: feed-forward block 2 added, 9 hidden units, silent at first (block addition)"],
    ),
    "blocks_units": (
        HOURGLASS,
        grow.widen_ffn(HOURGLASS, [3], 8),
        [f"layer 3: feed-forward block {i} 5 -> 8 hidden units (MLP expansion)" for i in (0, 1)],
    ),
    "experts": (
        EXPERTS,
        grow.duplicate_experts(EXPERTS, [0, 1], 3),
        ["layers 0-1: 5 -> 15 experts, 2 -> 6 a token (experts duplicated)"],
    ),
    "split": (
        EXPERTS,
        grow.split_experts(EXPERTS, [1], 2),
        [
            "layer 1: 5 -> 10 experts, 2 -> 4 a token (experts cut)",
            "layer 1: experts 6 -> 3 hidden units (experts cut)",
        ],
    ),
    "shared": (
        EXPERTS,
        grow.widen_shared_expert(EXPERTS, [1], 7),
        ["layer 1: shared expert 0 -> 7 hidden units (MLP expansion)"],
    ),
    "upcycled": (
        UNIFORM,
        grow.upcycle(UNIFORM, [1], 4, 2),
        ["layer 1: feed-forward swiglu -> 4 experts of 34 hidden units, 2 a token (upcycling)"],
    ),
    "slots": (SLOTS, grow.add_slots(SLOTS, 12), ["residual: 5 -> 12 slots (virtual width)"]),
    "to_slots": (UNIFORM, grow.to_slots(UNIFORM, 4, 8), ["residual: plain -> 8 slots of 4 (virtual width)"]),
    "nothing": (UNIFORM, (UNIFORM, grow.same_layers(UNIFORM)), []),
}


def test_expansions_in_words():
    found = {name: expansions(plan_growth(old, *expansion)) for name, (old, expansion, _) in CASES.items()}
    assert found == {name: lines for name, (_, _, lines) in CASES.items()}


def test_constants_that_a_recipe_would_have_otherwise_are_all_listed():
    wanted = config(
        "uniform", d_model=20, attention={"n_heads": 2}, layers={1: {"attention": {"head_dim": 14, "scale": 14**-0.5}}}
    )
    plan = plan_growth(UNIFORM, wanted)
    found = kept_constants(plan, wanted)
    assert [str(each) for each in found] == [
        "layer 1: attention.scale stays 0.316228 (the recipe would have 0.267261)",
        "layer 1: attention.rope_frequencies is [1, ..., 1.58489e-05] (7 numbers) (the recipe would have null)",
    ]
    assert found[0].change == "layer 1: attention.scale 0.316228 -> 0.267261"
    assert [each.is_baked for each in found] == [True, False]


def test_the_eps_of_every_norm_is_kept_whatever_the_recipe_says():
    old, wanted = (config("uniform", norm={"eps": eps}, attention={"qk_norm": {"eps": eps}}) for eps in (1e-6, 1e-5))
    found = {str(each) for each in kept_constants(plan_growth(old, wanted), wanted) if each.path.endswith(".eps")}
    said = "stays 1e-06 (the recipe would have 1e-05)"
    of_layers = ("attention.qk_norm", "attention_norm", "ffn_norm")
    assert found == {f"final_norm.eps {said}", *(f"layers 0-4: {name}.eps {said}" for name in of_layers)}
