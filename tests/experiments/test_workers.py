"""Workers that share a folder, some of which are killed, and a worker of two processes."""

import json
import multiprocessing
import os
import signal
import threading
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NoReturn

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from ranks import command_in, launched, prepare, start_server
from tiny_runs import tiny_recipe
from tiny_sweeps import recipe_file

from widthwise.__main__ import handle_signals, stop
from widthwise.experiments.compare import read_plan
from widthwise.experiments.jobs import ProcessGroup
from widthwise.experiments.recipes import read_all
from widthwise.experiments.running import run_experiment
from widthwise.experiments.sweep import STUDY_FILE
from widthwise.mistakes import UserError
from widthwise.run_dir import RunDir
from widthwise.runs.train import launched_processes
from widthwise.training.launch import Interrupted
from widthwise.training.observer import SilentObserver

pytestmark = pytest.mark.hard

TIME_KEYS = {"checksums", "created", "command", "environment", "study", "shares_machine"}
TIME_KEYS |= {"tokens_per_second", "wall_seconds", "peak_memory_bytes"}
SWEEP = {"sweep": {"baseline": {}, "over": {"optimizer.lr": [0.002, 0.03]}, "seeds": [4, 7]}}
COMPARISON = {"compare": {"seeds": [4, 7], "variants": {"plain": {}, "slow": {"optimizer": {"lr": 0.002}}}}}


class Killer(SilentObserver):
    """Kills its process after a number of steps, over all runs."""

    def __init__(self, n_steps: int):
        self._left = n_steps

    def step_done(self, step: int) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Survivor(SilentObserver):
    """Leaves work to those that will be killed, however late they are."""

    def __init__(self, are_dead: Event):
        self._are_dead = are_dead

    def step_done(self, step: int) -> None:
        self._are_dead.wait()


def work(recipe: Path, folder: Path, n_steps: int, are_dead: Event) -> None:
    prepare(recipe.with_name("printed.txt"))
    run_experiment(read_all(recipe), folder, "widthwise", Killer(n_steps) if n_steps else Survivor(are_dead))


def check_killed_workers(recipe: Path, *kill_after: tuple[int, ...]) -> Path:
    """Return the folder of an experiment by workers, after a check that it is as one alone leaves it, undisturbed.

    kill_after: steps after which each worker is killed, 0: never; those of one tuple begin at once.
    """
    alone, shared = (recipe.with_name(name) / "out" for name in ("alone", "shared"))  # the title is the folder's name
    run_experiment(read_all(recipe), alone, "widthwise")
    start_server()
    context = multiprocessing.get_context("forkserver")
    for together in kill_after:
        are_dead = context.Event()
        workers = [context.Process(target=work, args=(recipe, shared, n_steps, are_dead)) for n_steps in together]
        for worker in workers:
            worker.start()
        for worker, n_steps in zip(workers, together):
            if n_steps:
                worker.join()
        are_dead.set()
        for worker in workers:
            worker.join()
        expected = [-signal.SIGKILL if n_steps else 0 for n_steps in together]
        assert [worker.exitcode for worker in workers] == expected, recipe.with_name("printed.txt").read_text()
    one, other = (json.loads((folder / "outcome.json").read_text()) for folder in (alone, shared))
    assert without_times(other) == without_times(one)
    assert steps_of(shared) == steps_of(alone)
    return shared


def steps_of(folder: Path) -> dict[str, list[int]]:
    """Run -> the steps on its record."""
    return {
        path.parent.name: [record["step"] for record in RunDir(path.parent).metrics() if record["event"] == "train"]
        for path in folder.glob("runs/*/metrics.jsonl")
    }


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIME_KEYS}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def test_two_workers_of_a_comparison_one_of_them_killed(tmp_path: Path) -> None:
    check_killed_workers(recipe_file(tmp_path, **COMPARISON), (6, 0))


def test_after_many_kills_every_run_is_there_once_and_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Two workers at a time, both killed again and again, at other steps."""
    path = recipe_file(tmp_path, {"over": {"optimizer.lr": [0.001 * n for n in range(1, 26)]}, "seeds": [4]})
    check_killed_workers(path, (3, 4), (5, 2), (1, 6), (4, 4), (2, 7), (0,))


def test_workers_of_a_search_choose_every_point_once(tmp_path: Path) -> None:
    """The point of the one that is killed is taken over with its values."""
    section = {
        "over": {"optimizer.lr": {"low": 0.001, "high": 0.1, "log": True}},
        "seeds": [4],
        "search": {"sampler": "random", "n_trials": 4},
    }
    folder = check_killed_workers(recipe_file(tmp_path, section), (6, 0))
    storage = JournalStorage(JournalFileBackend(str(folder / STUDY_FILE)))
    trials = optuna.load_study(study_name="tiny", storage=storage).trials
    assert Counter(trial.state.name for trial in trials) == {"COMPLETE": 4}


def test_a_worker_may_be_several_processes(tmp_path: Path) -> None:
    """Both in a comparison and in a sweep the first process decides and prints."""
    pair, swept = recipe_file(tmp_path, name="pair", **COMPARISON), recipe_file(tmp_path, name="swept", **SWEEP)
    alone = run_experiment(read_plan([pair], ["train.batch_size=4"]), tmp_path / "alone", "widthwise compare")
    for path, verb in ((pair, "compare"), (swept, "sweep")):
        out = path.with_suffix("")
        arguments = [verb, str(path), "train.batch_size=4", "--out", str(out)]
        both = launched(2, command_in, tmp_path, *arguments, errors=tmp_path / f"{path.stem}_said", codes=[0, 0])
        assert both.everything().count(f"wrote {out / 'report.html'}") == 1
    found = json.loads((tmp_path / "pair" / "outcome.json").read_text())
    assert found["environment"]["n_processes"] == 2
    for together, one in zip(found["points"], alone["points"], strict=True):
        assert together["val_loss"]["per_seed"] == pytest.approx(one["val_loss"]["per_seed"], rel=1e-5)
    assert json.loads((tmp_path / "swept" / "outcome.json").read_text())["study"]["n_finished"] == 3


def be_one_of_a_group() -> None:
    handle_signals(stop)

    def refuse() -> NoReturn:
        raise UserError("nothing there")

    def wait() -> NoReturn:
        while True:
            group.wait(0.3)

    with launched_processes(tiny_recipe().train) as processes:
        group = ProcessGroup(processes)
        assert group.do(lambda: [3, 5]) == [3, 5]
        with pytest.raises(UserError, match="nothing there"):
            group.do(refuse)
        if os.environ["RANK"] == "1":  # the signal comes while this process waits for the first
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Interrupted, match="stopped before the next run"):
            group.do(wait)


def test_all_processes_of_a_worker_get_what_the_first_has_and_a_signal_to_any_ends_all(tmp_path: Path) -> None:
    launched(2, be_one_of_a_group, errors=tmp_path, codes=[0, 0])
