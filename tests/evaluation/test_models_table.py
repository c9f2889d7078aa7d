"""A row for each model and a column for each task: values, pairs, baselines."""

import numpy as np
import pytest
from scipy import stats

from widthwise.evaluation.differences import all_differences, baselines_of, models_table
from widthwise.evaluation.estimate import SampleEstimate
from widthwise.mistakes import UserError
from widthwise.records.evaluation import Evaluation

RIGHT = {"uniform": "0001110001", "x": "1111110111", "moe": "0000000001"}
NATS = {"uniform": [3.0, 2.0, 2.5, 4.0], "x": [2.5, 1.75, 2.5, 3.0], "moe": [3.5, 2.5, 3.5, 4.0]}


def evaluation(name: str) -> Evaluation:
    """An evaluation on a local task with accuracies, and on one of the harness with a perplexity from `nats`."""
    acc = [float(item) for item in RIGHT[name]]
    metrics = {"acc": score(sum(acc) / 10), "acc_norm": score(sum(acc) / 10), "bits_per_byte": score(2.0)}
    arc = {"n_items": 10, "metrics": metrics, "fingerprint": "a", "items": {"acc": acc, "acc_norm": acc}}
    harness = {"lm_eval": {"lambada": {"perplexity": score(9.5), "acc": score(0.5)}}}
    harness["lm_eval_items"] = {"lambada": {"fingerprint": "l", "items": {"nats": NATS[name]}}}
    about = {"run": f"runs/{name}", "step": 7, "tokenizer": "bytes"}
    about |= {"request": {}, "max_length": 17, "stride": 17, "precision": "fp32"}
    return Evaluation.model_validate({**about, "tasks": {"arc": arc}, **harness})


def score(value: float | None) -> dict:
    return {"value": value, "stderr": None}


def rows_of(names: list[str], asked: dict[str, str]):
    evaluations = [evaluation(name) for name in names]
    beside = baselines_of([each.run for each in evaluations], asked)
    return models_table(evaluations, all_differences(evaluations, beside, by_step=False), "command")


def test_p_is_that_of_the_exact_sign_test_of_items_that_flipped_and_of_the_pairs_of_a_loss() -> None:
    """x has five items right that uniform has not, and none the other way round."""
    table = rows_of(["uniform", "x"], {})
    columns = [("arc", "acc_norm"), ("lambada", "acc"), ("lambada", "perplexity")]
    assert [(column.name, column.metric) for column in table.columns] == columns
    baseline, x = table.rows
    assert (baseline.baseline, x.baseline) == (None, "uniform")
    assert (x.cells[0].p_value, x.cells[0].is_better) == (pytest.approx(stats.binomtest(5, 5).pvalue), True)
    assert x.cells[0].difference == pytest.approx(0.5)
    flipped = [float(after) - float(before) for after, before in zip(RIGHT["x"], RIGHT["uniform"])]
    ends = stats.ttest_1samp(flipped, 0).confidence_interval()
    assert (x.cells[0].low, x.cells[0].high) == pytest.approx((ends.low, ends.high))
    assert baseline.cells[0].p_value is None
    cell = x.cells[2]
    expected = stats.ttest_rel(NATS["x"], NATS["uniform"]).pvalue
    assert (cell.value, cell.p_value, cell.is_better) == (9.5, pytest.approx(expected), True)
    assert x.cells[1].p_value is None  # no pairs of its accuracy are known


def test_every_model_is_compared_with_its_own_baseline() -> None:
    assert [row.baseline for row in rows_of(["uniform", "x", "moe"], {"moe": "x"}).rows] == [None, None, "x"]
    assert baselines_of(["a/u", "a/x", "b/m", "b/y"], {"y": "m"}) == {"a/x": "a/u", "b/y": "b/m"}
    assert baselines_of(["a/x", "a/u", "a/y"], {"x": "u"}) == {"a/x": "a/u", "a/y": "a/u"}
    assert baselines_of(["a/u"], {}) == {}
    for asked, message in (
        ({"z": "u"}, r"--baseline: got 'z'; allowed: a/u, a/x"),
        ({"x": "u", "u": "x"}, "as a baseline, but it has a baseline itself"),
    ):
        with pytest.raises(UserError, match=message):
            baselines_of(["a/u", "a/x"], asked)


def test_nothing_is_tested_where_nothing_differs() -> None:
    assert np.isnan(SampleEstimate(0.0, 0.0, 5).p_value())
