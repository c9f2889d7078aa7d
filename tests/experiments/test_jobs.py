"""Several trainings at the same time: the same results, what stops one or all of them, and the time left for all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tiny_runs import tiny_recipe, without_measurements
from tiny_sweeps import recipe_file

from widthwise.experiments import scheduler
from widthwise.experiments.compare import read_plan
from widthwise.experiments.jobs import Jobs, ProcessGroup, Run
from widthwise.experiments.matching import Point
from widthwise.experiments.plan import Comparison
from widthwise.experiments.running import run_experiment
from widthwise.experiments.scheduler import RunPolicy, Schedule, train_all
from widthwise.mistakes import RunFailed, UserError
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.train import launched_processes
from widthwise.training.launch import watch_signals
from widthwise.training.observer import Observer, SilentObserver

COMPARE = {"match": "none", "seeds": [1, 2], "variants": {"a": {}, "b": {"model": {"d_model": 24}}}}


def records(folder: Path) -> dict[str, list[dict[str, object]]]:
    """Run -> its records without the measured ones."""
    return {
        str(path.parent.relative_to(folder)): [without_measurements(record) for record in RunDir(path.parent).metrics()]
        for path in folder.glob("runs/*/metrics.jsonl")
    }


def listener() -> Mock:
    """An observer that remembers its calls, also those that processes make."""
    observer = Mock(spec=Observer)
    observer.for_parallel_run.return_value = observer
    return observer


def first_arguments(method: Mock) -> list[Any]:
    return [call.args[0] for call in method.call_args_list]


def test_results_are_the_same_however_many_go_on_at_a_time(tmp_path: Path) -> None:
    plan = read_plan([recipe_file(tmp_path, compare=COMPARE)])
    runs = ("a-seed1", "b-seed1", "a-seed2", "b-seed2")
    one_by_one, at_once = listener(), listener()
    alone = run_experiment(plan, tmp_path / "one", "command", one_by_one, jobs=Jobs(1, 1))
    together = run_experiment(plan, tmp_path / "two", "command", at_once, jobs=Jobs(2, 1))
    assert records(tmp_path / "one") == records(tmp_path / "two")
    assert [each.val_loss for each in alone.variants] == [each.val_loss for each in together.variants]
    names = [f"run {number} of 4, {run}" for number, run in enumerate(runs, 1)]
    assert first_arguments(one_by_one.starting) == sorted(first_arguments(at_once.starting)) == names
    seconds_left = first_arguments(one_by_one.remaining)
    assert (len(seconds_left), min(seconds_left) >= 0) == (4 * 4, True)
    stages = [stage for stage, _ in groupby(first_arguments(at_once.preparing))]
    assert stages.count("checking the data") == 1


def wait_until(is_so: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.01)


Work = Callable[[Path, Observer], None]


def crash(mark: Path, observer: Observer) -> None:
    os._exit(7)


def wait_for_the_signal(mark: Path, observer: Observer) -> None:
    """Says that it is at work, and what it was stopped by."""
    with watch_signals() as watch:
        mark.write_text("at work")
        wait_until(lambda: watch.received)
    mark.write_text(f"signal {watch.received}")


def fail_beside(mark: Path, observer: Observer) -> None:
    wait_until(mark.exists)
    raise RunFailed("diverged")


def talk(mark: Path, observer: Observer) -> None:
    for _ in range(1000):
        observer.message("at work")
        time.sleep(0.05)


@dataclass(frozen=True)
class Task(Run):
    """A run that is no training."""

    work: Work = crash
    mark: Path = Path()

    def train(self, observer: Observer | None = None, data_cache: object = None) -> None:
        self.work(self.mark, observer)


def do_all(*works: Work, mark: Path = Path(), observer: Observer | None = None) -> None:
    """Do the works, two at a time."""
    recipe = tiny_recipe()
    tasks = [Task(mark.parent / str(i), recipe, str(i), work, mark) for i, work in enumerate(works)]
    with launched_processes(recipe.train) as processes:
        schedule = Schedule(tasks, observer or SilentObserver(), RunPolicy())
        train_all(schedule, ProcessGroup(processes), Jobs(2, 1), "comparison")


def test_a_failure_stops_the_others_by_a_signal_and_is_what_is_raised(tmp_path: Path) -> None:
    """Of a process that dies, with its code."""
    with pytest.raises(RunFailed, match="ended with code 7"):
        do_all(crash, mark=tmp_path / "mark")
    with pytest.raises(RunFailed, match="diverged"):
        do_all(wait_for_the_signal, fail_beside, crash, mark=tmp_path / "mark")
    assert (tmp_path / "mark").read_text() == f"signal {signal.SIGTERM.value}"


@pytest.mark.hard
def test_a_signal_stops_all_with_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    path, out = recipe_file(tmp_path, compare=COMPARE), tmp_path / "out"
    options = ["train.steps=4000", "train.checkpoint_every=null", "--jobs", "2", "--out", str(out)]
    command = [sys.executable, "-m", "widthwise", "compare", str(path), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: sum(len(steps) > 2 for steps in records(out).values()) == 2, seconds=120)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, said
    assert "2 runs stopped, each with a checkpoint; the same command resumes the comparison" in said.splitlines()[-1]
    states = [json.loads(path.read_text()) for path in out.glob("runs/*/checkpoints/*/state.json")]
    assert [0 < state["step"] < 4000 for state in states] == [True, True]


def test_threads_depend_on_the_recipes_alone_and_under_torchrun_it_is_one_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path, n_cores = recipe_file(tmp_path), len(os.sched_getaffinity(0))

    def plan(*recipes: Recipe, n_seeds: int = 9) -> Comparison:
        points = {str(i): Point(str(i), recipe) for i, recipe in enumerate(recipes)}
        return Comparison(title="t", points=points, seeds=tuple(range(n_seeds)))

    small, long = load_recipe(path), load_recipe(path, ["train.steps=1000000"])
    large = load_recipe(path, ["model.d_model=4096", "model.n_layers=24", "train.batch_size=64"])
    assert Jobs.of(plan(small)) == Jobs.of(plan(small), 1) == Jobs(1, 1)  # it takes no time
    assert Jobs.of(plan(long)) == Jobs(n_cores, 1)
    assert Jobs.of(plan(small), 3) == Jobs(3, 1)
    assert Jobs.of(plan(small, n_seeds=2), 3) == Jobs(2, 1)
    assert Jobs.of(plan(small, large)) == Jobs(1, n_cores)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert Jobs.of(plan(small), 2) == Jobs(2, 5)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Jobs.of(plan(small)) == Jobs()
    with pytest.raises(UserError, match="--jobs: got 2"):
        Jobs.of(plan(small), 2)


def test_workers_whose_first_process_is_killed_end_and_say_nothing() -> None:
    script = (
        f"import os, sys; sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}\n"
        "from test_jobs import *\n"
        "class Last(SilentObserver):\n"
        "    def message(self, text): os.kill(os.getpid(), signal.SIGKILL)\n"
        "    def for_parallel_run(self): return self\n"
        "if __name__ == '__main__': do_all(talk, talk, observer=Last())\n"
    )
    process = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=300)
    assert (process.returncode, process.stderr) == (-signal.SIGKILL, "")


STEPS = {"a1": 10, "b1": 20, "a2": 10, "b2": 20}
FLOPS_PER_STEP = {"a": 100.0, "b": 300.0}


class Experiment:
    """Four runs that are trained by advancing a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.seconds = 50.0
        monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: self.seconds))
        self.observer = listener()
        recipes: dict[str, Any] = {
            name: SimpleNamespace(training_flops=steps * FLOPS_PER_STEP[name[0]], train=SimpleNamespace(steps=steps))
            for name, steps in STEPS.items()
        }
        runs = [Run(folder / name, recipe, name) for name, recipe in recipes.items()]
        self.schedule = Schedule(runs, self.observer, RunPolicy())

    def train(self, *steps_and_seconds: tuple[int, float], start: int = 0) -> list[float]:
        """Train the next run up to these steps, and return the time left after each."""
        run = self.schedule.next()
        observer = self.schedule.observer_of(run, self.observer)
        observer.starting(run.name, start, STEPS[run.name])
        for step, seconds in steps_and_seconds:
            self.seconds += seconds
            observer.record({"event": "train", "step": step})
        self.schedule.ended(run, None)
        return first_arguments(self.observer.remaining)[-len(steps_and_seconds) :]


