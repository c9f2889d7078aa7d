"""From what a search found to recipes that train."""

from pathlib import Path

import pytest
import yaml
from boxes import refusal
from tiny_runs import tiny_recipe

from widthwise.config_io import parse, to_data
from widthwise.recipe.design import search_recipe, write_search
from widthwise.recipe.recipe import load_recipe
from widthwise.shape.search_space import SearchSpace, Sizes, totals

MODEL = {"vocab_size": 61, "d_model": 48, "n_layers": 3, "attention": {"n_heads": 3}}
RECIPE = {**to_data(tiny_recipe("optimizer.betas=[0.8, 0.9]")), "model": MODEL}
SPACE = {"n_layers": [2, 5], "n_blocks": [1, 3], "tolerance": 0.02}


def written(tmp_path: Path, model: dict, space: dict, overrides: tuple[str, ...] = ()):
    """The search, its summary, and the paths of the recipes."""
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump({**RECIPE, "model": MODEL | model}))
    result = search_recipe(base, overrides, parse(SearchSpace, {**SPACE, **space}))
    summary = result.summary(5)
    return result, summary, write_search(base, overrides, summary, tmp_path / "out")


@pytest.mark.parametrize(
    ("model", "space"),
    [
        ({}, {}),
        ({"ffn": {"kind": "swiglu", "ratio": 3}}, {"n_heads": 2}),
        ({"attention": {"head_dim": 8, "kv_group_size": 2}}, {"match": "flops"}),
        ({"attention": {"n_heads": 4, "n_kv_heads": 2}}, {"n_heads": 6}),
        ({"attention": {"n_heads": 3, "ratio": 0.5}}, {}),
        ({"attention": {"n_heads": 3, "d_attention": 60}}, {}),
        ({"shape": {"kind": "x", "rounding": "balanced", "bottleneck_width": 0.5}}, {"match": "params"}),
        ({"ffn": {"kind": "hourglass", "n_blocks": 3, "d_hidden": 40}}, {}),
        ({"ffn": {"kind": "hourglass", "n_blocks": 2, "ratio": 0.5, "multiple_of": 8}}, {}),
    ],
)
def test_a_written_recipe_is_the_shape_that_was_found(model, space, tmp_path) -> None:
    result, summary, paths = written(tmp_path, model, space)
    assert len(paths) == 1 + len(summary["candidates"]) > 1
    assert load_recipe(paths[0]) == load_recipe(tmp_path / "base.yaml")
    for path, row in zip(paths[1:], summary["candidates"]):
        recipe = load_recipe(path)
        counted = totals(recipe.explicit_model, recipe.seq_len)
        assert path.stem == row["name"]
        assert {name: row[name] for name in counted} == counted
        sizes = Sizes(*(row[name] for name in Sizes._fields))
        assert recipe.explicit_model == result.count.build(sizes)
        for layer in recipe.explicit_model.layers:
            assert layer.ffn.hidden_widths == (row["d_hidden"],) * row["n_blocks"]
            assert (layer.attention.n_heads, layer.attention.head_dim) == (row["n_heads"], row["head_dim"])
        assert recipe.optimizer == load_recipe(paths[0]).optimizer


def test_overrides_reach_the_base_and_every_candidate(tmp_path) -> None:
    result, _, paths = written(tmp_path, {}, {}, ("optimizer.betas.0=0.7", "train.steps=9", "model.d_model=60"))
    recipes = [load_recipe(path) for path in paths]
    assert {(recipe.optimizer.betas, recipe.train.steps) for recipe in recipes} == {((0.7, 0.9), 9)}
    assert recipes[0].explicit_model.d_model == 60
    assert result.budget == 16 * 3 * 60**2


def test_the_same_search_may_be_written_again_and_another_not(tmp_path) -> None:
    _, _, paths = written(tmp_path, {}, {})
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert written(tmp_path, {}, {})[2] == paths
    other = refusal(written, tmp_path, {}, {"tolerance": 0.03})
    assert "search.json: exists already with other content; choose another --out" in other
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_a_width_budget_of_the_base_is_not_asked_of_an_hourglass(tmp_path) -> None:
    dynamic = {"ffn": {"kind": "dynamic", "d_ff": 60}}
    asked = ("train.width_budget={target: 0.5}", "train.nested={}")
    _, _, paths = written(tmp_path, dynamic, {}, asked)
    assert load_recipe(paths[0]).train.width_budget is not None
    for path in paths[1:]:
        train = load_recipe(path).train
        assert (train.width_budget, train.nested) == (None, None)
