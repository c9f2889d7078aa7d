"""Numbers in records of experiments: means over parts of a network and over seeds, differences paired by seed."""

import json
from pathlib import Path

import numpy as np
import pytest
from papers.item import read_item, read_items
from papers.numbers import OF_ANALYSED
from papers.work import MODELS, AnalysisWork, EvaluationWork

from widthwise.analysis.profile import ProfileOptions
from widthwise.config_io import parse
from widthwise.evaluation.estimate import seed_interval
from widthwise.records.analysis import Analysis
from widthwise.records.evaluation import EvaluationTable, TableCell, TableColumn, TableRow
from widthwise.training.observer import SilentObserver

FOLDER = Path(__file__).parents[3] / "benchmarks" / "results" / "sweep_shapes_analysis"
SEEDS = (1, 2, 3)
X = "x-0.75-0.3"


def analysis_of(name: str) -> AnalysisWork:
    """The analysis of an item of the variable-width paper."""
    return read_item(f"variable_width_{name}").small


def test_a_part_of_the_network_has_the_layers_between_its_ends():
    """The number of each layer, or of its depth, is in place of all that was measured there."""
    analysis = Analysis.read(FOLDER)
    model = analysis.models[0]  # of eight layers
    lens = ("entropy", "target_log_prob", "kl_to_next")
    model = model.with_changes(
        activations=[units.with_changes(participation=float(units.layer)) for units in model.activations],
        stream=[state.with_changes(entropy=float(state.depth)) for state in model.stream],
        logit_lens=[point.with_changes(**dict.fromkeys(lens, float(point.depth))) for point in model.logit_lens],
    )
    read = {name: place for number in (7, 8, 9) for name, place in analysis_of(f"figure_{number}").read.items()}
    expected = {
        "participation_ratio_in_the_middle": np.mean([3, 4, 5, 6]),
        "matrix_entropy_from_the_middle_on": np.mean([4, 5, 6, 7, 8]),
        "target_log_probability_up_to_the_last_quarter": np.mean([1, 2, 3, 4, 5, 6]),
        "divergence_from_the_next_prediction_in_the_middle": np.mean([2, 3, 4, 5, 6]),
        "fall_of_that_entropy_in_the_last_quarter": 6 - 8,
    }
    assert {name: read[name].read(model, analysis.thresholds) for name in expected} == pytest.approx(expected)


def test_a_difference_of_models_is_paired_by_seed():
    found = analysis_of("figure_6").numbers(Analysis.read(FOLDER))
    by_name = {model["name"]: model for model in json.loads((FOLDER / "analysis.json").read_text())["models"]}

    def density(model: dict) -> float:
        return float(np.mean([units["density"][6] for units in model["activations"]]))  # beyond 0.1

    differences = [density(by_name[f"{X}-seed{seed}"]) - density(by_name[f"uniform-seed{seed}"]) for seed in SEEDS]
    measured, expected = found.difference(X, "uniform", "density_beyond_0.1"), seed_interval(differences)
    assert (measured.mean, measured.low, measured.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert measured.per_seed == pytest.approx(differences)


def test_answers_are_means_over_the_seeds_that_all_variants_have():
    columns = [
        TableColumn(name="continuations", metric="acc_norm", is_share=True, source="file"),
        TableColumn(name="last_words", metric="perplexity", is_share=False, source="file"),
    ]
    x, uniform = [(0.5, 8.0), (0.75, 9.0)], [(0.25, None), (0.5, 7.0), (1.0, 6.0)]
    rows = [
        TableRow(name=f"{name}-seed{seed}", run=name, cells=[TableCell(value=value) for value in values])
        for name, by_seed in (("x-0.75", x), ("uniform", uniform))
        for seed, values in enumerate(by_seed, 1)
    ]
    about = {"title": "t", "command": "c", "created": "now", "significance": 0.05}
    read = {
        "accuracy": {"column": "continuations", "metric": "acc_norm", "times": 100.0},
        "perplexity": {"column": "last_words", "metric": "perplexity"},
        "lost": {"column": "last_words", "metric": "acc"},
    }
    work = parse(EvaluationWork, {"recipe": "variable_width_inside", "read": read}, "item")
    found = work.numbers(EvaluationTable(**about, columns=columns, rows=rows))
    assert found.value("x-0.75", "accuracy") == seed_interval([50, 75])
    assert found.value("x-0.75", "perplexity") == seed_interval([8, 9])
    assert found.value("uniform", "accuracy") == seed_interval([25, 50])  # of the seeds that both have
    assert found.value("uniform", "perplexity") is None
    assert found.value("x-0.75", "lost") is None
    assert found.value("hourglass", "accuracy") is None
    assert found.n_seeds == 2


def test_every_place_that_an_item_names_is_in_the_records():
    model = Analysis.read(FOLDER).models[0]
    table = EvaluationTable.read(FOLDER.with_name("variable_width_table_3_small"))
    columns = {(column.name, column.metric) for column in table.columns}
    works = [item.small for item in read_items().values()]
    for place in (place for work in works if isinstance(work, AnalysisWork) for place in work.read.values()):
        of_model = place.of == "model"
        assert place.value in OF_ANALYSED if of_model else hasattr(getattr(model, place.of)[0], place.value)
        assert place.beyond in (ProfileOptions().thresholds if place.value == "density" else [None])
    for place in (place for work in works if isinstance(work, EvaluationWork) for place in work.read.values()):
        assert (place.column, place.metric) in columns


@pytest.mark.hard
def test_models_of_a_seed_are_compared_with_the_baseline_of_that_seed(tmp_path: Path) -> None:
    """Models of an item are trained and asked, and their numbers are found again."""
    experiment = read_item("variable_width_table_3").small
    assert experiment.tiny.run(tmp_path, SilentObserver(), 1) == [tmp_path / MODELS, tmp_path]
    pairs = {row.name: row.baseline for row in EvaluationTable.read(tmp_path).rows}
    expected = {f"{X}-seed1": "uniform-seed1", f"{X}-seed2": "uniform-seed2"}
    assert pairs == {"uniform-seed1": None, "uniform-seed2": None} | expected
    found = experiment.tiny.measured(tmp_path)
    assert all(found.value("x_2b", quantity) is not None for quantity in experiment.read)
