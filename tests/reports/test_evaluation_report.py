"""Evaluations: the table of several models, and curves, newest scores and differences of checkpoints of runs."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_comparison import write_run
from page_section import drawn, labels, page_of, rows_of

from widthwise.evaluation.differences import paired_answers
from widthwise.records.evaluation import (
    EvaluationDifferences,
    EvaluationTable,
    ItemAnswers,
    TableCell,
    TableColumn,
    TableRow,
)
from widthwise.reports.evaluation import _difference_figures, answer, csv_text, latex_text, shown
from widthwise.reports.evaluations import difference_table
from widthwise.reports.formats import MINUS, MISSING

ACCURACY = TableColumn(name="ARC_C", metric="acc_norm", is_share=True, source="file", n_items=1172)
PERPLEXITY = TableColumn(name="WikiText", metric="word_perplexity", is_share=False, source="lm-evaluation-harness")


def evaluation_table() -> EvaluationTable:
    better = TableCell(value=0.3441, difference=0.0141, low=0.0022, high=0.026, p_value=0.0312, is_better=True)
    worse = TableCell(value=0.3, difference=-0.03, low=-0.04, high=-0.02, p_value=0.00001, is_better=False)
    lower, unknown = TableCell(value=16.321, difference=-0.639), TableCell(value=None)
    rows = [
        TableRow(name="uniform", run="runs/uniform", cells=[TableCell(value=0.33), TableCell(value=16.96)]),
        TableRow(name="x", run="runs/x", step=70, baseline="uniform", cells=[better, lower]),
        TableRow(name="=<b>", run="runs/y", baseline="uniform", cells=[worse, unknown]),
    ]
    about = {"title": "Evaluation", "command": "widthwise eval runs/uniform runs/x", "created": "now"}
    return EvaluationTable(**about, significance=0.05, columns=[ACCURACY, PERPLEXITY], rows=rows)


def test_the_page_has_a_row_for_each_model_and_says_what_was_tested(tmp_path: Path) -> None:
    at_the_level = TableCell(value=0.5, p_value=0.05, is_better=True)
    assert shown(at_the_level, ACCURACY, significance=0.05) == ("50.0", "p 0.0500")
    evaluation_table().write(tmp_path)
    text = page_of(tmp_path)
    assert '34.4*<small class="whole">+1.4, p 0.0312</small>' in text
    assert f'30.0†<small class="whole">{MINUS}3.0, p &lt; 0.0001</small>' in text
    assert text.index(">uniform<") < text.index(">x<") < text.index(">=&lt;b&gt;<")
    assert rows_of(text, "The models")["x"] == ["70", "uniform", "runs/x"]
    assert "Not tested: WikiText (no pairs of answers)." in text
    assert "<td>1,172</td>" in text  # items


def test_csv_and_latex_have_the_numbers_and_run_nothing() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(evaluation_table()))))
    assert [row["model"] for row in rows] == ["uniform", "x", "'=<b>"]
    assert [row["ARC_C acc_norm"] for row in rows] == ["0.33", "0.3441", "0.3"]
    assert (rows[1]["ARC_C acc_norm p_value"], rows[0]["ARC_C acc_norm p_value"]) == ("0.0312", "")
    assert (rows[1]["baseline"], rows[1]["WikiText word_perplexity difference"]) == ("uniform", "-0.639")
    text = latex_text(evaluation_table())
    assert r"Model & ARC\_C $\uparrow$ & WikiText $\downarrow$ \\" in text
    assert r"x & 34.4{*} & 16.32 \\" in text
    assert r"30.0\dag{} & -- \\" in text


def test_the_figure_has_the_differences_in_percent_coloured_by_the_test() -> None:
    figure, without_intervals = _difference_figures(evaluation_table())
    assert without_intervals is None
    rows = {row["name"]: row for row in drawn(figure.spec()) if "numbers" in row}
    assert {name: row["verdict"] for name, row in rows.items()} == {"=<b>, ARC_C": "worse", "x, ARC_C": "better"}
    assert rows["x, ARC_C"]["numbers"] == "+1.4\n[+0.2, +2.6]"
    assert "right of 0 is better" in str(figure.spec())


def test_the_answer_counts_tested_numbers_over_the_seeds_of_a_model() -> None:
    rows = evaluation_table().rows
    x = rows[1]
    three_lower = f"ARC_C {MINUS}3.00 ({MINUS}4.00 to {MINUS}2.00)"
    both = [rows[0], x.with_changes(name="x-seed1"), x.with_changes(name="x-seed2"), rows[2]]
    better, worse, _ = answer(evaluation_table().with_changes(rows=both))
    assert better.startswith(
        "x is better than uniform on 2 and worse on 0 of 2 tested numbers; smallest p: ARC_C +1.41"
    )
    assert worse.endswith(f"better than uniform on 0 and worse on 1 of 1 tested number; smallest p: {three_lower}.")
    untested = [cell.with_changes(p_value=None) for cell in x.cells]
    short = PERPLEXITY.with_changes(name="my.txt", source="text", n_blocks=5)
    only_x = evaluation_table().with_changes(rows=[rows[0], x.with_changes(cells=untested)], columns=[ACCURACY, short])
    assert answer(only_x) == [
        "x was not compared with uniform.",
        "Not tested: ARC_C (no pairs of answers) and my.txt (too short: 5 blocks, 10 needed).",
    ]
    unclear = [cell.with_changes(p_value=cell.p_value and 0.5) for cell in x.cells]
    sentence, _ = answer(evaluation_table().with_changes(rows=[rows[0], x.with_changes(cells=unclear)]))
    assert sentence.startswith("No clear difference of x from uniform in 1 tested number; smallest p: ARC_C +1.41")
    assert answer(evaluation_table().with_changes(rows=rows[:1])) == []


ONE, TWO = [1, 0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 0, 1, 1]


def with_evaluations(folder: Path, *evaluations: dict[str, Any]) -> Path:
    write_run(folder, folder.name, 3, [63], 0.0)
    (folder / "evaluations").mkdir()
    for i, scores in enumerate(evaluations):
        request = {"tokens": 100 * scores["step"], "request": {}, "max_length": 17, "stride": 17, "precision": "fp32"}
        (folder / f"evaluations/step_{scores['step']:08d}-{i}.json").write_text(json.dumps(request | scores))
    return folder


def evaluation(step: int, bits: float, acc: float | None = None, stride: int = 17, items: str = "f1") -> dict[str, Any]:
    counts = dict.fromkeys(("n_documents", "n_blocks", "n_tokens", "n_bytes", "n_characters", "n_words"), 10)
    text = {"metrics": {"bits_per_byte": {"value": bits, "stderr": 0.5}}, "fingerprint": "t", "blocks": {}} | counts
    task = {"metrics": {"acc": {"value": acc, "stderr": None}}, "fingerprint": items, "n_items": 4}
    tasks = {} if acc is None else {"piqa": task}
    return {"step": step, "stride": stride, "texts": {"book": text}, "tasks": tasks}


def with_error(value: str, error: str) -> str:
    return f'{value}<small class="whole">± {error}</small>'


def curves(page: str) -> list[str]:
    return [label for label in labels(page) if "over tokens" in label]


def test_runs_share_a_figure_for_each_text_and_task(tmp_path: Path) -> None:
    one = with_evaluations(tmp_path / "one", evaluation(20, 3.0, 0.25), evaluation(10, 4.0, 0.5))
    two = with_evaluations(tmp_path / "two", evaluation(10, 4.5), evaluation(20, 2.5))
    page = page_of([one, two], tmp_path)
    assert curves(page) == [
        "bits_per_byte of book over tokens. Last mean value of each line: one 3; two 2.50.",
        "acc of piqa over tokens. Last mean value of each line: one 0.25.",
    ]
    rows = re.findall(r'<th scope="row">one</th><td>(\d+)</td><td>([\d.]+k)</td><td>(.*?)</td></tr>', page)
    bits = [("10", "1.00k", with_error("4.0000", "0.5000")), ("20", "2.00k", with_error("3.0000", "0.5000"))]
    assert rows == [*bits, ("10", "1.00k", "50.00%"), ("20", "2.00k", "25.00%")]


def test_only_what_was_asked_alike_is_joined(tmp_path: Path) -> None:
    asked = [evaluation(step, 4.0, 0.5, stride=stride) for stride in (17, 3) for step in (10, 20)]
    run = with_evaluations(tmp_path / "run", *asked, evaluation(30, 4.0, 0.5, items="f2", stride=5))
    assert [label.partition(" over")[0] for label in curves(page_of(run))] == [
        "bits_per_byte of book (stride 17)",
        "acc of piqa",
        "bits_per_byte of book (stride 3)",
    ]


def test_the_newest_scores_are_shown_side_by_side(tmp_path: Path) -> None:
    one = with_evaluations(tmp_path / "one", evaluation(20, 3.0, 0.25), evaluation(10, 4.0, 0.5))
    two = with_evaluations(tmp_path / "two", evaluation(10, 4.5))
    newest = rows_of(page_of([one, two], tmp_path), "The newest checkpoint")
    assert newest["book"] == ["bits_per_byte", with_error("3.0000", "0.5000"), with_error("4.5000", "0.5000")]
    assert newest["piqa"] == ["acc", "25.00%", MISSING]


def test_differences_have_their_interval_and_the_items_that_changed() -> None:
    one, two = (ItemAnswers(fingerprint="f", items={"acc": right}) for right in (ONE, TWO))
    models = {"run": "two", "step": 7, "baseline": "one", "baseline_step": 7}
    differences = EvaluationDifferences(**models, differences=paired_answers("animals", one, two))
    (row,) = difference_table(differences).rows
    difference = np.subtract(TWO, ONE)
    ends = [difference.mean() + sign * 2.446912 * difference.std(ddof=1) / math.sqrt(7) for sign in (-1, 1)]
    assert row[:2] == ["animals", "acc"]
    found = [float(end.replace(MINUS, "-").rstrip("%")) / 100 for end in row[3].split(" to ")]
    assert found == pytest.approx(ends, abs=1e-4)
    p_value = 2 * (1 + 4) / 2**4  # one of four or fewer, on either side
    assert row[4:] == ["3", "1", f"{p_value:.3f}"]
