import os
import subprocess
import sys
import time

import pytest
from tiny_runs import unfinished_copy

from widthwise.records.run import PlannedRun, PlannedRuns
from widthwise.run_dir import RunDir
from widthwise.runs.listing import list_runs, listed_run


def test_a_run_says_what_its_last_records_say(finished):
    records = RunDir(finished).metrics()
    trained, validated = ([r for r in records if r["event"] == event][-1] for event in ("train", "validation"))
    listed = listed_run(finished)
    assert (listed.state, listed.step, listed.n_steps) == ("finished", 9, 9)
    assert listed.loss == trained["loss"]
    assert listed.val_loss == validated["loss"]
    assert listed.tokens_per_second == trained["tokens_per_second"]
    assert listed.n_bytes == sum(file.stat().st_size for file in finished.rglob("*") if file.is_file())
    assert listed.age_seconds == pytest.approx(time.time() - (finished / "metrics.jsonl").stat().st_mtime, abs=5)


def test_states_follow_from_who_holds_a_run_and_how_it_ended(finished, tmp_path):
    folder = tmp_path / "study"
    failed, stopped = (unfinished_copy(finished, folder / "runs" / name, 5) for name in ("b-seed1", "a-seed1"))
    RunDir(failed).metrics_file.append([{"step": 9, "event": "stopped", "reason": "loss is not finite"}])
    planned = [PlannedRun(path=f"runs/{name}-seed1", variant=name, seed=1, n_steps=9) for name in "abc"]
    PlannedRuns(title="study", command="widthwise compare study", baseline="a", runs=planned).write(folder)
    found = {run.path.rsplit("/")[-1]: run.state for run in list_runs(folder)}
    assert found == {"a-seed1": "stopped", "b-seed1": "failed", "c-seed1": "waiting"}
    assert list_runs(folder)[1].reason == "loss is not finite"
    with RunDir(stopped).locked(), RunDir(folder / "runs" / "c-seed1").locked():
        assert [run.state for run in list_runs(folder)] == ["running", "failed", "running"]


def test_a_broken_run_hides_no_other(finished, tmp_path):
    broken = unfinished_copy(finished, tmp_path / "broken", 5)
    unfinished_copy(finished, tmp_path / "good", 5)
    (broken / "config.yaml").write_text("train: [")
    first, second = list_runs(tmp_path)
    assert (first.state, second.state) == ("unreadable", "stopped")
    assert first.reason.startswith(f"{broken}/config.yaml: is not valid YAML")


def test_looking_from_another_process_keeps_nobody_from_a_run(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 5)
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom widthwise.run_dir import RunDir\n"
        "run, end = RunDir(sys.argv[1]), time.monotonic() + 3\nprint(flush=True)\n"
        "while time.monotonic() < end: run.is_in_use"
    )
    (run / "lock").touch()
    with subprocess.Popen([sys.executable, "-c", script, run], stdout=subprocess.PIPE, env=os.environ) as looker:
        looker.stdout.readline()
        for _ in range(200):
            with RunDir(run).locked():
                pass
        looker.terminate()
