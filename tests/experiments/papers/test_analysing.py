"""What is found inside trained models: means over parts of the network, paired by seed."""

import json
from pathlib import Path

import numpy as np
import pytest

from widthwise.bundled import recipe_path
from widthwise.config_io import parse
from widthwise.experiments.papers.analysing import INSIDE, MODELS, Analysing, MeasuredInside
from widthwise.experiments.papers.item import read_items
from widthwise.experiments.papers.lines import item_record
from widthwise.experiments.plan import read_plan
from widthwise.experiments.statistics import seed_interval
from widthwise.experiments.sweep.plan import read_sweep
from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.training.observer import Silence

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
FOLDER = RESULTS / "sweep_shapes_analysis"
ITEMS = {name: item for name, item in read_items().items() if isinstance(item.small, Analysing)}
SEEDS = (1, 2, 3)
X = "x-0.75-0.3"


def models() -> dict[str, dict]:
    """The analysed models as the file has them, by name; each has eight layers."""
    return {model["name"]: model for model in json.loads((FOLDER / "analysis.json").read_text())["models"]}


def numbered(model: AnalysedModel) -> AnalysedModel:
    """With the number of its layer or depth in place of all that was measured there."""
    return model.with_changes(
        activations=[each.with_changes(participation=float(each.layer)) for each in model.activations],
        stream=[each.with_changes(entropy=float(each.depth)) for each in model.stream],
        logit_lens=[
            each.with_changes(entropy=float(each.depth), target_log_prob=float(each.depth), kl_to_next=each.depth + 0.0)
            for each in model.logit_lens
        ],
    )


@pytest.mark.parametrize(
    ("quantity", "layers"),
    [
        ("participation_ratio_in_the_middle", [3, 4, 5, 6]),
        ("matrix_entropy_from_the_middle_on", [4, 5, 6, 7, 8]),
        ("target_log_probability_up_to_the_last_quarter", [1, 2, 3, 4, 5, 6]),
        ("divergence_from_the_next_prediction_in_the_middle", [2, 3, 4, 5, 6]),
    ],
)
def test_a_part_of_the_network_has_the_layers_between_its_ends(quantity, layers):
    analysis = Analysis.read(FOLDER)
    assert INSIDE[quantity](numbered(analysis.models[0]), analysis) == pytest.approx(np.mean(layers))


def test_the_entropy_falls_from_three_quarters_of_the_depth_to_its_end():
    analysis = Analysis.read(FOLDER)
    assert INSIDE["fall_of_that_entropy_in_the_last_quarter"](numbered(analysis.models[0]), analysis) == 6 - 8


def test_a_difference_is_paired_by_seed():
    found, by_name = MeasuredInside(Analysis.read(FOLDER)), models()

    def density(model: dict) -> float:
        return float(np.mean([units["density"][6] for units in model["activations"]]))  # beyond 0.1

    differences = [density(by_name[f"{X}-seed{seed}"]) - density(by_name[f"uniform-seed{seed}"]) for seed in SEEDS]
    measured, expected = found.difference(X, "uniform", "density_beyond_0.1"), seed_interval(differences)
    assert measured is not None
    assert (measured.mean, measured.low, measured.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert measured.per_seed == pytest.approx(differences)


def test_the_spread_is_that_of_units_around_their_mean():
    analysis = Analysis.read(FOLDER)
    model = analysis.models[0]
    spreads = [np.std(units.utilisation) / np.mean(units.utilisation) for units in model.activations]
    assert INSIDE["spread_of_utilisation"](model, analysis) == pytest.approx(np.mean(spreads))


def test_only_seeds_of_all_models_count():
    analysis = Analysis.read(FOLDER)
    found = MeasuredInside(
        analysis.with_changes(models=[each for each in analysis.models if each.name != f"{X}-seed2"])
    )
    assert found.n_seeds == 2
    assert found.value("uniform", "compression_valley") == seed_interval([0.0, 0.0])


def test_what_was_not_measured_is_not_known():
    found = MeasuredInside(Analysis.read(FOLDER))
    assert found.value("diamond", "density_beyond_0.1") is None
    assert found.value(X, "val_loss") is None
    assert found.difference(X, "diamond", "density_beyond_0.1") is None


@pytest.mark.parametrize("name", ITEMS)
def test_every_number_of_the_figures_was_measured_and_compared_with_what_they_show(name):
    record = item_record(name, ITEMS[name], RESULTS)
    assert all(line.measured is not None for line in record.lines)
    means = {(line.row, line.quantity): line.measured.mean for line in record.lines if not line.is_difference}
    for line in record.lines:
        if line.is_difference:
            assert line.measured.mean == pytest.approx(means["x", line.quantity] - means["uniform", line.quantity])
            higher, lower = line.measured.low > 0, line.measured.high < 0
            as_printed, opposite = (higher, lower) if line.printed == "higher" else (lower, higher)
            assert line.reproduces == ("yes" if as_printed else "no" if opposite else "cannot tell")


def test_the_models_are_trained_and_analysed(tmp_path):
    overrides = [
        "data.corpus=synthetic",
        "data.tokenizer=bytes",
        "model.vocab_size=257",
        "model.n_layers=5",
        "seq_len=17",
    ]
    experiment = parse(Analysing, {"recipe": "variable_width_inside", "overrides": overrides}, "item").tiny
    assert experiment.measured(tmp_path) is None
    experiment.run(tmp_path, Silence(), n_jobs=1)
    assert {path.name for path in (tmp_path / MODELS / "runs").iterdir()} == {
        f"{name}-seed{seed}" for name in (X, "uniform") for seed in (1, 2)
    }
    found = experiment.measured(tmp_path)
    assert found is not None
    assert found.n_seeds == 2
    known = {quantity for quantity in INSIDE if not quantity.startswith("spread")}  # no unit need be active so early
    assert all(found.value(name, quantity) is not None for name in (X, "uniform") for quantity in known)


def test_the_models_looked_into_are_those_of_the_sweep():
    of_sweep = read_sweep(recipe_path("sweep_shapes")).grid
    of_figures = read_plan(recipe_path("variable_width_inside")).recipes
    assert of_figures == {name: of_sweep[name].recipe for name in ("uniform", X)}
