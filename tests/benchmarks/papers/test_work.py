"""Models of an item are trained, then analysed or asked, and their numbers are found again."""

from pathlib import Path

import pytest
from papers.item import read_item
from papers.work import MODELS, AnalysisWork

from widthwise.config_io import parse, to_data
from widthwise.records.evaluation import EvaluationTable
from widthwise.training.observer import SilentObserver

X = "x-0.75-0.3"

pytestmark = pytest.mark.hard


def test_models_are_trained_and_analysed(tmp_path: Path) -> None:
    overrides = ["data={corpus: synthetic, tokenizer: bytes}", "model.vocab_size=257", "model.n_layers=5", "seq_len=17"]
    smalls = [read_item(f"variable_width_figure_{number}").small for number in (6, 7, 8, 9)]
    read = {
        name: to_data(each) for small in smalls if isinstance(small, AnalysisWork) for name, each in small.read.items()
    }
    experiment = parse(
        AnalysisWork, {"recipe": "variable_width_inside", "overrides": overrides, "read": read}, "item"
    ).tiny
    assert experiment.measured(tmp_path) is None
    experiment.run(tmp_path, SilentObserver(), n_jobs=1)
    assert {path.name for path in (tmp_path / MODELS / "runs").iterdir()} == {
        f"{name}-seed{seed}" for name in (X, "uniform") for seed in (1, 2)
    }
    found = experiment.measured(tmp_path)
    assert found.n_seeds == 2
    assert all(found.value(name, quantity) is not None for name in (X, "uniform") for quantity in read)


def test_models_of_a_seed_are_compared_with_the_baseline_of_that_seed(tmp_path: Path) -> None:
    experiment = read_item("variable_width_table_3").small
    assert experiment.tiny.run(tmp_path, SilentObserver(), 1) == [tmp_path / MODELS, tmp_path]
    pairs = {row.name: row.baseline for row in EvaluationTable.read(tmp_path).rows}
    expected = {f"{X}-seed1": "uniform-seed1", f"{X}-seed2": "uniform-seed2"}
    assert pairs == {"uniform-seed1": None, "uniform-seed2": None} | expected
    found = experiment.tiny.measured(tmp_path)
    assert all(found.value("x_2b", quantity) is not None for quantity in experiment.read)
