import io

import pytest
from rich.console import Console

from widthwise.cli import progress as progress_module
from widthwise.cli.progress import shown_progress


class Clock:
    def __init__(self):
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def test_lines_show_the_rate_and_the_time_left_of_each_stage(clock):
    written = io.StringIO()
    with shown_progress(Console(file=written, width=80)) as observer:
        observer.preparing("reading", 0, None)
        clock.seconds += 10
        observer.preparing("reading", 30_000_000, None)
        observer.preparing("tokenizing", 2_000_000, 100_000_000)  # of an earlier process
        clock.seconds += 7
        observer.preparing("tokenizing", 16_000_000, 100_000_000)
        observer.preparing("tokenizing", 17_000_000, 100_000_000)  # too soon for another line
    assert written.getvalue().splitlines() == [
        "reading: 0.0 MB",
        "reading: 30.0 MB  3.0 MB/s",
        "tokenizing: 2.0 of 100.0 MB",
        "tokenizing: 16.0 of 100.0 MB  2.0 MB/s  0:00:42 left",
    ]


def test_a_bar_shows_the_rate(clock):
    written = io.StringIO()
    with shown_progress(Console(file=written, width=120, force_terminal=True)) as observer:
        observer.preparing("tokenizing", 0, 100_000_000)
        clock.seconds += 4
        observer.preparing("tokenizing", 50_000_000, 100_000_000)
    assert "MB  12.5 MB/s" in written.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_a_run_does_about_spikes_is_a_line_each_and_norms_are_none(is_terminal):
    written = io.StringIO()
    with shown_progress(Console(file=written, width=120, force_terminal=is_terminal)) as observer:
        observer.starting("x", 0, 9)
        observer.record({"step": 5, "event": "norms", "grad_norms": [1.25]})
        observer.record({"step": 5, "event": "skipped", "loss": None, "grad_norm": None})
        observer.record({"step": 6, "event": "skipped", "loss": 3.5, "grad_norm": 81.25})
        observer.record({"step": 4, "event": "rewound", "from_step": 7, "reason": "loss nan, gradient norm nan"})
    text = written.getvalue()
    for line in (
        "skipped, gradient norm not finite",
        "skipped, gradient norm 81.25",
        "went back from step 7: loss nan, gradient norm nan",
    ):
        assert line in text
    assert "1.25]" not in text


RECORD = {"event": "train", "step": 20, "loss": 2.5, "lr": 0.01, "tokens_per_second": 1000.0, "step_seconds": 0.5}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_lines_and_bar_show_when_all_runs_end(is_terminal, clock):
    written = io.StringIO()
    with shown_progress(Console(file=written, width=220, force_terminal=is_terminal)) as observer:
        observer.starting("run 2 of 3, x-seed1", 0, 30)
        observer.step_done(20)
        observer.remaining(3723)
        observer.record(RECORD)
    assert "run 2 of 3, x-seed1" in written.getvalue()
    assert "all runs: 1:02:03 left, until " in written.getvalue()


def test_a_run_alone_says_nothing_of_others(clock):
    written = io.StringIO()
    with shown_progress(Console(file=written, width=220)) as observer:
        observer.starting("x", 0, 30)
        observer.record(RECORD)
    assert written.getvalue().splitlines() == [
        "x: step 20/30  train loss 2.5000  lr 0.01  1,000 tokens/s  0:00:05 left"
    ]
