"""The place of each run among all, and the time left for all."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tiny_runs import TINY

from widthwise.experiments import agenda as agenda_module
from widthwise.experiments.agenda import Agenda, Work
from widthwise.experiments.compare import run_plan
from widthwise.experiments.plan import read_plan
from widthwise.experiments.sweep.plan import read_sweep
from widthwise.experiments.sweep.worker import run_sweep
from widthwise.training.observer import Observer, Silence


class Heard(Silence):
    def __init__(self):
        self.names: list[str] = []
        self.left: list[float] = []

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self.names.append(name)

    def remaining(self, seconds: float) -> None:
        self.left.append(seconds)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(seconds=50.0)
    monkeypatch.setattr(agenda_module, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    return clock


def advance(run: Observer, clock, step: int, seconds: float) -> None:
    clock.seconds += seconds
    run.record({"event": "train", "step": step})
    run.step_done(step)


WORKS = {"a1": Work(100.0, 10), "b1": Work(300.0, 20), "a2": Work(100.0, 10), "b2": Work(300.0, 20)}


def test_what_was_not_measured_takes_as_long_as_its_flops_say(clock) -> None:
    heard = Heard()
    with Agenda(heard, WORKS).at_work_on("a1", ["b1", "a2", "b2"]) as run:
        run.starting("a", 0, 10)
        advance(run, clock, 4, 8.0)  # 2 seconds for each 100 FLOPs
    assert heard.left == [pytest.approx(6 * 2 + 10 * 2 + 2 * 20 * 6)]


def test_what_was_measured_takes_as_long_again(clock) -> None:
    heard = Heard()
    agenda = Agenda(heard, WORKS)
    with agenda.at_work_on("a1", ["b1", "a2", "b2"]) as run:
        run.starting("a", 0, 10)
        advance(run, clock, 10, 20.0)
    clock.seconds += 1000  # between runs
    with agenda.at_work_on("b1", ["a2", "b2"]) as run:
        run.starting("b", 0, 20)
        advance(run, clock, 5, 5.0)  # faster than its FLOPs say
    assert heard.left[-1] == pytest.approx(15 * 1 + 10 * 2 + 20 * 1)
    assert heard.names == ["run 1 of 4, a", "run 2 of 4, b"]


def test_steps_of_an_earlier_process_are_not_measured(clock) -> None:
    heard = Heard()
    with Agenda(heard, WORKS).at_work_on("a2", []) as run:
        run.starting("a", 6, 10)
        advance(run, clock, 8, 6.0)
        assert heard.left == [pytest.approx(2 * 3)]
        run.starting("a", 7, 10)  # it went back
        advance(run, clock, 8, 3.0)
    assert heard.left[-1] == pytest.approx(2 * 3)


def test_finished_runs_are_counted_and_take_no_time(clock) -> None:
    heard = Heard()
    with Agenda(heard, WORKS).at_work_on("b2", []) as run:
        run.starting("b", 0, 20)
        advance(run, clock, 10, 10.0)
    assert heard.names == ["run 4 of 4, b"]
    assert heard.left == [pytest.approx(10)]


def test_other_workers_share_what_is_left(clock) -> None:
    heard = Heard()
    agenda = Agenda(heard, WORKS)
    with agenda.at_work_on("a1", ["a2", "b2"], [["b1"]]) as run:
        run.starting("a", 0, 10)
        advance(run, clock, 5, 10.0)
        assert heard.left == [pytest.approx((10 + 20 + 20 * 6 + 20 * 6 / 2) / 2)]
    with agenda.at_work_on("a2", [], [["b1"], ["b2"], ["a1"]]) as run:
        run.starting("a", 0, 10)
        advance(run, clock, 1, 2.0)
    assert heard.left[-1] >= 9 * 2  # its own steps are made by nobody else


def test_runs_at_the_same_time_share_what_is_left(clock) -> None:
    heard = Heard()
    agenda = Agenda(heard, WORKS)
    with agenda.at_work_on("a1", ["b1", "a2", "b2"]) as first, agenda.at_work_on("b1", ["a2", "b2"]) as second:
        first.starting("a", 0, 10)
        second.starting("b", 0, 20)
        advance(first, clock, 5, 10.0)
        advance(second, clock, 5, 20.0)  # both took 30 seconds for 5 steps by now
        own = 5 * 6 + 15 * 6
        assert heard.left[-1] == pytest.approx((own + 10 * 6 + 20 * 6) / 2)


BASE = {
    "model": {"vocab_size": 257, "d_model": 16, "n_layers": 1, "attention": {"head_dim": 8}},
    **TINY,
    "train": {"steps": 2, "batch_size": 2, "precision": "fp32", "log_every": 1, "validation_tokens": 240},
}


def test_a_comparison_counts_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    compare = {"match": "none", "seeds": [1, 2], "variants": {"a": {}, "b": {"model": {"d_model": 24}}}}
    path.write_text(yaml.safe_dump({**BASE, "compare": compare}))
    heard = Heard()
    run_plan(read_plan([path]), tmp_path / "out", "command", heard)
    assert heard.names == [
        "run 1 of 4, a-seed1",
        "run 2 of 4, b-seed1",
        "run 3 of 4, a-seed2",
        "run 4 of 4, b-seed2",
    ]
    assert len(heard.left) == 8
    assert all(seconds >= 0 for seconds in heard.left)


def test_a_sweep_counts_its_runs_over_seeds(tmp_path: Path) -> None:
    path = tmp_path / "lr.yaml"
    path.write_text(yaml.safe_dump({**BASE, "sweep": {"over": {"optimizer.lr": [0.01, 0.02]}, "seeds": [1, 2]}}))
    heard = Heard()
    run_sweep(read_sweep(path), tmp_path / "out", "command", observer=heard)
    assert [name.split(",")[0] for name in heard.names] == [f"run {number} of 4" for number in (1, 2, 3, 4)]
    assert len(heard.left) == 8
