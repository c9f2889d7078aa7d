"""The place of each run among all, and the time left for all."""

from types import SimpleNamespace

import pytest
from tiny_sweeps import Heard

from widthwise.experiments import scheduler
from widthwise.experiments.scheduler import Eta
from widthwise.training.observer import Observer


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(seconds=50.0)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    return clock


def advance(run: Observer, clock, step: int, seconds: float) -> None:
    clock.seconds += seconds
    run.record({"event": "train", "step": step})
    run.step_done(step)


FLOPS = {"a1": 1000.0, "b1": 6000.0, "a2": 1000.0, "b2": 6000.0}  # of 10 steps, of 20, of 10, of 20


def test_remaining_flops_take_as_long_as_at_the_mean_rate_of_steps(clock) -> None:
    """Finished runs are counted and take no time."""
    heard = Heard()
    eta = Eta(FLOPS)
    with eta.at_work_on("a1", 100.0, heard, ["b1", "a2", "b2"], []) as run:
        run.starting("a", 0, 10)
        advance(run, clock, 4, 8.0)  # 2 seconds for each 100 FLOPs
        assert heard.left == [pytest.approx(6 * 2 + 10 * 2 + 2 * 20 * 6)]
        advance(run, clock, 10, 12.0)
    clock.seconds += 1000  # between runs
    with eta.at_work_on("b1", 300.0, heard, ["a2", "b2"], []) as run:
        run.starting("b", 0, 20)
        advance(run, clock, 5, 5.0)  # faster: the mean is 2500 FLOPs in 25 seconds
    assert heard.left[-1] == pytest.approx((15 * 300 + 1000 + 6000) / 100)
    with Eta(FLOPS).at_work_on("b2", 300.0, heard, [], []) as run:
        run.starting("b", 10, 20)  # resumed
        advance(run, clock, 15, 10.0)
    assert heard.left[-1] == pytest.approx(10)
    assert heard.names == ["run 1 of 4, a", "run 2 of 4, b", "run 4 of 4, b"]


def test_other_workers_share_what_is_left(clock) -> None:
    heard = Heard()
    eta = Eta(FLOPS)
    with eta.at_work_on("a1", 100.0, heard, ["a2", "b2"], ["b1"]) as run:
        run.starting("a", 0, 10)
        advance(run, clock, 5, 10.0)
        assert heard.left == [pytest.approx((10 + 20 + 20 * 6 + 20 * 6 / 2) / 2)]
    with eta.at_work_on("a2", 100.0, heard, [], ["b1", "b2", "a1"]) as run:
        run.starting("a", 0, 10)
        advance(run, clock, 1, 2.0)
    assert heard.left[-1] >= 9 * 2  # its own steps are made by nobody else
