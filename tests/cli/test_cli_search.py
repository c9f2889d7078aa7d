"""`widthwise search` from argument to output, on a tiny model."""

import json
from functools import partial
from pathlib import Path

import pytest
import yaml

from widthwise.config_io import UserError
from widthwise.experiments.compare import plan_of_search, read_plan

SPACE = ("--n-layers", "2..4", "--n-blocks", "1,3", "--ratio", "0.4,0.7", "--tolerance", 0.02)


@pytest.fixture
def search(recipe: Path, widthwise):
    return partial(widthwise, "search", recipe)


def test_json_has_what_was_asked_for_and_found(search) -> None:
    code, out, _ = search(*SPACE, "--json", "--top", 3)
    summary = json.loads(out)
    assert code == 0
    assert (summary["match"], summary["tolerance"], summary["seq_len"]) == ("layer_params", 0.02, 24)
    assert summary["budget"] == summary["baseline"]["layer_params"] == 16 * 6 * 32**2
    assert len(summary["candidates"]) == 3 <= summary["n_found"]
    for row in summary["candidates"]:
        d_model, n_layers = row["d_model"], row["n_layers"]
        assert row["layer_params"] == n_layers * d_model * (4 * d_model + 3 * row["n_blocks"] * row["d_hidden"])
        assert row["n_layers"] in (2, 3, 4)
        assert row["n_blocks"] in (1, 3)
        assert abs(row["miss"]) <= 0.02


def test_every_option_reaches_the_search(search) -> None:
    asked = (
        *("--match", "params", "--budget", "90k", "--n-heads", 2, "--aspect", "4..30", "--ratio-range", "0.1..3"),
        *("--max-flops", 3e5, "--max-kv-bytes", 600, "--max-residual-additions", 14, "--rank-by", "kv_bytes"),
    )
    code, out, error = search(*SPACE, *asked, "--json")
    assert code == 0, error
    summary = json.loads(out)
    assert (summary["match"], summary["budget"]) == ("params", 90_000)
    for row in summary["candidates"]:
        assert row["params"] == pytest.approx(90_000, rel=0.02)
        assert row["n_heads"] == 2
        assert 4 <= row["aspect"] <= 30
        assert 0.1 <= row["ratio"] <= 3
        assert (row["flops"] <= 3e5, row["kv_bytes"] <= 600, row["n_residual_additions"] <= 14) == (True,) * 3
    grid = ("--grid", "hardware", "--head-dim", 128, "--n-layers", 4, "--tolerance", 0.05, "--json")
    hardware = json.loads(search("model.d_model=512", *grid)[1])["candidates"]
    assert hardware
    assert not [row for row in hardware if row["d_model"] % 128 or row["d_hidden"] % 64 or row["head_dim"] != 128]
    ranked = [row["kv_bytes"] for row in summary["candidates"] if row["is_pareto"]]
    assert ranked == sorted(ranked)


def test_the_table_shows_the_base_and_marks_the_pareto_front(search) -> None:
    code, out, _ = search(*SPACE, "--top", 4)
    lines = out.splitlines()
    rows = [line for line in lines if "%" in line and "within" not in line]
    assert code == 0
    assert "layer_params 98.3k, within 2%" in lines[0]
    assert sum(line.split()[0] == "base" for line in lines if line.strip()) == 1
    assert len(rows) == 4
    assert rows[0].split()[0] == "*"


def test_the_first_found_are_compared_with_the_base(search, tmp_path: Path) -> None:
    asked = ("train.steps=2", *SPACE, "--top", 2, "--train", 1, "--seed", 3, "--seed", 5, "--out", tmp_path / "found")
    code, out, error = search(*asked)
    assert code == 0, error
    comparison = json.loads((tmp_path / "found" / "outcome.json").read_text())
    best = json.loads((tmp_path / "found" / "search.json").read_text())["candidates"][0]
    assert [variant["name"] for variant in comparison["points"]] == ["base", best["name"]]
    assert (comparison["baseline"], comparison["seeds"], comparison["matched"]) == ("base", [3, 5], "layer_params")
    assert comparison["points"][1]["cost"]["params"]["total"] == best["params"]
    assert abs(comparison["points"][1]["ratio"]["layer_params"] - 1) <= 0.02
    assert (tmp_path / "found" / "report.html").is_file()
    assert f"wrote 3 recipes to {tmp_path / 'found' / 'recipes'}" in out.replace("\n", "")
    assert yaml.safe_load((tmp_path / "found" / "recipes" / "base.yaml").read_text())["train"]["steps"] == 2
    code, out, error = search(*asked, "--json")
    assert code == 0
    assert json.loads(out)["baseline"] == "base"
    assert error.count("has finished already") == 4


def test_the_best_of_each_is_kept(search, tmp_path: Path) -> None:
    code, out, error = search(*SPACE, "--per", "n_blocks, n_layers", "--json")
    assert code == 0, error
    kept = json.loads(out)
    assert kept["per"] == ["n_blocks", "n_layers"]
    assert kept["n_kept"] == len(kept["candidates"]) < kept["n_found"]
    _, out, _ = search(*SPACE, "--top", 1000, "--json")
    first: dict[tuple[int, int], str] = {}
    for row in json.loads(out)["candidates"]:
        first.setdefault((row["n_blocks"], row["n_layers"]), row["name"])
    assert [row["name"] for row in kept["candidates"]] == list(first.values())
    _, out, _ = search(*SPACE, "--per", "n_blocks,n_layers", "--top", 2)
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
    search, tmp_path: Path, arguments: tuple, matched: str
) -> None:
    code, out, error = search(*SPACE, *arguments, "--out", tmp_path, "--json")
    assert code == 0, error
    summary = json.loads(out)
    names = ("base", *(row["name"] for row in summary["candidates"]))
    recipes = [tmp_path / "recipes" / f"{name}.yaml" for name in names]
    plan = plan_of_search(summary, recipes, [7])
    assert (plan.match, plan.seeds, len(plan.recipes)) == (matched, (7,), len(recipes))
    if matched == "kv_bytes":  # some are farther from the base than a comparison by itself allows
        with pytest.raises(UserError, match="allows 1%"):
            read_plan(recipes, match=matched)
