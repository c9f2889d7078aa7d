"""`widthwise eval`, `analyze`, `report` and `runs` from argument to output."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from widthwise.records.analysis import Analysis
from widthwise.records.evaluation import Evaluation
from widthwise.reports.evaluations import tables_by_checkpoint
from widthwise.run_dir import RunDir


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
    words = " ".join(out.split())
    for part in ("Side by side", "McNemar", "900 bytes", "1 block of 4,096 bytes: too few", "perplexity"):
        assert part in words
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


def test_analyze_prints_means_and_writes_page_and_numbers(small: str, succeeds) -> None:
    out, _ = succeeds("analyze", small, "other", "--tokens", 240)
    folder = Path("runs/small-vs-other-analysis")
    assert all(f"wrote {folder / name}" in out for name in ("analysis.json", "report.html"))
    written = json.loads((folder / "analysis.json").read_text())
    assert written["command"] == "widthwise analyze small other --tokens 240"
    assert [model["source"] for model in written["models"]] == ["small", "other"]
    cells = next(line.split() for line in out.splitlines() if "Effective number of units over d_ff  " in line)
    for cell, model in zip(cells[-2:], written["models"], strict=True):
        shares = [layer["participation_share"] for layer in model["activations"]]
        assert float(cell) == pytest.approx(sum(shares) / len(shares), abs=1e-4)


def test_an_analysis_of_one_run_is_in_its_folder_by_step(small: str, answer, succeeds) -> None:
    Path("own.txt").write_text("def narrow(width): return width // 2\n" * 9)
    text = ("--text", "own.txt", "--seq-len", 10, "--tokens", 57, "--batch-size", 2)
    record = answer("analyze", small, *text, "--step", 2)
    assert record["text"] == {"source": "own.txt", "seq_len": 10, "n_tokens": 50}
    assert [model["step"] for model in record["models"]] == [2]
    assert Analysis.read(Path("small/analysis-step-2")).to_data() == record
    out, _ = succeeds("analyze", small, *text, "--every-checkpoint")
    rows = [line.split()[:4] for line in out.splitlines() if line.startswith("small,")]
    assert rows == [["small,", "step", "2", "192"], ["small,", "step", "3", "288"]]
    assert "Over training" in Path("small/analysis-of-checkpoints/report.html").read_text()


WRITTEN = Path(__file__).parents[1] / "data_files"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunDir(tmp_path).begin("train: {seed: 1}\n", {})
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "event": "train", "loss": 9.0}\n')
    return tmp_path


def test_report_prints_where_page_and_figures_are(run: Path, succeeds, answer, refused) -> None:
    refused("report", run, "--figures", "png")
    assert not (run / "report.html").exists()
    assert succeeds("report", run)[0] == f"{run}/report.html\n"
    assert (run / "report.html").is_file()
    assert answer("report", run, "--out", run / "out") == {"files": [f"{run}/out/report.html"]}
    files = answer("report", run, "--figures", "pdf")["files"]
    assert f"{run}/figures/main.pdf" in files
    assert all(Path(path).is_file() for path in files)
    sweep = shutil.copytree(WRITTEN / "sweep", run / "sweep")
    succeeds("report", sweep, "--columns", "layer_params,train_loss")
    assert "& Parameters, layers without norms & Training loss" in (sweep / "table.tex").read_text()


def test_several_comparisons_have_a_table_of_their_effects(tmp_path: Path, answer, succeeds) -> None:
    data = json.loads((WRITTEN / "comparison" / "outcome.json").read_text())
    folders = [tmp_path / name for name in ("short", "long")]
    for folder, tokens in zip(folders, (1e6, 4e6)):
        for variant in data["points"]:
            variant["measured"] = {"tokens": {"mean": tokens, "per_seed": [tokens]}}
        folder.mkdir()
        (folder / "outcome.json").write_text(json.dumps(data))
    arguments = ("report", *folders, "--out", tmp_path / "out")
    found = answer(*arguments)
    assert (set(found["signs"].values()), found["files"]) == ({"cannot tell"}, [f"{tmp_path}/out/table.csv"])
    printed = succeeds(*arguments)[0]
    assert "cannot tell" in printed
    assert printed.endswith(f"wrote {tmp_path}/out/table.csv\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that stopped two hours ago, and one that nobody can read."""
    run, broken = tmp_path / "all" / "mine", tmp_path / "all" / "broken"
    for path, config in ((run, "train: {steps: 2000}\n"), (broken, "train: [")):
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(config)
    record = {"step": 1200, "event": "train", "loss": 2.34567, "lr": 0.1, "tokens_per_second": 51234.0}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    os.utime(run / "metrics.jsonl", (time.time() - 7200, time.time() - 7200))
    return run.parent


def test_a_line_says_how_far_a_run_has_come_and_how_long_ago(folder: Path, succeeds, answer) -> None:
    out, error = succeeds("runs", folder)
    (line,) = [line.split() for line in out.splitlines() if line.startswith("mine")]
    assert line[:4] == ["mine", "stopped", "1,200/2,000", "2.3457"]
    assert line[5:8] == ["51.2k", "2", "h"]
    assert f"{folder}/broken/config.yaml: is not valid YAML" in out + error
    found = {each["path"]: each["state"] for each in answer("runs", folder)["runs"]}
    assert found == {str(folder / "broken"): "unreadable", str(folder / "mine"): "stopped"}
