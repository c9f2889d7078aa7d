"""Two runs that answered the same questions: what differs, and which items flipped."""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_comparison import write_run

from widthwise.reports.run.report import write_runs_report

ONE, TWO = [1, 0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 0, 1, 1]


def with_answers(folder: Path, right: list[int], file: Path, fingerprint: str, step: int = 20) -> Path:
    if not folder.exists():
        write_run(folder, folder.name, 3, [63], 0.0)
    task = {"metrics": {"acc": {"value": float(np.mean(right)), "stderr": 0.1}}, "items": {"acc": right}}
    evaluation: dict[str, Any] = {"step": step, "tokens": 100 * step, "request": {"task_files": [str(file)]}}
    evaluation |= {"max_length": 17, "stride": 17, "precision": "fp32"}
    evaluation |= {"tasks": {"animals": {**task, "fingerprint": fingerprint}}}
    (folder / "evaluations").mkdir(exist_ok=True)
    (folder / f"evaluations/step_{step:08d}-0.json").write_text(json.dumps(evaluation))
    return folder


def cells(text: str, caption: str) -> dict[str, list[str]]:
    """First cell of a row -> its others, of the table that begins so."""
    table = text[text.index(f"<caption>{caption}") :].split("</table>")[0]
    rows = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', table, re.DOTALL)
    return {name: re.findall(r"<td[^>]*>(.*?)</td>", rest, re.DOTALL) for name, rest in rows}


@pytest.fixture
def questions(tmp_path: Path) -> tuple[Path, str]:
    """A file of seven questions, and its fingerprint."""
    lines = [json.dumps({"query": f"Is {i} <odd>?", "choices": ["yes", "no"], "gold": 1 - i % 2}) for i in range(1, 8)]
    file = tmp_path / "animals.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file, hashlib.sha256((" " + "".join(f"{line}\n" for line in lines)).encode()).hexdigest()


def test_the_newest_answers_are_compared_item_by_item(tmp_path: Path, questions: tuple[Path, str]) -> None:
    one = with_answers(tmp_path / "one", ONE, *questions)
    with_answers(one, [0] * 7, *questions, step=10)
    text = write_runs_report([one, with_answers(tmp_path / "two", TWO, *questions)], tmp_path).read_text()
    assert cells(text, "The newest checkpoint")["animals"] == ["acc", "0.5714 (0.1000)", "0.8571 (0.1000)"]
    difference = np.subtract(TWO, ONE)
    low, high = (difference.mean() + sign * 2.446912 * difference.std(ddof=1) / math.sqrt(7) for sign in (-1, 1))
    row = cells(text, "Differences, item by item")["animals"]
    assert row[:3] == ["acc", "one", "two"]
    assert [float(end.replace("\N{MINUS SIGN}", "-")) for end in row[4].split(" to ")] == pytest.approx(
        [low, high], abs=1e-4
    )
    p_value = 2 * (1 + 4) / 2**4  # one of four or fewer, on either side
    assert row[5:] == ["3", "1", f"{p_value:.3f}"]


def test_items_that_flipped_are_shown_with_their_questions(tmp_path: Path, questions: tuple[Path, str]) -> None:
    runs = [with_answers(tmp_path / name, right, *questions) for name, right in (("one", ONE), ("two", TWO))]
    shown = cells(write_runs_report(runs, tmp_path).read_text(), "animals, acc: what flipped between one and two")
    assert list(shown) == ["2", "4", "5", "7"]
    assert shown["2"] == ["two", "Is 2 &lt;odd&gt;?", "no"]
    assert shown["5"] == ["one", "Is 5 &lt;odd&gt;?", "yes"]


def test_of_a_file_that_has_changed_only_the_numbers_are_shown(tmp_path: Path, questions: tuple[Path, str]) -> None:
    file, _ = questions
    runs = [with_answers(tmp_path / name, right, file, "other") for name, right in (("one", ONE), ("two", TWO))]
    text = write_runs_report(runs, tmp_path).read_text()
    assert cells(text, "animals, acc: what flipped")["7"] == ["two"]
    assert "Is 2" not in text


def test_other_questions_are_not_compared(tmp_path: Path, questions: tuple[Path, str]) -> None:
    file, fingerprint = questions
    one = with_answers(tmp_path / "one", ONE, file, fingerprint)
    text = write_runs_report([one, with_answers(tmp_path / "two", TWO, file, "other")], tmp_path).read_text()
    assert "Differences, item by item" not in text
    assert "The newest checkpoint" in text
