"""A run directory: begun once, held by one process at a time, and told from other folders; the records of its run."""

import json
import os
import pickle
import subprocess
import sys
from hashlib import sha256
from unittest.mock import Mock

import pytest
from boxes import refusal
from small_costs import small_cost

from widthwise import run_dir
from widthwise.metrics_file import MetricsFile
from widthwise.mistakes import RunDiverged, UserError
from widthwise.records.record import SealedFile
from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir


def test_a_run_holds_a_recipe_its_environment_and_in_the_end_a_result(tmp_path):
    run = RunDir(tmp_path / "run")
    assert not run.exists
    run.begin("a: 1\nb: 2\n", {"torch": "x"})
    assert (run.exists, run.config_yaml(), run.environment()) == (True, "a: 1\nb: 2\n", {"torch": "x"})
    assert run.result() is None
    result = RunResult(cost=small_cost(), val_loss=1.5)
    run.write_result(result)
    assert run.result() == result


def test_data_may_move_and_processes_differ_but_how_data_are_read_stays(tmp_path):
    run = RunDir(tmp_path / "run")
    begun = "data: {path: here, mask_documents: true}\ntrain: {shards: 1, steps: 9}\n"
    run.begin(begun, {})
    for same in (begun.replace("here", "there"), begun.replace("shards: 1", "shards: 2")):
        (run.path / "config.yaml").write_text(same)
        assert run.config_yaml() == same
    for other, said in (
        (begun.replace("mask_documents: true", "mask_documents: false"), "data.mask_documents from True to False"),
        (begun.replace("true}", "true, reset_positions: true}"), "data.reset_positions from None to True"),
        (begun.replace("steps: 9", "steps: 8"), "train.steps from 9 to 8"),
    ):
        (run.path / "config.yaml").write_text(other)
        assert f"was changed after the run was begun: {said}" in refusal(run.config_yaml)


@pytest.mark.parametrize(
    ("recipe", "continued", "said"),
    [
        ("train: {steps: 1}\n", 5, "environment.json: continued: got 5"),
        ("train: {steps: 1}\n", [{"after": {}}], "continued.0.after_step: is required"),
        *(
            (
                "train: {steps: 1}\n",
                [{"after_step": 1, "before": {}, "after": {key: 2}}],
                f"continued.0.after.{key}: got",
            )
            for key in ("steps", "model.steps", "train.growth.steps")
        ),
        *(
            (text, [{"after_step": 1, "before": {"train.steps": 1}, "after": {"train.steps": 2}}], "no section train")
            for text in ("5\n", "model: {}\n", "train: [1]\n")
        ),
    ],
)
def test_a_forged_history_is_refused_in_one_line(tmp_path, recipe, continued, said):
    run = RunDir(tmp_path)
    run.begin(recipe, {"continued": continued})
    (tmp_path / "config.yaml").write_text("train: {steps: 2}\n")
    assert said in refusal(run.config_yaml)


def test_a_failed_begin_is_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "write_atomic", Mock(side_effect=UserError("disk full")))
    with pytest.raises(UserError):
        RunDir(tmp_path).begin("a: 1\n", {})
    assert SealedFile(tmp_path / "environment.json").read() == {"recipe": "a: 1\n"}
    assert not RunDir(tmp_path).exists


def test_what_names_no_run_or_recipe_is_refused_in_one_line(tmp_path):
    run = RunDir(tmp_path)
    run.begin("a: 1\n", {})
    assert "the checkpoint does not say to which run it belongs" in refusal(run.check_seal, None, "the checkpoint")
    (tmp_path / "environment.json").write_text("{}")
    assert "environment.json: recipe: is required but missing" in refusal(run.config_yaml)
    for name in ("environment", "result"):
        (tmp_path / f"{name}.json").write_text("[]")
        assert f"{name}.json: holds list, not a mapping" in refusal(getattr(run, name))


