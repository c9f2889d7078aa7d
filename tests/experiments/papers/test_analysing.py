"""What is found inside trained models: means over parts of the network, paired by seed."""

import json
from pathlib import Path

import numpy as np
import pytest

from widthwise.config_io import parse
from widthwise.experiments.papers.analysing import INSIDE, MODELS, Analysing, MeasuredInside
from widthwise.experiments.statistics import seed_interval
from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.training.observer import Silence

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
FOLDER = RESULTS / "sweep_shapes_analysis"
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


def test_a_part_of_the_network_has_the_layers_between_its_ends():
    analysis = Analysis.read(FOLDER)
    expected = {
        "participation_ratio_in_the_middle": np.mean([3, 4, 5, 6]),
        "matrix_entropy_from_the_middle_on": np.mean([4, 5, 6, 7, 8]),
        "target_log_probability_up_to_the_last_quarter": np.mean([1, 2, 3, 4, 5, 6]),
        "divergence_from_the_next_prediction_in_the_middle": np.mean([2, 3, 4, 5, 6]),
        "fall_of_that_entropy_in_the_last_quarter": 6 - 8,
    }
    model = numbered(analysis.models[0])
    assert {name: INSIDE[name](model, analysis) for name in expected} == pytest.approx(expected)


def test_a_difference_is_paired_by_seed():
    found, by_name = MeasuredInside(Analysis.read(FOLDER)), models()

    def density(model: dict) -> float:
        return float(np.mean([units["density"][6] for units in model["activations"]]))  # beyond 0.1

    differences = [density(by_name[f"{X}-seed{seed}"]) - density(by_name[f"uniform-seed{seed}"]) for seed in SEEDS]
    measured, expected = found.difference(X, "uniform", "density_beyond_0.1"), seed_interval(differences)
    assert measured is not None
    assert (measured.mean, measured.low, measured.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert measured.per_seed == pytest.approx(differences)


def test_the_models_are_trained_and_analysed(tmp_path):
    overrides = ["data={corpus: synthetic, tokenizer: bytes}", "model.vocab_size=257", "model.n_layers=5", "seq_len=17"]
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
