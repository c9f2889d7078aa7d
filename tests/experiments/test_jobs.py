"""Several trainings at the same time: the same results, what stops one or all of them, and the time left for all."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_runs import tiny_recipe, without_measurements
from tiny_sweeps import Heard, recipe_file

from widthwise.experiments import scheduler
from widthwise.experiments.compare import read_plan
from widthwise.experiments.jobs import Jobs, ProcessGroup, Run
from widthwise.experiments.running import run_experiment
from widthwise.experiments.scheduler import RunPolicy, Schedule, train_all
from widthwise.mistakes import RunFailed, UserError
from widthwise.recipe.recipe import load_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.train import launched_processes
from widthwise.training.observer import Observer, SilentObserver

COMPARE = {"match": "none", "seeds": [1, 2], "variants": {"a": {}, "b": {"model": {"d_model": 24}}}}


def records(folder: Path) -> dict[str, list[dict[str, object]]]:
    """Run -> its records without the measured ones."""
    return {
        str(path.parent.relative_to(folder)): [without_measurements(record) for record in RunDir(path.parent).metrics()]
        for path in folder.glob("runs/*/metrics.jsonl")
    }


def test_results_are_the_same_however_many_go_on_at_a_time(tmp_path: Path) -> None:
    plan = read_plan([recipe_file(tmp_path, compare=COMPARE)])
    runs = ("a-seed1", "b-seed1", "a-seed2", "b-seed2")
    one_by_one, at_once = Heard(), Heard()
    alone = run_experiment(plan, tmp_path / "one", "command", one_by_one, jobs=Jobs(1, 1))
    together = run_experiment(plan, tmp_path / "two", "command", at_once, jobs=Jobs(2, 1))
    assert records(tmp_path / "one") == records(tmp_path / "two")
    assert [each.val_loss for each in alone.variants] == [each.val_loss for each in together.variants]
    names = [f"run {number} of 4, {run}" for number, run in enumerate(runs, 1)]
    assert one_by_one.names == sorted(at_once.names) == names
    assert len(one_by_one.left) == 4 * 4
    assert all(seconds >= 0 for seconds in one_by_one.left)
    assert at_once.stages.count("checking the data") == 1


@dataclass(frozen=True)
class Task(Run):
    """A run that is no training: it does what is under its name in the tests."""

    mark: Path = Path()

    def train(self, observer: Observer | None = None, data_cache: object = None) -> None:
        work = {"crash": crash, "fail_beside": fail_beside, "talk": talk}.get(self.name, wait_for_the_signal)
        work(self.mark, observer)


def do_all(*names: str, mark: Path = Path(), observer: Observer | None = None) -> None:
    recipe = tiny_recipe()
    tasks = [Task(mark.parent / "nothing" / name, recipe, name, mark=mark) for name in names]
    with launched_processes(recipe.train) as processes:
        schedule = Schedule(tasks, observer or SilentObserver(), RunPolicy())
        train_all(schedule, ProcessGroup(processes), Jobs(2, 1), "comparison")


def crash(mark: Path, observer: Observer) -> None:
    os._exit(7)


def wait_for_the_signal(mark: Path, observer: Observer) -> None:
    """Says that it is at work, and what it was stopped by."""
    from widthwise.training.launch import watch_signals

    with watch_signals() as watch:
        mark.write_text("at work")
        until = time.monotonic() + 60
        while watch.received is None and time.monotonic() < until:
            time.sleep(0.01)
    mark.write_text(f"signal {watch.received}")


def fail_beside(mark: Path, observer: Observer) -> None:
    until = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.01)
    raise RunFailed("diverged")


def talk(mark: Path, observer: Observer) -> None:
    for _ in range(1000):
        observer.message("at work")
        time.sleep(0.05)


def test_a_failure_stops_the_others_by_a_signal_and_is_what_is_raised(tmp_path: Path) -> None:
    """Of a process that dies, with its code."""
    with pytest.raises(RunFailed, match="ended with code 7"):
        do_all("crash", mark=tmp_path / "mark")
    with pytest.raises(RunFailed, match="diverged"):
        do_all("waits", "fail_beside", "never", mark=tmp_path / "mark")
    assert (tmp_path / "mark").read_text() == f"signal {signal.SIGTERM.value}"


@pytest.mark.hard
def test_a_signal_stops_all_with_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    path, out = recipe_file(tmp_path, compare=COMPARE), tmp_path / "out"
    options = ["train.steps=4000", "train.checkpoint_every=null", "--jobs", "2", "--out", str(out)]
    command = [sys.executable, "-m", "widthwise", "compare", str(path), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 120
    while len([found for found in records(out).values() if len(found) > 2]) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, said
    last = [line for line in said.splitlines() if line][-1]
    assert "2 runs stopped, each with a checkpoint; the same command resumes the comparison" in last
    runs = [out / "runs" / "a-seed1", out / "runs" / "b-seed1"]
    assert all(list((run / "checkpoints").iterdir()) for run in runs)
    states = [json.loads(next((run / "checkpoints").glob("*/state.json")).read_text()) for run in runs]
    assert all(0 < state["step"] < 4000 for state in states)


def test_threads_depend_on_the_recipes_alone_and_under_torchrun_it_is_one_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path, n_cores = recipe_file(tmp_path), len(os.sched_getaffinity(0))
    small = load_recipe(path)
    large = load_recipe(path, ["model.d_model=4096", "model.n_layers=24", "train.batch_size=64"])
    assert {Jobs.of([small], 9, asked).n_threads for asked in (None, 1, 2, 3)} == {1}
    assert Jobs.of([small], 9).n == 1  # it takes no time
    assert Jobs.of([load_recipe(path, ["train.steps=1000000"])], 9).n == n_cores
    assert Jobs.of([small], 9, 3).n == 3
    assert Jobs.of([small], 2, 3).n == 2
    assert Jobs.of([small, large], 9) == Jobs(1, n_cores)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert Jobs.of([small], 9, 2) == Jobs(2, 5)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Jobs.of([small], 9) == Jobs()
    with pytest.raises(UserError, match="--jobs: got 2"):
        Jobs.of([small], 9, 2)


def test_workers_whose_first_process_is_killed_end_and_say_nothing() -> None:
    script = (
        f"import os, sys; sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}\n"
        "from test_jobs import *\n"
        "class Last(SilentObserver):\n"
        "    def message(self, text): os.kill(os.getpid(), signal.SIGKILL)\n"
        "    def beside(self): return self\n"
        "if __name__ == '__main__': do_all('talk', 'talk', observer=Last())\n"
    )
    process = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=300)
    assert (process.returncode, process.stderr) == (-signal.SIGKILL, "")


STEPS = {"a1": 10, "b1": 20, "a2": 10, "b2": 20}
FLOPS_PER_STEP = {"a": 100.0, "b": 300.0}


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(seconds=50.0)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    return clock


class Experiment:
    """Four runs that are trained by advancing a clock."""

    def __init__(self, folder: Path, clock: Any):
        self.clock = clock
        self.heard = Heard()
        recipes: dict[str, Any] = {
            name: SimpleNamespace(training_flops=steps * FLOPS_PER_STEP[name[0]], train=SimpleNamespace(steps=steps))
            for name, steps in STEPS.items()
        }
        runs = [Run(folder / name, recipe, name) for name, recipe in recipes.items()]
        self.schedule = Schedule(runs, self.heard, RunPolicy())

    def train(self, *steps_and_seconds: tuple[int, float], start: int = 0) -> list[float]:
        """Train the next run up to these steps, and return the time left after each."""
        run = self.schedule.next()
        observer = self.schedule.observer_of(run, self.heard)
        observer.starting(run.name, start, STEPS[run.name])
        for step, seconds in steps_and_seconds:
            self.clock.seconds += seconds
            observer.record({"event": "train", "step": step})
        self.schedule.ended(run, None)
        return self.heard.left[-len(steps_and_seconds) :]


def test_remaining_flops_take_as_long_as_at_the_mean_rate_of_steps(clock, tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, clock)
    first, _ = experiment.train((4, 8.0), (10, 12.0))  # 2 seconds for each 100 FLOPs
    assert first == pytest.approx(6 * 2 + 10 * 2 + 2 * 20 * 6)
    clock.seconds += 1000  # between runs
    assert experiment.train((5, 5.0)) == [pytest.approx((15 * 300 + 1000 + 6000) / 100)]  # 2500 FLOPs in 25 seconds
    assert experiment.heard.names == ["run 1 of 4, a1", "run 2 of 4, b1"]


def test_finished_runs_take_no_time_and_a_resumed_one_only_its_rest(clock, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(RunDir, "has_result", property(lambda run: run.path.name != "a1"))
    assert Experiment(tmp_path, clock).train((8, 10.0), start=4) == [pytest.approx(2 * 2.5)]


def test_other_workers_share_what_is_left(clock, tmp_path: Path, monkeypatch) -> None:
    held = {"a1"}
    monkeypatch.setattr(RunDir, "is_in_use", property(lambda run: run.path.name in held))
    experiment = Experiment(tmp_path, clock)
    (left,) = experiment.train((5, 10.0))  # 2 seconds for each 300 FLOPs
    assert left == pytest.approx((15 * 300 + 1000 + 6000 + 1000 / 2) / 150 / 2)
    held.add("a2")
    assert experiment.train((1, 2.0)) == [pytest.approx(19 * 2)]  # its own steps are made by nobody else
