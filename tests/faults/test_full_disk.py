"""A disk that is full in one process ends all with one line, and loses nothing that was written before."""

import pytest
from injected import at_step, die, full_disk, on_rank, run_command, slow_disk
from ranks import launched
from thinned import hard_but
from tiny_runs import outcome

from widthwise.training.checkpoint_folder import checkpoint_paths, find_damage

IN_BACKGROUND = "train.checkpoint_in_background=true"


def left(run) -> list[str]:
    """Everything in the folder of the checkpoints; all that have a name must be good."""
    folder = run / "checkpoints"
    assert [find_damage(path) for path in checkpoint_paths(folder)] == [None] * len(checkpoint_paths(folder))
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("rank", "background"), hard_but([(1, "true")], [(0, "false"), (1, "true")]))
def test_a_full_disk_is_said_once_and_the_next_start_goes_on(recipe_file, finished, tmp_path, rank, background):
    run = tmp_path / "run"
    command = ("train", str(recipe_file), f"train.checkpoint_in_background={background}", "--out", str(run))
    launch = launched(2, run_command, command, on_rank(rank, full_disk(5)), errors=tmp_path / "full", codes=[2, 2])
    path = run / "checkpoints" / "step_00000005"
    reason = "cannot be written (No space left on device); the checkpoints before it are intact; "
    assert launch.errors() == [(0, f"{path}: {reason}`resume` with a lower train.keep_last deletes some")]
    assert left(run) == [f"step_{step:08d}" for step in range(1, 5)]
    launched(2, run_command, command, errors=tmp_path / "again", codes=[0, 0])
    assert outcome(run) == outcome(finished)  # checkpoints of the foreground and the background are the same bytes


@pytest.mark.hard
def test_where_there_are_no_checkpoints_before_none_are_called_intact(recipe_file, tmp_path):
    run = tmp_path / "run"
    command = ("train", str(recipe_file), "--out", str(run))
    launch = launched(2, run_command, command, on_rank(0, full_disk(1)), errors=tmp_path / "full", codes=[2, 2])
    reason = "cannot be written (No space left on device)"
    assert launch.errors() == [(0, f"{run / 'checkpoints' / 'step_00000001'}: {reason}")]


@pytest.mark.hard
def test_what_failed_in_the_background_is_said_at_the_end_at_the_latest(recipe_file, tmp_path):
    run = tmp_path / "run"
    command = ("train", str(recipe_file), IN_BACKGROUND, "--out", str(run))
    launch = launched(2, run_command, command, on_rank(1, full_disk(9)), errors=tmp_path / "full", codes=[2, 2])
    assert [error.partition(": ")[2][:17] for _, error in launch.errors()] == ["cannot be written"]
    assert left(run) == [f"step_{step:08d}" for step in range(1, 9)]


@pytest.mark.hard
def test_a_kill_while_a_checkpoint_is_written_in_the_background_leaves_those_before(recipe_file, finished, tmp_path):
    run = tmp_path / "run"
    command = ("train", str(recipe_file), IN_BACKGROUND, "train.checkpoint_every=4", "--out", str(run))
    faults = slow_disk, on_rank(1, at_step(9, die))
    launch = launched(2, run_command, command, *faults, errors=tmp_path / "killed")
    assert launch.codes()[1] == -9
    assert left(run)[-1] == "step_00000004"
    assert ".step_00000008.partial" in left(run)
    launched(2, run_command, command, errors=tmp_path / "again", codes=[0, 0])
    assert outcome(run)["model"] == outcome(finished)["model"]
    assert left(run) == ["step_00000004", "step_00000008", "step_00000009"]
