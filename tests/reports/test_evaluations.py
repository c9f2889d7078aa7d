"""Evaluations of runs' checkpoints: curves over tokens, newest scores, and differences item by item."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_comparison import write_run
from page_section import labels, rows_of, run_page

from widthwise.evaluation.differences import paired_answers
from widthwise.records.evaluation import ItemAnswers
from widthwise.reports.evaluations import difference_table
from widthwise.reports.formats import MINUS, MISSING

ONE, TWO = [1, 0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 0, 1, 1]


def with_evaluations(folder: Path, *evaluations: dict[str, Any]) -> Path:
    write_run(folder, folder.name, 3, [63], 0.0)
    (folder / "evaluations").mkdir()
    for i, each in enumerate(evaluations):
        asked = {"tokens": 100 * each["step"], "request": {}, "max_length": 17, "stride": 17, "precision": "fp32"}
        file = folder / f"evaluations/step_{each['step']:08d}-{i}.json"
        file.write_text(json.dumps(asked | each))
    return folder


def evaluation(step: int, bits: float, acc: float | None = None, stride: int = 17, items: str = "f1") -> dict[str, Any]:
    counts = dict.fromkeys(("n_documents", "n_blocks", "n_tokens", "n_bytes", "n_characters", "n_words"), 10)
    text = {"metrics": {"bits_per_byte": {"value": bits, "stderr": 0.5}}, "fingerprint": "t", "blocks": {}} | counts
    task = {"metrics": {"acc": {"value": acc, "stderr": None}}, "fingerprint": items, "n_items": 4}
    tasks = {} if acc is None else {"piqa": task}
    return {"step": step, "stride": stride, "texts": {"book": text}, "tasks": tasks}


def with_error(value: str, error: str) -> str:
    return f'{value}<small class="whole">± {error}</small>'


def curves(page: Path) -> list[str]:
    return [label for label in labels(page.read_text()) if "over tokens" in label]


def test_runs_share_a_figure_for_each_text_and_task(tmp_path: Path) -> None:
    one = with_evaluations(tmp_path / "one", evaluation(20, 3.0, 0.25), evaluation(10, 4.0, 0.5))
    two = with_evaluations(tmp_path / "two", evaluation(10, 4.5), evaluation(20, 2.5))
    page = run_page([one, two], tmp_path)
    assert curves(page) == [
        "bits_per_byte of book over tokens. Last mean value of each line: one 3; two 2.50.",
        "acc of piqa over tokens. Last mean value of each line: one 0.25.",
    ]
    rows = re.findall(r'<th scope="row">one</th><td>(\d+)</td><td>([\d.]+k)</td><td>(.*?)</td></tr>', page.read_text())
    bits = [("10", "1.00k", with_error("4.0000", "0.5000")), ("20", "2.00k", with_error("3.0000", "0.5000"))]
    assert rows == [*bits, ("10", "1.00k", "50.00%"), ("20", "2.00k", "25.00%")]


def test_only_what_was_asked_alike_is_joined(tmp_path: Path) -> None:
    asked = [evaluation(step, 4.0, 0.5, stride=stride) for stride in (17, 3) for step in (10, 20)]
    run = with_evaluations(tmp_path / "run", *asked, evaluation(30, 4.0, 0.5, items="f2", stride=5))
    assert [label.partition(" over")[0] for label in curves(run_page(run))] == [
        "bits_per_byte of book (stride 17)",
        "acc of piqa",
        "bits_per_byte of book (stride 3)",
    ]


def test_the_newest_scores_are_shown_side_by_side(tmp_path: Path) -> None:
    one = with_evaluations(tmp_path / "one", evaluation(20, 3.0, 0.25), evaluation(10, 4.0, 0.5))
    two = with_evaluations(tmp_path / "two", evaluation(10, 4.5))
    newest = rows_of(run_page([one, two], tmp_path).read_text(), "The newest checkpoint")
    assert newest["book"] == ["bits_per_byte", with_error("3.0000", "0.5000"), with_error("4.5000", "0.5000")]
    assert newest["piqa"] == ["acc", "25.00%", MISSING]


def test_differences_have_their_interval_and_the_items_that_changed() -> None:
    one, two = (ItemAnswers(fingerprint="f", items={"acc": right}) for right in (ONE, TWO))
    (row,) = difference_table("two", "one", paired_answers("animals", one, two)).rows
    difference = np.subtract(TWO, ONE)
    ends = [difference.mean() + sign * 2.446912 * difference.std(ddof=1) / math.sqrt(7) for sign in (-1, 1)]
    assert row[:2] == ["animals", "acc"]
    found = [float(end.replace(MINUS, "-").rstrip("%")) / 100 for end in row[3].split(" to ")]
    assert found == pytest.approx(ends, abs=1e-4)
    p_value = 2 * (1 + 4) / 2**4  # one of four or fewer, on either side
    assert row[4:] == ["3", "1", f"{p_value:.3f}"]
