"""Under torchrun's own agent: what it starts again goes on, and what must not go on does not."""

import signal
from pathlib import Path

import pytest
from injected import Fault, at_step, die, on_rank, on_restart, run_agent, send_to_agent, send_to_group, slow_disk
from ranks import Launch, free_port, launched
from tiny_runs import outcome

from widthwise.run_dir import RunDir
from widthwise.training.checkpoint_folder import checkpoint_paths, find_damage, step_of

pytestmark = pytest.mark.hard


def agent(command: tuple[str, ...], *faults: Fault, errors: Path, code: int = 0, max_restarts: int = 0) -> Launch:
    """torchrun with two processes on one machine, after it has ended with this exit code."""
    arguments = (0, 1, 2, free_port(), max_restarts, command, *faults)
    return launched(1, run_agent, *arguments, errors=errors, codes=[code])


def test_killed_twice_in_a_row_the_run_goes_on_twice(recipe_file, finished, tmp_path):
    """torchrun's store, with the addresses of the dead in it, outlives both."""
    run = tmp_path / "run"
    faults = on_restart(0, on_rank(1, at_step(3, die))), on_restart(1, on_rank(0, at_step(6, die)))
    launch = agent(("train", str(recipe_file), "--out", str(run)), *faults, errors=tmp_path, max_restarts=2)
    assert outcome(run) == outcome(finished)
    assert [launch.everything().count(f"resuming after step {step} of 9") for step in (2, 5)] == [1, 1]


@pytest.mark.parametrize("victim", [0, 1])
def test_who_died_is_named_although_torchrun_ends_the_other(recipe_file, tmp_path, victim):
    command = ("train", str(recipe_file), "--out", str(tmp_path / "run"))
    launch = agent(command, on_rank(victim, at_step(5, die)), errors=tmp_path, code=1)
    ((_, error),) = launch.errors()
    assert error.startswith(f"process {1 - victim}: waits for process {victim}, which has ended or hangs")
    assert "terminate called" not in launch.everything()  # by a thread that outlives Python


def test_a_signal_to_torchrun_or_to_all_stops_once_and_repeats_do_not_kill_before_a_save(
    recipe_file, finished, tmp_path
):
    """A third one ends torchrun itself, and with it its workers."""
    run, step = tmp_path / "run", 0
    command = ("train", str(recipe_file), "train.checkpoint_every=null", "--out", str(run))
    signals = {
        "to torchrun": on_rank(0, at_step(3, send_to_agent(signal.SIGTERM))),
        "to all, twice": on_rank(0, at_step(5, send_to_group(signal.SIGTERM, times=2))),
        "of SLURM, to all": on_rank(1, at_step(7, send_to_group(signal.SIGUSR1, times=1))),
    }
    for name, fault in signals.items():
        launch = agent(command, fault, slow_disk, errors=tmp_path / name, code=1)
        before, step = step, step_of(checkpoint_paths(run / "checkpoints")[0])
        assert step > before
        said = f"{run}: stopped at step {step} of 9, with a checkpoint; the same launch continues it"
        assert launch.errors() == [(0, said)], launch.everything()
        assert find_damage(checkpoint_paths(run / "checkpoints")[0]) is None
    agent(command, errors=tmp_path / "last")
    assert outcome(run)["metrics"] == outcome(finished)["metrics"]
    assert outcome(run)["model"] == outcome(finished)["model"]


def test_a_run_that_diverged_is_not_trained_again(recipe_file, tmp_path):
    run = tmp_path / "run"
    command = ("train", str(recipe_file), "optimizer.lr=1e9", "train.log_every=1", "--out", str(run))
    launch = agent(command, errors=tmp_path, code=1, max_restarts=2)
    first, *others = [error for _, error in launch.errors()]
    assert first.startswith(f"{run}: stopped at step")
    assert len(others) == 2
    assert all(other.startswith(f"{run}: stopped at step") and other.endswith("tries again") for other in others)
    assert [record["event"] for record in RunDir(run).metrics()].count("stopped") == 1


def test_two_machines_of_which_one_loses_its_process(recipe_file, finished, tmp_path):
    run, port = tmp_path / "run", free_port()
    command = ("train", str(recipe_file), "--out", str(run))
    fault = on_restart(0, on_rank(1, at_step(4, die)))
    first, second = (
        Launch(1, run_agent_of_several, node, port, command, fault, errors=tmp_path / str(node)) for node in (0, 1)
    )
    with first, second:
        assert first.codes() == second.codes() == [0], first.everything() + second.everything()
    assert outcome(run) == outcome(finished)


def run_agent_of_several(node: int, port: int, command: tuple[str, ...], fault: Fault) -> None:
    """One of two machines, as docs/distributed.md says it."""
    import os

    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    run_agent(node, 2, 1, port, 2, command, fault)
