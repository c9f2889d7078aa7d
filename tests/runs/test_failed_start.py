"""A start that fails leaves no folder behind, and one that stood before as it was."""

from pathlib import Path

from boxes import refusal
from tiny_runs import TINY

from widthwise.config_io import parse
from widthwise.experiments.compare import read_plan
from widthwise.experiments.running import run_experiment
from widthwise.recipe.recipe import Recipe
from widthwise.runs.train import train
from widthwise.yaml_io import dump_yaml

MODEL = {"vocab_size": 257, "d_model": 32, "n_layers": 2, "attention": {"head_dim": 8}}
TRAIN = {"steps": 2, "batch_size": 4, "precision": "fp32", "validation_tokens": 240}
MISTAKES = {
    "no data": {"data": {"path": "nowhere"}},
    "a model that does not know all tokens": {"model": {**MODEL, "vocab_size": 100}},
    "a mistake that only the built model shows": {"optimizer": {**TINY["optimizer"], "lr_factors": {"nothing": 2.0}}},
}


def failed(mistake: str, path: Path) -> None:
    refusal(train, parse(Recipe, {**TINY, "model": MODEL, "train": TRAIN, **MISTAKES[mistake]}), path)


def test_a_run_that_cannot_begin_leaves_nothing_and_what_stood_there_before(tmp_path: Path) -> None:
    for mistake in MISTAKES:
        failed(mistake, tmp_path / "runs" / "new" / "run")
        assert list(tmp_path.iterdir()) == [], mistake
    for folder in ("runs", "mine", "noted"):
        (tmp_path / folder).mkdir()
    (tmp_path / "noted" / "note.txt").write_text("mine")
    for path in ("runs/run", "mine", "noted"):
        failed("no data", tmp_path / path)
    assert list((tmp_path / "runs").iterdir()) == []
    assert (tmp_path / "mine").is_dir()
    assert (tmp_path / "noted" / "note.txt").read_text() == "mine"


def test_a_comparison_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    for name, width in (("a", 32), ("b", 48)):
        model = {**MODEL, "d_model": width}
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump_yaml({**TINY, "model": model, "train": TRAIN, **MISTAKES["no data"]}))
    plan = read_plan([tmp_path / "a.yaml", tmp_path / "b.yaml"], [], (1,), "none", None)
    refusal(run_experiment, plan, tmp_path / "runs" / "both")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "b.yaml"]
