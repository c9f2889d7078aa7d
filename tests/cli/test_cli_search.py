"""`widthwise search` from argument to output, on a tiny model."""

import json
from functools import partial
from pathlib import Path

import pytest
import yaml
from boxes import refusal

from widthwise.experiments.compare import plan_of_search, read_plan

SPACE = ("--n-layers", "2..4", "--n-blocks", "1,3", "--ratio", "0.4,0.7", "--tolerance", 0.02)


@pytest.fixture
def found(recipe: Path, answer):
    """Arguments -> what `search` finds."""
    return partial(answer, "search", recipe)


def test_json_has_what_was_asked_for_and_found(found) -> None:
    summary = found(*SPACE, "--top", 3)
    assert (summary["match"], summary["tolerance"], summary["seq_len"]) == ("layer_params", 0.02, 24)
    assert summary["budget"] == summary["baseline"]["layer_params"] == 16 * 6 * 32**2
    assert len(summary["candidates"]) == 3 <= summary["n_found"]
    for row in summary["candidates"]:
        d_model, n_layers = row["d_model"], row["n_layers"]
        assert row["layer_params"] == n_layers * d_model * (4 * d_model + 3 * row["n_blocks"] * row["d_hidden"])
        assert n_layers in (2, 3, 4)
        assert row["n_blocks"] in (1, 3)
        assert abs(row["miss"]) <= 0.02


def test_the_table_shows_the_base_and_marks_the_pareto_front(recipe: Path, succeeds) -> None:
    lines = succeeds("search", recipe, *SPACE, "--top", 4)[0].splitlines()
    rows = [line for line in lines if "%" in line and "within" not in line]
    assert "layer_params 98.3k, within 2%" in lines[0]
    assert sum(line.split()[0] == "base" for line in lines if line.strip()) == 1
    assert len(rows) == 4
    assert rows[0].split()[0] == "*"


def test_the_first_found_are_compared_with_the_base(recipe: Path, succeeds, tmp_path: Path) -> None:
    out = tmp_path / "found"
    asked = ("train.steps=2", *SPACE, "--top", 2, "--train", 1, "--seed", 3, "--seed", 5, "--out", out)
    printed, _ = succeeds("search", recipe, *asked)
    comparison = json.loads((out / "outcome.json").read_text())
    best = json.loads((out / "search.json").read_text())["candidates"][0]
    assert [variant["name"] for variant in comparison["points"]] == ["base", best["name"]]
    assert (comparison["baseline"], comparison["seeds"], comparison["matched"]) == ("base", [3, 5], "layer_params")
    assert comparison["points"][1]["cost"]["params"]["total"] == best["params"]
    assert abs(comparison["points"][1]["ratio"]["layer_params"] - 1) <= 0.02
    assert (out / "report.html").is_file()
    assert f"wrote 3 recipes to {out / 'recipes'}" in printed.replace("\n", "")
    assert yaml.safe_load((out / "recipes" / "base.yaml").read_text())["train"]["steps"] == 2
    printed, error = succeeds("search", recipe, *asked, "--json")
    assert json.loads(printed)["baseline"] == "base"
    assert error.count("has finished already") == 4


def test_the_best_of_each_is_kept(found, recipe: Path, succeeds) -> None:
    first: dict[tuple[int, int], str] = {}
    for row in found(*SPACE, "--top", 1000)["candidates"]:
        first.setdefault((row["n_blocks"], row["n_layers"]), row["name"])
    per = ("--per", "n_blocks, n_layers")
    assert [row["name"] for row in found(*SPACE, *per)["candidates"]] == list(first.values())
    out, _ = succeeds("search", recipe, *SPACE, *per, "--top", 2)
    assert f"the best of each n_blocks and n_layers: {len(first)}, the first 2" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "matched"),
    [
        (("--budget", "98.5k"), "layer_params"),
        (("--budget", "120k"), "none"),
        (("--match", "kv_bytes", "--tolerance", 0.3), "kv_bytes"),
    ],
)
def test_what_is_trained_stays_matched_to_the_base_whose_budget_it_has(
    found, tmp_path: Path, arguments: tuple, matched: str
) -> None:
    summary = found(*SPACE, *arguments, "--out", tmp_path)
    names = ("base", *(row["name"] for row in summary["candidates"]))
    recipes = [tmp_path / "recipes" / f"{name}.yaml" for name in names]
    plan = plan_of_search(summary, recipes, [7])
    assert (plan.match, plan.seeds, len(plan.recipes)) == (matched, (7,), len(recipes))
    if matched == "kv_bytes":  # some are farther from the base than a comparison by itself allows
        assert "allows 1%" in refusal(read_plan, recipes, (), (), matched)
