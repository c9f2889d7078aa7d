"""The place of each run among all, and the time left for all."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_sweeps import Heard

from widthwise.experiments import scheduler
from widthwise.experiments.jobs import Run
from widthwise.experiments.scheduler import RunPolicy, Schedule
from widthwise.run_dir import RunDir

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