def test_a_path_that_is_no_run_is_told_what_it_is(tmp_path):
    files = {
        "several/runs/x-seed1/config.yaml": "a: 1",
        "group/x-seed1/config.yaml": "a: 1",
        "small/config.yaml": "a: 1",
        "mine.yaml": "a: 1",
        "hf/config.json": '{"model_type": "llama"}',
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    for name, remedy in (
        ("several", "it holds several runs, which are {}/runs/NAME"),
        ("group", "it holds several runs, which are {}/NAME"),
        ("hf", "it is a Hugging Face folder: `widthwise import {} RUN` makes"),
        ("nowhere", "there is no such folder"),
        ("smal", "there is no such folder, did you mean {}l?"),
        ("mine.yaml", "it is a recipe: `widthwise train {}` begins a run"),
        ("small/config.yaml", "it is a file"),
    ):
        path = tmp_path / name
        assert f"is not a run directory (no config.yaml); {remedy.format(path)}" in refusal(RunDir(path).config_yaml)


HOLD = """
import sys
from widthwise.run_dir import RunDir
with RunDir(sys.argv[1]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_is_held_by_one_process_until_it_ends_or_is_killed(tmp_path, is_killed):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {process.pid}"), RunDir(tmp_path).locked():
            pass
        if is_killed:
            process.kill()
        process.communicate("" if not is_killed else None)
    with pytest.raises(KeyError), RunDir(tmp_path).locked():
        raise KeyError
    with RunDir(tmp_path).locked():
        assert (tmp_path / "holder").read_text() == str(os.getpid())


def test_a_divergence_comes_whole_from_another_process():
    found = pickle.loads(pickle.dumps(RunDiverged("runs/a: stopped at step 7", 7)))
    assert (str(found), found.step) == ("runs/a: stopped at step 7", 7)


RECORDS = [{"step": step, "event": "train", "loss": 1 / step, "step_seconds": 0.5} for step in (1, 2, 3)]


CONTAINERS = ("mtp_losses", "val_texts", "val_tasks", "grad_norms", "weight_norms", "update_norms", "output_rms")
"""Keys of a record with a list or a mapping."""


@pytest.fixture
def metrics(tmp_path):
    return MetricsFile(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("n_bytes_lost", [1, 17, 39])
def test_a_torn_last_line_is_left_out_and_rewinding_mends_the_file(metrics, n_bytes_lost):
    metrics.append(RECORDS)
    metrics.path.write_bytes(metrics.path.read_bytes()[:-n_bytes_lost])
    assert metrics.records() == RECORDS[:2]
    metrics.rewind(2)
    metrics.append(RECORDS[2:])
    assert metrics.records() == RECORDS


def test_a_line_that_is_no_record_is_named(metrics):
    for text, said in (
        ('{"step": 1, "event": "train"}\n{"st\n', "line 2: is not valid JSON"),
        ("[1]\n", "line 1: got [1]; expected keys with values"),
        ('{"event": "train"}\n', "line 1: step: is required but missing"),
        ('{"step": 1}\n', "line 1: event: is required but missing"),
        *(
            (json.dumps({"step": 1, "event": "train", key: value}) + "\n", f"line 1: {key}: got {value!r}")
            for key, value in (("step", "1"), ("step", True), ("step_seconds", 0), ("memory_bytes", "x"), ("reason", 5))
        ),
        *((json.dumps({"step": 1, "event": "norms", key: 5}) + "\n", f"line 1: {key}: got 5") for key in CONTAINERS),
    ):
        metrics.path.write_text(text)
        assert f"metrics.jsonl: {said}" in refusal(metrics.records)


@pytest.mark.parametrize("n_bytes", [0, 1, 100, 2**16 - 1, 2**16, 2**16 + 1, 3 * 2**16 + 5, 10**30])
def test_the_front_of_the_records_is_read_in_parts(metrics, monkeypatch, n_bytes):
    monkeypatch.setattr("widthwise.files.HASHED_BYTES_AT_ONCE", 2**16)
    content = os.urandom(3 * 2**16 + 7)
    metrics.path.write_bytes(content)
    front = metrics.front(n_bytes)
    assert (front.n_bytes, front.sha256) == (len(content[:n_bytes]), sha256(content[:n_bytes]).hexdigest())


def test_pipes_in_a_run_hang_nothing(tmp_path):
    run = RunDir(tmp_path)
    os.mkfifo(tmp_path / "lock")
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert not run.is_in_use
    assert "metrics.jsonl: is not a plain file" in refusal(run.metrics)
    assert "metrics.jsonl: is not a plain file" in refusal(run.metrics_file.front)
    with run.locked():
        assert RunDir(tmp_path).is_in_use


@pytest.mark.parametrize("target", ["checkpoints", "nowhere", "config.yaml"])
def test_checkpoints_that_lead_to_no_folder_are_refused(tmp_path, target):
    (tmp_path / "config.yaml").write_text("a: 1")
    (tmp_path / "checkpoints").symlink_to(target)
    assert "checkpoints: is no folder, nor a link to one" in refusal(RunDir(tmp_path).check_checkpoints_are_own)


def test_a_full_disk_is_a_user_error(metrics):
    metrics.path.symlink_to("/dev/full")
    assert "metrics.jsonl" in refusal(metrics.append, RECORDS)
