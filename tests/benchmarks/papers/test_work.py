"""Models of an item are trained, then analysed or asked, and their numbers are found again."""

from pathlib import Path

import pytest
from papers.item import read_item
from papers.work import MODELS

from widthwise.records.evaluation import EvaluationTable
from widthwise.training.observer import SilentObserver

X = "x-0.75-0.3"

pytestmark = pytest.mark.hard


def test_models_of_a_seed_are_compared_with_the_baseline_of_that_seed(tmp_path: Path) -> None:
    experiment = read_item("variable_width_table_3").small
    assert experiment.tiny.run(tmp_path, SilentObserver(), 1) == [tmp_path / MODELS, tmp_path]
    pairs = {row.name: row.baseline for row in EvaluationTable.read(tmp_path).rows}
    expected = {f"{X}-seed1": "uniform-seed1", f"{X}-seed2": "uniform-seed2"}
    assert pairs == {"uniform-seed1": None, "uniform-seed2": None} | expected
    found = experiment.tiny.measured(tmp_path)
    assert all(found.value("x_2b", quantity) is not None for quantity in experiment.read)
