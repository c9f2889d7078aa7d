"""The recipe that the command of a record names still describes the variants of that record."""

import json
import shlex
from pathlib import Path

import pytest

from widthwise.experiments.compare import read_plan
from widthwise.yaml_io import recipe_path

ROOT = Path(__file__).parents[2]


def recipe_of(record: Path) -> Path | None:
    """Return the recipe of a comparison, if it is in the repository."""
    command = shlex.split(json.loads(record.read_text()).get("command") or "")
    if command[1:2] != ["compare"]:
        return None
    path = recipe_path(command[2], ROOT)
    return path if path.is_file() else None


RECIPES = {path.parent.name: recipe_of(path) for path in (ROOT / "benchmarks" / "results").glob("*/outcome.json")}


@pytest.mark.parametrize("name", [name for name, path in RECIPES.items() if path is not None])
def test_a_recipe_describes_the_models_of_its_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recorded = json.loads((ROOT / "benchmarks" / "results" / name / "outcome.json").read_text())
    plan = read_plan([str(RECIPES[name])])
    params = {point.name: point.recipe.phases[-1].model.cost().params for point in plan.points.values()}
    recorded_params = {point["name"]: point["cost"]["params"]["total"] for point in recorded["points"]}
    # Older records have shapes with dead parameters, which are rounded in another way today.
    assert params == pytest.approx(recorded_params, rel=0.003)
