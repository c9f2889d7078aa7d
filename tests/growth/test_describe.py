"""A growth in words: what becomes larger and by which expansion, and which constants stay."""

from expansions import widen_ffn
from growth_cases import growth, planned
from model_cases import config

from widthwise.growth.describe import expansions, kept_constants
from widthwise.growth.plan import plan_growth

EXPECTED = {
    "units": ["layers 1, 3: feed-forward 10 -> 13 hidden units (MLP expansion)"],
    "groups": [
        "layer 1: attention 6 -> 12 heads (head addition)",
        "layer 1: attention 2 -> 4 key-value heads (head addition)",
    ],
    "divided_groups": ["layer 1: attention 2 -> 6 key-value heads (head addition, 3 copies of each: groups divided)"],
    "keys": ["layer 2: attention queries and keys 4 -> 6 a head (attention expansion)"],
    "stream": [
        "embedding and head: width 12 -> 15 (hidden dimension expansion)",
        "layers 1-3: width 12 -> 15 (3 new coordinates: hidden dimension expansion)",
    ],
    "narrow_layer": ["layer 2: width 8 -> 10 (2 coordinates that wider layers had: variable width)"],
    "layers": [
        "layers 1, 5: added, width 12, 3 heads of 4, swiglu feed-forward of 10 hidden units, "
        "silent at first (layer addition)"
    ],
    "block": ["layer 2: feed-forward block 2 added, 4 hidden units, silent at first (block addition)"],
    "units_of_blocks": [f"layer 1: feed-forward block {i} 4 -> 6 hidden units (MLP expansion)" for i in (0, 1)],
    "more_experts": ["layer 1: 3 -> 6 experts, 2 -> 4 a token (experts duplicated)"],
    "narrower_experts": [
        "layer 1: 3 -> 6 experts, 2 -> 4 a token (experts cut)",
        "layer 1: experts 4 -> 2 hidden units (experts cut)",
    ],
    "shared_expert": ["layer 1: shared expert 0 -> 3 hidden units (MLP expansion)"],
    "experts_of_a_dense_layer": ["layer 2: feed-forward swiglu -> 3 experts of 10 hidden units, 2 a token (upcycling)"],
    "slots": ["residual: 3 -> 5 slots (virtual width)"],
    "slots_of_a_plain_stream": ["residual: plain -> 5 slots of 4 (virtual width)"],
}
"""By the name of the growth in `growth_cases`."""


def test_expansions_in_words():
    assert {name: expansions(planned(name)) for name in EXPECTED} == EXPECTED
    spans = growth({"n_layers": 5}, widen_ffn, [0, 1, 3], 50)
    assert expansions(spans) == ["layers 1-2, 4: feed-forward 10 -> 50 hidden units (MLP expansion)"]
    assert expansions(plan_growth(spans.old, spans.old)) == []


def test_constants_that_a_recipe_would_have_otherwise_are_all_listed():
    wanted = config(
        "uniform", d_model=20, attention={"n_heads": 2}, layers={1: {"attention": {"head_dim": 14, "scale": 14**-0.5}}}
    )
    plan = plan_growth(config("uniform"), wanted)
    found = kept_constants(plan, wanted)
    assert [str(each) for each in found] == [
        "layer 2: attention.scale stays 0.316228 (the recipe would have 0.267261)",
        "layer 2: attention.rope_frequencies is [1, ..., 1.58489e-05] (7 numbers) (the recipe would have null)",
    ]
    assert found[0].change == "layer 2: attention.scale 0.316228 -> 0.267261"


def test_the_eps_of_every_norm_is_kept_whatever_the_recipe_says():
    old, wanted = (config("uniform", norm={"eps": eps}, attention={"qk_norm": {"eps": eps}}) for eps in (1e-6, 1e-5))
    found = {str(each) for each in kept_constants(plan_growth(old, wanted), wanted) if each.path.endswith(".eps")}
    said = "stays 1e-06 (the recipe would have 1e-05)"
    of_layers = ("attention.qk_norm", "attention_norm", "ffn_norm")
    assert found == {f"final_norm.eps {said}", *(f"layers 1-5: {name}.eps {said}" for name in of_layers)}
