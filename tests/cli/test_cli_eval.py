"""`widthwise eval` from argument to output."""

import json
import shutil
from pathlib import Path

import pytest

from widthwise.records.evaluation import Evaluation
from widthwise.reports.evaluations import tables_by_checkpoint


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> list[Path]:
    """Copies, because an evaluation is written into its run; under a path longer than a line of the terminal."""
    return [shutil.copytree(trained / name, tmp_path / ("long" * 31) / name) for name in ("small", "other")]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [{"context": "one two", "continuation": "three"}, {"context": "a b", "continuation": "c"}]
    path = tmp_path / "cloze.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_two_runs_are_shown_with_their_difference_and_kept(runs: list[Path], questions: Path, succeeds) -> None:
    text = questions.with_name("text.txt")
    text.write_text("some text to read\n" * 50)
    out, err = succeeds("eval", *runs, "--text", text, "--task-file", questions, "--stride", 12)
    assert "cloze: 2 items" in err
    words = ("Side by side", "small", "other", "95% interval", "gained", "McNemar", "900 bytes", "bits_per_byte")
    for word in (*words, "1 block of 4,096 bytes: too few", "perplexity", "item by item"):
        assert word in " ".join(out.split())
    for run in runs:
        (file,) = (run / "evaluations").iterdir()
        assert f"wrote {file}" in out
        assert json.loads(file.read_text())["tasks"]["cloze"]["n_items"] == 2


def test_a_report_has_a_row_for_each_run(runs: list[Path], questions: Path, succeeds) -> None:
    text, out = questions.with_name("text.txt"), questions.with_name("table")
    text.write_text("some text to read\n" * 2500)
    asked = ("--text", text, "--task-file", questions, "--baseline", f"small={runs[1]}", "--report", out)
    printed, _ = succeeds("eval", *runs, *asked)
    for name in ("evaluation_table.json", "report.html", "table.csv", "table.tex"):
        assert f"wrote {out / name}" in printed
    assert not (runs[0] / "evaluations").exists()
    kept = json.loads((out / "evaluation_table.json").read_text())
    assert [(row["name"], row["baseline"]) for row in kept["rows"]] == [("small", "other"), ("other", None)]
    titles = [(column["name"], column["metric"]) for column in kept["columns"]]
    assert titles == [("cloze", "acc"), ("cloze", "perplexity"), ("text.txt", "token_perplexity")]


def test_without_a_text_it_is_the_held_out_text_and_json_has_the_totals_alone(
    runs: list[Path], questions: Path, answer
) -> None:
    (record,) = answer("eval", runs[0])["runs"]
    assert record["texts"].keys() == {"held-out"}
    out = questions.with_name("evaluation.json")
    shown = answer("eval", *runs, "--task-file", questions, "--limit", 1, "--out", out)
    kept = json.loads(out.read_text())
    assert shown["differences"] == kept["differences"]
    assert [each["run"] for each in shown["differences"]] == [str(runs[1])]
    assert "items" not in shown["runs"][0]["tasks"]["cloze"]
    assert len(kept["runs"][0]["tasks"]["cloze"]["items"]["acc"]) == 1
    assert not (runs[1] / "evaluations").exists()


def test_every_checkpoint_is_evaluated_and_drawn_by_the_report(runs: list[Path], questions: Path, succeeds) -> None:
    folder = runs[0].parent
    asked = ("--every-checkpoint", "--task-file", questions)
    out, err = succeeds("eval", *runs, *asked)
    assert all(out.count(f"cloze{part}, by checkpoint") == 1 for part in ("", ", differences"))
    rows = [line.split() for line in out.replace(" minus small", "-small").splitlines()]
    steps = [" ".join(row[:3]) for row in rows if "192" in row or "288" in row]
    assert steps == [f"{run} {at}" for run in ("small", "other", "other-small") for at in ("2 192", "3 288")]
    assert all(len(list((run / "evaluations").iterdir())) == 2 for run in runs)
    succeeds("report", *runs, "--out", folder / "both")
    assert "acc of cloze over tokens. Last mean value of each line: small" in (folder / "both/report.html").read_text()
    (runs[0] / "checkpoints/step_00000002/model.safetensors").write_bytes(b"torn")
    out, err = succeeds("eval", runs[0], *asked, "--json")
    assert [each["step"] for each in json.loads(out)["runs"]] == [3]
    assert "checkpoint step_00000002 is damaged (model.safetensors has 4 bytes" in err


def test_means_and_tasks_of_checkpoints_have_separate_tables() -> None:
    def evaluation(step: int, value: float) -> Evaluation:
        found = {"value": value, "stderr": None}
        asked = {"request": {}, "max_length": 9, "stride": 9, "precision": "fp32"}
        answers = {"text_means": {"metrics": {"mean_nats_per_token": found}}, "lm_eval": {"arc": {"acc": found}}}
        return Evaluation.model_validate({"run": "run", "step": step, "tokens": 9 * step, **asked, **answers})

    accuracies, means = tables_by_checkpoint([evaluation(1, 0.5), evaluation(2, 0.25)], [])
    assert means.rows == [["run", "1", "9", "0.5000"], ["run", "2", "18", "0.2500"]]
    assert means.caption == "mean over texts, by checkpoint"
    assert (accuracies.caption, accuracies.header[3]) == ("lm-eval arc, by checkpoint", "acc")
    assert [row[3] for row in accuracies.rows] == ["50.00%", "25.00%"]
