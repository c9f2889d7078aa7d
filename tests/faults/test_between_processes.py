"""Whatever goes wrong in one process reaches the others, as the same error, and none of them waits for hours."""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ranks import launched
from tiny_runs import step_config

from widthwise.mistakes import UserError
from widthwise.run_dir import RunInUse
from widthwise.training.processes import Processes


class TwoArguments(Exception):
    """Cannot be unpickled: pickle calls the class with the message alone."""

    def __init__(self, path: str, line: int):
        super().__init__(f"{path}, line {line}")


class HoldsAFile(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a file")
        self.file = open(os.devnull)  # noqa: SIM115


def raises(error: Exception) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


def of_rank(rank: int, work: Callable[[], Any], processes: Processes) -> Any:
    return work() if processes.rank == rank else processes.rank


UNLUCKY = {
    "a user error": (raises(UserError("data.corpus: got 3")), "UserError: data.corpus: got 3"),
    "a run in use": (raises(RunInUse("run: is in use")), "RunInUse: run: is in use"),
    "an error that cannot be unpickled": (raises(TwoArguments("run", 3)), "RuntimeError: TwoArguments: run, line 3"),
    "an error that cannot be pickled": (raises(HoldsAFile()), "RuntimeError: HoldsAFile: holds a file"),
    "a value that cannot be pickled": (lambda: lambda: None, "Can't pickle"),
}
"""What one process does, and what all must raise."""
N = 3


def calls(processes: Processes) -> dict[str, Callable[[], Any]]:
    """What all processes call, each to raise."""
    first = {f"{name}, first": partial(processes.on_rank_zero, work) for name, (work, _) in UNLUCKY.items()}
    together = {
        f"{name}, {rank}": partial(processes.all_gather, partial(of_rank, rank, work, processes))
        for name, (work, _) in UNLUCKY.items()
        for rank in range(N)
    }
    return first | together


def observe(folder: Path) -> None:
    """Writes down what each call raised in this process, and how many processes were ready to leave when it left."""
    from widthwise.training.distributed import group

    with group(step_config(shards=1)) as processes:
        found: dict[str, Any] = {}
        for name, call in calls(processes).items():
            try:
                found[name] = f"no error: {call()}"
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}".partition(" at 0x")[0]
        values = processes.all_gather(lambda: processes.rank), processes.on_rank_zero(lambda: processes.rank)
        found["values"] = str(values)
        time.sleep(0.5 * processes.rank)
        (folder / f"{processes.rank} is ready").touch()
    found["ready when it left"] = len(list(folder.glob("* is ready")))
    (folder / f"{processes.rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def observed(tmp_path_factory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("observed")
    launched(N, observe, folder, errors=folder, codes=[0] * N)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(N)]


@pytest.mark.parametrize("name", UNLUCKY)
def test_every_process_gets_the_same_error_or_the_same_values(observed, name):
    for where in ("first", *range(N)):
        (found,) = {each[f"{name}, {where}"] for each in observed}
        assert UNLUCKY[name][1] in found
    assert {each["values"] for each in observed} == {"([0, 1, 2], 0)"}


def test_no_process_leaves_while_another_may_wait_for_its_message(observed):
    assert [each["ready when it left"] for each in observed] == [N] * N
