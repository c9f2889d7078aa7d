"""`widthwise compare --dry-run` from argument to output."""

import json
from pathlib import Path

import pytest

from widthwise.experiments.plan import read_plan

COMPARED = """extends: base.yaml
compare:
  seeds: [3, 5]
  match: {quantity: params, adjust: {narrow: ffn}}
  variants: {base: {}, narrow: {model: {d_model: 24}}, same: {}}
"""


@pytest.fixture
def compared(recipe: Path) -> Path:
    path = recipe.with_name("compared.yaml")
    path.write_text(COMPARED)
    return path


def test_a_dry_run_shows_the_work_and_does_none(compared: Path, tmp_path: Path, widthwise) -> None:
    code, out, error = widthwise("compare", compared, "--out", tmp_path / "out", "--dry-run")
    assert (code, error) == (0, "")
    plan = read_plan(compared)
    adjustment = plan.adjustments["narrow"]
    _, narrow, same = (next(line for line in out.splitlines() if line.startswith(name)) for name in plan.recipes)
    assert narrow.endswith(f"{100 * abs(adjustment.miss):.3f}%")
    assert same.endswith("0.000%")
    assert "3 variants x 2 seeds: 6 runs, together about " in out
    assert f"narrow: {adjustment}" in out
    assert not (tmp_path / "out").exists()


def test_a_dry_run_as_json_has_the_same_numbers(compared: Path, widthwise) -> None:
    code, out, _ = widthwise("compare", compared, "--seed", 7, "train.steps=3", "--dry-run", "--json")
    plan = read_plan(compared, ["train.steps=3"], [7])
    assert (code, json.loads(out)) == (0, plan.workload_as_data())


def test_a_dry_run_refuses_what_compare_refuses(compared: Path, widthwise) -> None:
    code, out, error = widthwise("compare", compared, "--match", "kv_bytes", "--dry-run")
    assert (code, out) == (2, "")
    assert error.startswith("error: narrow: ")
    assert error.count("\n") == 1
