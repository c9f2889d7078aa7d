"""Sizes without a recipe are those that the recipe of the model would give."""

from typing import Any

import pytest
from boxes import refusal
from growth_cases import DYNAMIC, GQA, HOURGLASS, MTP, REORDERED, UNSHARED, shaped, small_model

from widthwise.growth.choices import NewSizes
from widthwise.growth.plan import plan_growth
from widthwise.growth.resizing import resized
from widthwise.yaml_io import merge

HYPER_CONNECTIONS = {"kind": "hyper_connections", "slot_width": 4, "n_slots": 5}
LARGER_HEADS = {"d_model": 18, "head_dim": 6}
WITH_LARGER_HEADS = {"d_model": 18, "attention": {"head_dim": 6}}
DENSE = {"kind": "swiglu", "d_ff": 10}
DENSE_FIRST = {**UNSHARED, "n_layers": 2, "layers": {0: {"ffn": DENSE}}}
WINDOW = {"attention": {"window": 4}}
NO_WINDOW = {"attention": {"window": None}}
WINDOWS = {"layers": {0: WINDOW, 2: WINDOW}}
WITH_COPIED_WINDOW = {"n_layers": 4, "layers": {1: WINDOW, 2: NO_WINDOW, 3: WINDOW}}
UNTURNED = {"attention": {"rope_base": None}}
TURNED = {"attention": {"rope_base": 10000.0}}
RESIZED: list[tuple[dict[str, Any], dict[str, int], dict[str, Any]]] = [
    ({"attention": {"head_dim": None, "n_heads": 3}}, {"d_model": 24, "head_dim": 8}, {"d_model": 24}),
    ({"attention": {"scale": "1/head_dim"}}, LARGER_HEADS, WITH_LARGER_HEADS),
    (REORDERED, {"d_model": 20, "n_heads": 5}, {"d_model": 20}),
    (MTP, {"d_model": 20, "n_heads": 5, "d_ff": 17}, {"d_model": 20, "ffn": {"d_ff": 17}}),
    (HOURGLASS, {"d_ff": 7, "add_layers": 2}, {"ffn": {"d_hidden": 7}, "n_layers": 5}),
    (UNSHARED, {"d_ff": 7}, {"ffn": {"d_expert": 7}}),
    (DENSE_FIRST, {"add_layers": 2}, {"n_layers": 4, "layers": {i: {"ffn": DENSE} for i in range(3)}}),
    (WINDOWS, {"add_layers": 1}, WITH_COPIED_WINDOW),
    ({"layers": {1: UNTURNED}}, {"add_layers": 1}, {"n_layers": 4, "layers": {1: TURNED, 2: UNTURNED}}),
    (DYNAMIC, {"d_ff": 13, "add_layers": 1}, {"ffn": {"d_ff": 13}, "n_layers": 4}),
    ({"residual": HYPER_CONNECTIONS, **MTP}, LARGER_HEADS, {**WITH_LARGER_HEADS, "residual": {"slot_width": 6}}),
]
"""A recipe, sizes, and what the recipe would have otherwise."""


def test_the_model_is_that_of_the_recipe_with_these_sizes() -> None:
    for recipe, sizes, changes in RESIZED:
        old, wanted = small_model(**recipe), small_model(**merge(recipe, changes))
        assert resized(old, NewSizes(**sizes)) == wanted
        plan_growth(old, wanted)


@pytest.mark.parametrize("endpoints", ["slim", "full"])
def test_widths_of_a_shape_grow_in_proportion(endpoints: str) -> None:
    old = shaped([20, 8, 16], endpoints)
    assert resized(old, NewSizes(**LARGER_HEADS)) == shaped([30, 12, 24], endpoints, **WITH_LARGER_HEADS)


NARROW = {"shape": {"kind": "explicit", "widths": [20, 8, 16]}}


def test_what_is_ambiguous_is_refused() -> None:
    for changes, sizes, message in [
        (NARROW, {"n_heads": 6}, "n_heads: got 6 for all layers, which have 2, 4, 5; set single layers"),
        ({"layers": {1: {"ffn": {"d_ff": 11}}}}, {"d_ff": 20}, "have 10, 11; set single layers, as model.layers.0"),
        (NARROW, {"d_model": 13}, "d_model: got 13; layers.0.d_model would grow"),
        (GQA, {"n_heads": 8}, "got 8; must be a multiple of the group size 3"),
        ({}, {"head_dim": 5}, "layers.0.attention.head_dim: got 5"),
        ({"residual": HYPER_CONNECTIONS}, {"d_model": 14}, "would grow in proportion from 4 to 4.66667"),
    ]:
        assert message in refusal(resized, small_model(**changes), NewSizes(**sizes))