def test_remaining_flops_take_as_long_as_at_the_mean_rate_of_steps(tmp_path: Path, monkeypatch) -> None:
    experiment = Experiment(tmp_path, monkeypatch)
    first, _ = experiment.train((4, 8.0), (10, 12.0))  # 2 seconds for each 100 FLOPs
    assert first == pytest.approx(6 * 2 + 10 * 2 + 2 * 20 * 6)
    experiment.seconds += 1000  # between runs
    assert experiment.train((5, 5.0)) == [pytest.approx((15 * 300 + 1000 + 6000) / 100)]  # 2500 FLOPs in 25 seconds
    assert first_arguments(experiment.observer.starting) == ["run 1 of 4, a1", "run 2 of 4, b1"]


def test_finished_runs_take_no_time_and_a_resumed_one_only_its_rest(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(RunDir, "has_result", property(lambda run: run.path.name != "a1"))
    assert Experiment(tmp_path, monkeypatch).train((8, 10.0), start=4) == [pytest.approx(2 * 2.5)]


def test_other_workers_share_what_is_left(tmp_path: Path, monkeypatch) -> None:
    held = {"a1"}
    monkeypatch.setattr(RunDir, "is_in_use", property(lambda run: run.path.name in held))
    experiment = Experiment(tmp_path, monkeypatch)
    (left,) = experiment.train((5, 10.0))  # 2 seconds for each 300 FLOPs
    assert left == pytest.approx((15 * 300 + 1000 + 6000 + 1000 / 2) / 150 / 2)
    held.add("a2")
    assert experiment.train((1, 2.0)) == [pytest.approx(19 * 2)]  # its own steps are made by nobody else
