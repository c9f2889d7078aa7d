"""A change laid over a recipe: another kind, or another sort of data, replaces what was said of the one before."""

import copy
from itertools import product
from typing import Any

import pytest

from widthwise.merging import difference, merge
from widthwise.yaml_io import apply_overrides, read_recipe

CORPUS = {"corpus": "synthetic", "tokenizer": "bytes", "held_out": 0.1, "verify": "sizes"}
PATH = {"path": "books", "corpus": None, "tokenizer": None, "held_out": None}
MIXTURE = {"mixture": {"web": {"path": "web", "weight": 3, "verify": "sizes"}, "own": {**CORPUS, "weight": 2}}}
SECTIONS = [CORPUS, PATH, MIXTURE]


def test_another_kind_replaces_the_section():
    base = {"f": {"kind": "a", "x": 1, "y": 2}}
    assert merge(base, {"f": {"kind": "b", "z": 3}}) == {"f": {"kind": "b", "z": 3}}
    assert merge(base, {"f": {"kind": "a", "x": 3}}) == {"f": {"kind": "a", "x": 3, "y": 2}}
    assert merge(base, {"f": {"x": 3}}) == {"f": {"kind": "a", "x": 3, "y": 2}}
    assert merge(base, {"f": None}) == {"f": None}
    assert base == {"f": {"kind": "a", "x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        *((before, after, after) for before, after in product(SECTIONS, SECTIONS)),
        (CORPUS, {"corpus": "python-stdlib"}, {**CORPUS, "corpus": "python-stdlib"}),
        (CORPUS, {"held_out": 0.2}, {**CORPUS, "held_out": 0.2}),
        (PATH, {"path": "other", "verify": "sizes"}, {**PATH, "path": "other", "verify": "sizes"}),
        (CORPUS, {"path": "books", "tokenizer": "bpe-300"}, {"path": "books", "tokenizer": "bpe-300"}),
        ({"tokenizer": "bytes"}, {"path": "books"}, {"path": "books"}),
        ({"tokenizer": "bytes"}, {"corpus": "synthetic"}, {"corpus": "synthetic", "tokenizer": "bytes"}),
        (CORPUS, {"path": None, "mixture": None}, {**CORPUS, "path": None, "mixture": None}),
        ({"corpus": "synthetic", "weight": 3}, {"path": "books"}, {"path": "books", "weight": 3}),
        (
            MIXTURE,
            {"mixture": {"own": {"path": "books"}}},
            {"mixture": {"web": MIXTURE["mixture"]["web"], "own": {"path": "books", "weight": 2}}},
        ),
    ],
)
def test_another_sort_of_source_replaces_the_one_before_and_the_same_sort_is_merged(before, change, expected):
    """A weight is not of the source, and within a mixture a source is replaced alone."""
    kept = copy.deepcopy(before)
    assert merge({"data": before, "x": 1}, {"data": change}) == {"data": expected, "x": 1}
    assert before == kept


def test_the_difference_laid_over_the_old_gives_the_new():
    for before, after in product(SECTIONS, SECTIONS):
        old = {"data": before, "m": {"kind": "a", "x": 1, "y": {"z": 2}}}
        for model in ({"kind": "a", "x": 1, "y": {"z": 3}}, {"kind": "b", "x": 1}):
            new = {"data": after, "m": model, "n": 5}
            assert merge(old, difference(old, new)) == new
        assert difference(old, copy.deepcopy(old)) == {}


def overridden(before: dict[str, Any], *overrides: str) -> dict[str, Any]:
    changed = copy.deepcopy({"data": before})
    apply_overrides(changed, overrides)
    return changed["data"]


def test_an_override_that_names_another_source_replaces_it():
    for before, override, expected in (
        (CORPUS, "data.path=x", {"path": "x"}),
        (MIXTURE, "data.path=x", {"path": "x"}),
        (CORPUS, "data.mixture.web.path=x", {"mixture": {"web": {"path": "x"}}}),
        (CORPUS, "data.mixture={web: {path: x}}", {"mixture": {"web": {"path": "x"}}}),
        (CORPUS, "data.path=null", {**CORPUS, "path": None}),
        (CORPUS, "data={held_out: 0.2}", {"held_out": 0.2}),
        (PATH, "data.corpus=synthetic", {"corpus": "synthetic"}),
    ):
        assert overridden(before, override) == expected, override
    assert overridden(MIXTURE, "data.mixture.own.path=x")["mixture"]["own"] == {"path": "x", "weight": 2}


def test_overrides_are_one_change_whatever_their_order():
    both = ("data.path=x", "data.tokenizer=bpe-300")
    for overrides in (both, both[::-1]):
        assert overridden(CORPUS, *overrides) == {"path": "x", "tokenizer": "bpe-300"}


def test_a_child_recipe_takes_its_own_data(tmp_path):
    (tmp_path / "parent.yaml").write_text("data: {corpus: synthetic, tokenizer: bytes}\nseq_len: 5")
    (tmp_path / "child.yaml").write_text("extends: parent.yaml\ndata: {path: books}")
    assert read_recipe(tmp_path / "child.yaml") == {"data": {"path": "books"}, "seq_len": 5}
