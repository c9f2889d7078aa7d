"""Evaluations of runs' checkpoints: curves over tokens, and differences item by item between two runs."""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_comparison import write_run
from page_section import labels, rows_of, run_page

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


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    lines = [json.dumps({"query": f"Is {i} <odd>?", "choices": ["yes", "no"], "gold": 1 - i % 2}) for i in range(1, 8)]
    (file := tmp_path / "animals.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return file


def answers(file: Path, right: list[int], step: int = 20, fingerprint: str | None = None) -> dict[str, Any]:
    task = {"metrics": {"acc": {"value": float(np.mean(right)), "stderr": 0.1}}, "items": {"acc": right}}
    task |= {"n_items": len(right)}
    task["fingerprint"] = fingerprint or hashlib.sha256((" " + file.read_text()).encode()).hexdigest()
    return {"step": step, "request": {"task_files": [str(file)]}, "tasks": {"animals": task}}


def test_the_newest_answers_are_compared_item_by_item(tmp_path: Path, questions: Path) -> None:
    one = with_evaluations(tmp_path / "one", answers(questions, ONE), answers(questions, [0] * 7, step=10))
    two = with_evaluations(tmp_path / "two", answers(questions, TWO))
    other = with_evaluations(tmp_path / "other", answers(questions, TWO, fingerprint="other"))
    text = run_page([one, two, other], tmp_path).read_text()
    assert "other minus one" not in text
    cells = [with_error("57.14%", "10.00%"), with_error("85.71%", "10.00%"), MISSING]
    newest = rows_of(text, "The newest checkpoint")
    assert next(row for name, row in newest.items() if name.startswith("animals")) == ["acc", *cells]
    difference = np.subtract(TWO, ONE)
    ends = [difference.mean() + sign * 2.446912 * difference.std(ddof=1) / math.sqrt(7) for sign in (-1, 1)]
    row = rows_of(text, "two minus one, item by item")["animals"]
    found = [float(end.replace(MINUS, "-").rstrip("%")) / 100 for end in row[2].split(" to ")]
    assert found == pytest.approx(ends, abs=1e-4)
    p_value = 2 * (1 + 4) / 2**4  # one of four or fewer, on either side
    assert row[3:] == ["3", "1", f"{p_value:.3f}"]
