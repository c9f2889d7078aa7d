"""The papers' tables."""

import math
from pathlib import Path

import pytest

from widthwise.config_io import UserError
from widthwise.evaluation.paper_tasks import SUITES, Suite, SuitePlan, is_share, missing_parts, plan_suite
from widthwise.records.evaluation import Score, Scores, SuiteAnswers

VARIABLE_WIDTH, HOURGLASS = SUITES["variable-width"], SUITES["hourglass"]

ROW_OF_2B = {"ARC-C": 33.0, "ARC-E": 59.5, "BoolQ": 59.4, "COPA": 76.0, "HellaSwag": 55.9, "LAMBADA": 55.4,
             "OBQA": 33.8, "PIQA": 73.3, "RACE": 34.3, "SciQ": 79.5, "WinoGrande": 57.0}  # fmt: skip
"""Table 3 of arXiv:2606.18246, constant width; the average is printed as 56.1."""


def _harness(accuracies: dict[str, float]) -> dict:
    results: dict = {}
    for task in VARIABLE_WIDTH.tasks:
        assert task.lm_eval is not None
        value = accuracies.get(task.name, 8.18)
        results.setdefault(task.lm_eval, {})[task.metric] = Score(value=value, stderr=0.1)
    return results


def _answers(
    suite: Suite, local: dict[str, Scores], harness: dict[str, Scores], texts: dict[str, Scores] | None = None
) -> SuiteAnswers:
    texts = texts or {}
    return SuitePlan(suite, [], [], {name: name for name in texts}, []).answers(local, harness, texts)


def test_a_row_of_the_paper_has_the_average_it_prints() -> None:
    table = _answers(VARIABLE_WIDTH, {}, _harness(ROW_OF_2B))
    average = table.average
    assert round(average.value or 0, 1) == 56.1
    assert average.stderr == pytest.approx(0.1 / math.sqrt(11))
    assert (average.n_tasks, average.missing) == (11, [])
    shown = {row.name: row.value for row in table.rows}
    assert {name: shown[name] for name in ROW_OF_2B} == ROW_OF_2B
    assert shown["LAMBADA perplexity"] == 8.18


def test_a_file_goes_before_the_harness_and_an_average_names_what_it_lacks() -> None:
    results = _harness(ROW_OF_2B)
    del results["race"]
    local = {"piqa": {"acc": Score(value=0.5, stderr=0.2), "acc_norm": Score(value=0.6, stderr=0.3)}}
    table = _answers(VARIABLE_WIDTH, local, results)
    rows = {row.name: row for row in table.rows}
    assert (rows["PIQA"].value, rows["PIQA"].stderr, rows["PIQA"].source) == (0.6, 0.3, "piqa.jsonl")
    assert (rows["RACE"].value, rows["RACE"].source) == (None, "not evaluated")
    average = table.average
    assert (average.n_tasks, average.n_tasks_of_suite, average.missing) == (10, 11, ["RACE"])
    others = [value for name, value in ROW_OF_2B.items() if name not in ("RACE", "PIQA")]
    assert average.value == pytest.approx((sum(others) + 0.6) / 10)
    assert _answers(VARIABLE_WIDTH, {}, {}).average is None


def test_losses_and_perplexities_of_texts_are_rows_of_a_table() -> None:
    text = {
        "nats_per_token": Score(value=3.5),
        "token_perplexity": Score(value=35.0),
        "bits_per_byte": Score(value=1.0),
    }
    texts = dict.fromkeys(HOURGLASS.texts.values(), text)
    rows = {row.name: row for row in _answers(HOURGLASS, {}, {}, texts).rows}
    assert (rows["Val Loss"].value, rows["Val PPL"].value) == pytest.approx((3.5, 35))
    texts.popitem()
    rows = {row.name: row for row in _answers(HOURGLASS, {}, {}, texts).rows}
    assert (rows["Val PPL"].value, rows["Val PPL"].source) == (None, "not evaluated")


def test_whatever_is_missing_of_a_suite_is_named_with_its_reason() -> None:
    texts = list(HOURGLASS.texts.values())
    missing = dict(missing_parts(HOURGLASS, None, texts[:-1], []))
    assert missing.keys() == {"CommonsenseQA", "TriviaQA (PPL)", "NaturalQS (PPL)", "WikiText"}
    assert missing["WikiText"] == "no text wikitext_103"
    files = ["piqa", "trivia_qa_wiki_ppl"]
    missing = dict(missing_parts(HOURGLASS, files, texts, ["sciq"]))
    assert missing.keys() == {"Arc Easy", "HellaSwag", "CommonsenseQA", "NaturalQS (PPL)"}
    assert missing["Arc Easy"] == "no arc_easy.jsonl and --tasks arc_easy is not asked for"
    assert not list(missing_parts(VARIABLE_WIDTH, None, [], []))


def test_collections_have_as_many_tasks_as_the_paper_lists_and_average_all() -> None:
    for name, n_tasks in {"virtual-width-a": 16, "virtual-width-b": 13}.items():
        suite = SUITES[name]
        averaged = {task.name for task in suite.tasks if is_share(task.metric)}
        assert len(averaged) == len(suite.tasks) == n_tasks
        assert all(task.absence for task in suite.tasks if task.lm_eval is None)
    with pytest.raises(UserError, match="suite: got 'hourglas'; did you mean 'hourglass'"):
        plan_suite("hourglas", None, [], [], None, False)


def test_every_task_of_a_suite_is_one_the_harness_has() -> None:
    tasks = Path(pytest.importorskip("lm_eval.tasks").__file__).parent
    # Reading all of its thousands of files, as the harness does, takes a minute.
    of_names = {"arc_challenge": "arc", "arc_easy": "arc", "boolq": "super_glue", "copa": "super_glue"}
    of_names |= {"ceval-valid": "ceval", "gpqa_main_zeroshot": "gpqa"}
    for name in {task.lm_eval for suite in SUITES.values() for task in suite.tasks if task.lm_eval is not None}:
        folder = tasks / of_names.get(name, name.removesuffix("_openai"))
        lines = {line for path in folder.rglob("*.yaml") for line in path.read_text().splitlines()}
        assert lines & {f"task: {name}", f"group: {name}"}, name
