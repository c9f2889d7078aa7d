"""Evaluations of a run's checkpoints as curves over tokens."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import write_run

from widthwise.config_io import UserError
from widthwise.reports.run.report import write_run_report, write_runs_report


def evaluation(step: int, bits: float, acc: float | None = None, stride: int = 17, items: str = "f1") -> dict[str, Any]:
    text = {"metrics": {"bits_per_byte": {"value": bits, "stderr": 0.5}}, "fingerprint": "t", "blocks": {}}
    task = {"metrics": {"acc": {"value": acc, "stderr": None}}, "fingerprint": items, "n_items": 4}
    return {
        "run": "r",
        "step": step,
        "tokens": 100 * step,
        "request": {"texts": []},
        "max_length": 17,
        "stride": stride,
        "precision": "fp32",
        "texts": {"book": text},
        "tasks": {} if acc is None else {"piqa": task},
        "lm_eval": {},
    }


def with_evaluations(folder: Path, *evaluations: dict[str, Any]) -> Path:
    write_run(folder, folder.name, 3, [63], 0.0)
    (folder / "evaluations").mkdir()
    for i, each in enumerate(evaluations):
        (folder / f"evaluations/step_{each['step']:08d}-{i}.json").write_text(json.dumps(each))
    return folder


def labels(page: Path) -> list[str]:
    return [text for text in re.findall(r'role="img" aria-label="([^"]*)"', page.read_text()) if "over tokens" in text]


def test_runs_share_a_figure_for_each_text_and_task(tmp_path: Path) -> None:
    one = with_evaluations(tmp_path / "one", evaluation(20, 3.0, 0.25), evaluation(10, 4.0, 0.5))
    two = with_evaluations(tmp_path / "two", evaluation(10, 4.5), evaluation(20, 2.5))
    page = write_runs_report([one, two], tmp_path)
    assert labels(page) == [
        "bits_per_byte of book over tokens. Last mean value of each line: one 3; two 2.50.",
        "acc of piqa over tokens. Last mean value of each line: one 0.25.",
    ]
    rows = re.findall(r'<th scope="row">(\w+)</th><td>([\d,]+)</td><td>([^<]*)</td></tr>', page.read_text())
    assert rows[:2] == [("one", "1,000", "4.0000 (0.5000)"), ("one", "2,000", "3.0000 (0.5000)")]
    assert rows[4:6] == [("one", "1,000", "0.5000"), ("one", "2,000", "0.2500")]


def test_only_what_was_asked_alike_is_joined(tmp_path: Path) -> None:
    asked = [evaluation(step, 4.0, 0.5, stride=stride) for stride in (17, 3) for step in (10, 20)]
    run = with_evaluations(tmp_path / "run", *asked, evaluation(30, 4.0, 0.5, items="f2", stride=5))
    found = labels(write_run_report(run))
    assert [each.partition(" over")[0] for each in found] == [
        "bits_per_byte of book (stride 17)",
        "acc of piqa",
        "bits_per_byte of book (stride 3)",
    ]


def test_of_a_single_checkpoint_there_is_no_curve(tmp_path: Path) -> None:
    run = with_evaluations(tmp_path / "run", evaluation(10, 4.0), evaluation(10, 4.0, stride=3))
    assert "Evaluations over training" not in write_run_report(run).read_text()


def test_tokens_of_an_older_file_are_those_of_the_records(tmp_path: Path) -> None:
    run = with_evaluations(tmp_path / "run")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    known = {record["step"]: record["tokens"] for record in records if record["event"] == "train"}
    for step in list(known)[:2]:
        older = {**evaluation(step, 4.0), "tokens": None}
        (run / f"evaluations/step_{step:08d}-0.json").write_text(json.dumps(older))
    rows = re.findall(r"<td>([\d,]+)</td><td>4.0000", write_run_report(run).read_text())
    assert rows == [f"{n:,}" for n in list(known.values())[:2]]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    run = with_evaluations(tmp_path / "run", {"step": 3})
    with pytest.raises(UserError, match=r"evaluations/step_00000003-0.json: request: "):
        write_run_report(run)
