"""The papers' tables."""

from pathlib import Path

import pytest

from widthwise.config_io import UserError
from widthwise.evaluation.paper_tasks import SUITES, suite_named, suite_table

ROW_OF_2B = {"ARC-C": 33.0, "ARC-E": 59.5, "BoolQ": 59.4, "COPA": 76.0, "HellaSwag": 55.9, "LAMBADA": 55.4,
             "OBQA": 33.8, "PIQA": 73.3, "RACE": 34.3, "SciQ": 79.5, "WinoGrande": 57.0}  # fmt: skip
"""Table 3 of arXiv:2606.18246, constant width; the average is printed as 56.1."""


def _harness(accuracies: dict[str, float]) -> dict:
    results: dict = {}
    for task in SUITES["variable-width"]:
        assert task.lm_eval is not None
        value = accuracies.get(task.name, 8.18)
        results.setdefault(task.lm_eval, {})[task.metric] = {"value": value, "stderr": 0.1}
    return results


def test_a_row_of_the_paper_has_the_average_it_prints() -> None:
    table = suite_table(SUITES["variable-width"], {}, _harness(ROW_OF_2B))
    assert round(table["average_accuracy"], 1) == 56.1
    shown = {row["name"]: row["value"] for row in table["rows"]}
    assert {name: shown[name] for name in ROW_OF_2B} == ROW_OF_2B
    assert shown["LAMBADA perplexity"] == 8.18


def test_a_file_goes_before_the_harness_and_what_is_missing_is_shown_without_an_average() -> None:
    results = _harness(ROW_OF_2B)
    del results["race"]
    local = {"piqa": {"acc": {"value": 0.5, "stderr": 0.2}, "acc_norm": {"value": 0.6, "stderr": 0.3}}}
    table = suite_table(SUITES["variable-width"], local, results)
    rows = {row["name"]: row for row in table["rows"]}
    assert (rows["PIQA"]["value"], rows["PIQA"]["stderr"], rows["PIQA"]["source"]) == (0.6, 0.3, "piqa.jsonl")
    assert (rows["RACE"]["value"], rows["RACE"]["source"]) == (None, "not evaluated")
    assert table["average_accuracy"] is None


def test_every_task_of_a_suite_is_one_the_harness_has() -> None:
    tasks = Path(pytest.importorskip("lm_eval.tasks").__file__).parent
    # Reading all of its thousands of files, as the harness does, takes a minute.
    of_names = {"arc_challenge": "arc", "arc_easy": "arc", "boolq": "super_glue", "copa": "super_glue"}
    for name in {task.lm_eval for suite in SUITES.values() for task in suite if task.lm_eval is not None}:
        folder = tasks / of_names.get(name, name.removesuffix("_openai"))
        assert any(f"task: {name}" in path.read_text().splitlines() for path in folder.rglob("*.yaml")), name


def test_an_unknown_suite_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="suite: got 'hourglas'; did you mean 'hourglass'"):
        suite_named("hourglas")
