"""A signal to any of several processes stops all after the same step, with one checkpoint; the next start goes on."""

import shutil
import signal

import pytest
from injected import at_start, at_step, before_data, on_rank, run_command, send
from ranks import launched
from tiny_runs import outcome

from widthwise.run_dir import RunDir
from widthwise.training.checkpoint_folder import checkpoint_paths, find_damage

STOPS = [
    (3, "SIGTERM to the second", signal.SIGTERM, on_rank(1, at_step(3, send(signal.SIGTERM)))),
    (5, "SIGUSR1 to the first", signal.SIGUSR1, on_rank(0, at_step(5, send(signal.SIGUSR1)))),
    (7, "SIGINT to all, again and again", signal.SIGINT, at_step(7, send(signal.SIGINT, times=3))),
    (9, "SIGTERM to the second in the last step", signal.SIGTERM, on_rank(1, at_step(9, send(signal.SIGTERM)))),
]


@pytest.mark.hard
def test_stopped_by_every_signal_in_turn_the_run_ends_bitwise_as_one_that_was_not(recipe_file, finished, tmp_path):
    run = tmp_path / "run"
    command = ("train", str(recipe_file), "train.checkpoint_every=null", "--out", str(run))
    for step, name, number, fault in STOPS:
        launch = launched(2, run_command, command, fault, errors=tmp_path / name, codes=[128 + number] * 2)
        said = f"{run}: stopped at step {step} of 9, with a checkpoint; the same launch continues it"
        assert launch.errors() == [(0, said)]
        newest = checkpoint_paths(run / "checkpoints")[0]
        assert newest.name == f"step_{step:08d}"
        assert find_damage(newest) is None
    launched(2, run_command, command, errors=tmp_path / "last", codes=[0, 0])
    ours, theirs = outcome(run), outcome(finished)
    assert ours | {"result": None} == theirs | {"result": None}


@pytest.mark.parametrize(("moment", "number"), [(at_start, signal.SIGUSR1), (before_data, signal.SIGTERM)])
def test_a_signal_to_all_before_the_first_step_is_said_once(recipe_file, tmp_path, moment, number):
    command = ("train", str(recipe_file), "--out", str(tmp_path / "run"))
    launch = launched(2, run_command, command, moment(send(number)), errors=tmp_path, codes=[128 + number] * 2)
    assert launch.errors() == [(0, "stopped by a signal; what has finished is kept")]


def test_a_finished_run_a_user_error_and_a_run_in_use_are_said_once(recipe_file, finished, tmp_path):
    run, command = shutil.copytree(finished, tmp_path / "run"), ("train", str(recipe_file), "--out")
    launch = launched(2, run_command, (*command, str(run)), errors=tmp_path / "finished", codes=[0, 0])
    assert launch.everything().count("has finished already") == 1
    assert launch.said(1) == ""
    wrong = launched(2, run_command, (*command, str(tmp_path / "new"), "train.batchsize=3"), errors=tmp_path / "wrong")
    (run / "result.json").unlink()
    with RunDir(run).locked():
        in_use = launched(2, run_command, (*command, str(run)), errors=tmp_path / "in_use")
    said = "batchsize: unknown key; did you mean 'batch_size'?", f"{run}: is in use"
    for launch, message in zip((wrong, in_use), said, strict=True):
        assert launch.codes() == [2, 2]
        ((rank, error),) = launch.errors()
        assert rank == 0
        assert message in error
