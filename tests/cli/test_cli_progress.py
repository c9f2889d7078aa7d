"""What a verb says while it works: lines in a log, a bar on a terminal."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from widthwise.cli import progress as progress_module
from widthwise.cli.progress import shown_progress


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    return clock


@contextmanager
def shown(width: int = 220, is_terminal: bool = False) -> Iterator[tuple[Any, io.StringIO]]:
    """An observer, and what it has written."""
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=is_terminal)
    with shown_progress(console) as observer:
        yield observer, written


def plain(written: io.StringIO) -> str:
    return re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", written.getvalue())


def test_lines_show_the_rate_and_the_time_left_of_each_stage(clock):
    with shown(80) as (observer, written):
        observer.preparing("reading", 1_000_000, None)
        clock.seconds += 10
        observer.preparing("reading", 31_000_000, None)
        observer.preparing("tokenizing", 2_000_000, 100_000_000)  # of an earlier process
        clock.seconds += 7
        observer.preparing("tokenizing", 16_000_000, 100_000_000)
        observer.preparing("tokenizing", 17_000_000, 100_000_000)  # too soon for another line
        clock.seconds += 3
        observer.preparing("tokenizing", 100_000_000, 100_000_000)
        observer.preparing("tokenizing", 100_000_000, 100_000_000)
    assert written.getvalue().splitlines() == [
        "reading: 31.0 MB  3.0 MB/s",
        "tokenizing: 16.0 of 100.0 MB  2.0 MB/s  0:00:42 left",
        "tokenizing: 100.0 of 100.0 MB  9.8 MB/s",
    ]


def test_nothing_is_said_of_what_is_soon_done(clock):
    """Again and again, as for the data of every run of an experiment."""
    with shown(80) as (observer, written):
        for run in range(3):
            for n_bytes in (0, 600_000, 12_700_000):
                observer.preparing("checking the data", n_bytes, 12_700_000)
                clock.seconds += 1
            observer.starting(f"x-seed{run}", 0, 30)
    assert written.getvalue() == ""


RECORD = {"event": "train", "step": 20, "loss": 2.5, "lr": 0.01, "tokens_per_second": 1000.0, "step_seconds": 0.5}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_lines_and_bars_show_stages_first_steps_spikes_and_the_end_of_all_runs_and_no_norms(is_terminal, clock):
    with shown(80, is_terminal) as (observer, written):
        observer.preparing("training the tokenizer", 0, None)
    assert "training the tokenizer" in written.getvalue()
    assert "MB" not in written.getvalue()
    with shown(120, is_terminal) as (observer, written):
        observer.starting("run 1 of 2, x", 0, 30)
        observer.record({"step": 5, "event": "norms", "grad_norms": [1.25]})
        observer.record({"step": 5, "event": "skipped", "loss": None, "grad_norm": None})
        observer.record({"step": 6, "event": "skipped", "loss": 3.5, "grad_norm": 81.25})
        observer.busy("step 1 running (compiling)")
    assert re.search("run 1 of 2, x(: | .* )step 1 running .compiling.", plain(written))
    assert re.findall("skipped, gradient norm (not finite|[\\d.]+)", written.getvalue()) == ["not finite", "81.25"]
    assert "1.25]" not in written.getvalue()
    with shown(220, is_terminal) as (observer, written):
        observer.starting("run 2 of 3, x-seed1", 0, 30)
        observer.step_done(20)
        observer.remaining(3723)
        observer.record(RECORD)
    assert "run 2 of 3, x-seed1" in written.getvalue()
    assert "all runs: 1:02:03 left, until " in written.getvalue()


def test_a_run_alone_says_nothing_of_others_and_other_work_is_counted_in_its_unit(clock):
    with shown() as (observer, written):
        observer.starting("x", 0, 30)
        observer.record(RECORD)
        observer.working("reading book.txt", 0, 4000, "tokens")
        clock.seconds += 10
        observer.working("reading book.txt", 1000, 4000, "tokens")
    assert written.getvalue().splitlines() == [
        "x: step 20/30  train loss 2.5000  lr 0.01  1,000 tokens/s  0:00:05 left",
        "reading book.txt: 1,000 of 4,000 tokens  100 tokens/s  0:00:30 left",
    ]


def test_a_bar_shows_the_rate_and_a_run_goes_on_in_its_own_after_other_work(clock):
    with shown(120, True) as (observer, written):
        observer.preparing("tokenizing", 0, 100_000_000)
        clock.seconds += 4
        observer.preparing("tokenizing", 50_000_000, 100_000_000)
    assert "50.0/100.0 MB  12.5 MB/s" in written.getvalue()
    with shown(120, True) as (observer, written):
        observer.starting("x", 0, 30)
        observer.working("reading tasks", 1, 7, "answers")
        observer.step_done(12)
    assert "12/30" in written.getvalue()


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with shown(220, True) as (observer, written):
        observer.starting("x", 0, 30)
        observer.record(RECORD)
    assert written.getvalue().startswith("x: step 20/30")


@pytest.mark.parametrize("width", [60, 120])
def test_a_bar_takes_one_line_of_the_terminal(width, clock):
    with shown(width, True) as (observer, written):
        observer.starting("run 12 of 18, a-variant-with-a-long-name-seed3", 0, 19080)
        observer.step_done(1200)
        observer.remaining(86400 * 3)
        observer.record({**RECORD, "mtp_losses": [2.75, 2.875, 3.0]})
    lines = [line for line in re.split("[\r\n]+", plain(written)) if line.strip()]
    assert lines[-1].startswith("all runs: 72:00:00 left")
    assert "1,200/19,080" in lines[-2]
    assert "tokens/s" in lines[-2] or width < 80
    assert max(map(len, lines)) <= width
