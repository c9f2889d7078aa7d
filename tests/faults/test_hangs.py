"""Who hangs or has been killed is named by the others, in one line each, within `train.hang_seconds`."""

import pytest
from injected import at_step, before_data, before_joining, die, hang, on_rank, run_command, slow_start
from ranks import Launch, launched

pytestmark = pytest.mark.hard


def named(recipe_file, tmp_path, n: int, victim: int, fault, *overrides: str) -> list[tuple[int, str]]:
    """What the others say."""
    command = ("train", str(recipe_file), "train.hang_seconds=4", *overrides, "--out", str(tmp_path / "run"))
    with Launch(n, run_command, command, on_rank(victim, at_step(5, fault)), errors=tmp_path / "errors") as launch:
        launch.wait_for_others(victim)
        codes, errors = launch.codes(0), launch.errors()
    assert [code for rank, code in enumerate(codes) if rank != victim] == [1] * (n - 1), launch.everything()
    return errors


@pytest.mark.parametrize(("victim", "fault"), [(0, hang), (0, die), (1, die)])
def test_one_of_two_is_named(recipe_file, tmp_path, victim, fault):
    ((rank, error),) = named(recipe_file, tmp_path, 2, victim, fault)
    assert rank == 1 - victim
    assert error.startswith(f"process {rank}: waits for process {victim}, which has ended or hangs (train.hang_seconds")


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("moment", ["_join", "Group", "_cpu_group"])
@pytest.mark.parametrize("fault", [hang, die])
def test_a_process_that_is_lost_while_all_join_costs_one_line(recipe_file, tmp_path, victim, moment, fault):
    command = ("train", str(recipe_file), "train.hang_seconds=4", "--out", str(tmp_path / "run"))
    faults = on_rank(victim, before_joining(moment, fault))
    with Launch(2, run_command, command, faults, errors=tmp_path / "errors") as launch:
        launch.wait_for_others(victim)
        assert launch.codes(0)[1 - victim] == 1, launch.stacks()
        ((rank, error),) = launch.errors()
    assert rank == 1 - victim
    assert error.startswith(f"process {rank}: waits for all processes to join, of which one has ended or hangs")


def test_others_wait_longer_than_that_for_what_the_first_process_does_alone(recipe_file, tmp_path):
    command = ("train", str(recipe_file), "train.hang_seconds=2", "--out", str(tmp_path / "run"))
    launched(2, run_command, command, on_rank(0, before_data(slow_start)), errors=tmp_path / "errors", codes=[0, 0])


def test_a_process_that_hangs_while_others_save_in_the_background_is_named(recipe_file, tmp_path):
    ((_, error),) = named(recipe_file, tmp_path, 2, 1, hang, "train.checkpoint_in_background=true")
    assert "waits for process 1" in error


def test_one_of_four_in_two_groups_is_named_by_the_rest(recipe_file, tmp_path):
    errors = named(recipe_file, tmp_path, 4, 2, hang)
    assert len(errors) == 3
    assert all("process 2, which has ended" in error for _, error in errors), errors
