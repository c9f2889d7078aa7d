"""`--step` of the verbs that begin with one checkpoint of a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from widthwise.recipe.recipe import load_recipe
from widthwise.runs.train import train


@pytest.fixture
def run(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of 3 steps that keeps the checkpoints of 2 and 3."""
    monkeypatch.chdir(recipe.parent)
    train(load_recipe(recipe, ["train.checkpoint_every=1"]), "run")
    return "run"


def test_the_checkpoint_of_a_step_is_taken(run: str, widthwise: Callable) -> None:
    for verb in (
        ("generate", run, "--max-new-tokens", 2),
        ("export", run, "exported"),
        ("grow", run, "--d-ff", 160, "--out", "grown"),
    ):
        code, out, err = widthwise(*verb, "--step", 2, "--json")
        assert code == 0, err
        assert json.loads(out)["step"] == 2
    assert [path.name for path in Path("grown/checkpoints").iterdir()] == ["step_00000002"]
    steps = [json.loads(line)["step"] for line in Path("grown/metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 2


def test_a_step_of_which_nothing_is_kept_is_one_line(run: str, widthwise: Callable) -> None:
    for verb in (("generate", run), ("export", run, "exported"), ("grow", run, "--d-ff", 160, "--out", "grown")):
        code, _, err = widthwise(*verb, "--step", 7)
        assert (code, err.count("\n")) == (2, 1)
        assert "step: got 7; there are checkpoints of: 2, 3" in err
    assert not Path("exported").exists()
    assert not Path("grown").exists()
