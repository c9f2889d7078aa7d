"""Questions made from held-out text, and what models answered as numbers of an item."""

import json
from pathlib import Path

import pytest

from widthwise.evaluation.local_tasks import load_task
from widthwise.experiments.papers.evaluating import MODELS, Evaluating, MeasuredAnswers
from widthwise.experiments.papers.item import read_item
from widthwise.experiments.papers.questions import write_questions
from widthwise.experiments.statistics import seed_interval
from widthwise.records.evaluation import EvaluationTable, TableCell, TableColumn, TableRow
from widthwise.training.observer import Silence

TEXTS = [
    "\n".join(f"line {i} of text{name} has words of text{name} again" for i in range(15)).replace("text", "document")
    for name in "abcdefg"
]
"""Every line names its document twice, so that the next word has often occurred before."""


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_question_has_the_line_that_follows_and_three_of_other_texts_or_a_word_that_occurred_before(
    tmp_path: Path,
) -> None:
    continuations, last_words = write_questions(TEXTS, 5, tmp_path)
    found = rows(continuations)
    assert len(found) == 5
    for text, question in zip(TEXTS, found):
        passage = question["query"] + "\n" + question["choices"][question["gold"]]
        assert passage in text
        wrong = [choice for i, choice in enumerate(question["choices"]) if i != question["gold"]]
        assert len(set(wrong)) == 3
        assert not any(choice in text for choice in wrong)
    assert [question["gold"] for question in found] == [0, 1, 2, 3, 0]

    for text, question in zip(TEXTS, rows(last_words)):
        context, word = question["context"], question["continuation"]
        assert f"{context} {word}" in " ".join(text.split())
        assert word in context.split()
    assert [len(load_task(file).items) for file in tmp_path.glob("*.jsonl")] == [5, 5]


def test_numbers_are_means_over_the_seeds_of_a_variant() -> None:
    columns = [
        TableColumn(name="continuations", metric="acc_norm", is_share=True, source="file"),
        TableColumn(name="last_words", metric="perplexity", is_share=False, source="file"),
    ]
    values = {"x-0.75-seed1": (0.5, 8.0), "x-0.75-seed2": (0.75, 9.0), "uniform-seed1": (0.25, None)}
    rows = [
        TableRow(name=name, run=name, cells=[TableCell(value=each) for each in own]) for name, own in values.items()
    ]
    about = {"title": "t", "command": "c", "created": "now", "significance": 0.05}
    found = MeasuredAnswers(EvaluationTable(**about, columns=columns, rows=rows))
    assert found.value("x-0.75", "continuation_accuracy") == seed_interval([50, 75])
    assert found.value("x-0.75", "last_word_perplexity") == seed_interval([8, 9])
    assert found.value("uniform", "last_word_perplexity") is None
    assert found.value("uniform", "mean_accuracy") is None
    assert found.value("hourglass", "continuation_accuracy") is None
    assert found.n_seeds == 1


@pytest.mark.hard
def test_models_of_a_seed_are_compared_with_the_baseline_of_that_seed(tmp_path: Path) -> None:
    experiment = read_item("variable_width_table_3").small
    assert isinstance(experiment, Evaluating)
    folders = experiment.tiny.run(tmp_path, Silence(), 1)
    assert folders == [tmp_path / MODELS, tmp_path]
    pairs = {row.name: row.baseline for row in EvaluationTable.read(tmp_path).rows}
    x = "x-0.75-0.3"
    expected = {f"{x}-seed1": "uniform-seed1", f"{x}-seed2": "uniform-seed2"}
    assert pairs == {"uniform-seed1": None, "uniform-seed2": None} | expected
    found = experiment.tiny.measured(tmp_path)
    assert found is not None
    for quantity in ("continuation_accuracy", "last_word_accuracy", "last_word_perplexity", "held_out_perplexity"):
        assert found.value(x, quantity) is not None
