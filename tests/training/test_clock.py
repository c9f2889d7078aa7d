"""A clock that is set, or files that carry other times, change nothing of a run."""

import itertools
import os
import time
from pathlib import Path

from tiny_runs import outcome, records, tiny_recipe, unfinished_copy

from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train
from widthwise.training.checkpoint_folder import checkpoint_paths, step_of

YEAR = 365 * 24 * 3600.0


def test_measured_times_are_those_of_a_clock_that_nobody_sets(finished: Path, tmp_path: Path, monkeypatch) -> None:
    """Here the time of day goes back by a year whenever somebody looks."""
    began, readings = time.perf_counter(), itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 60 * YEAR - next(readings) * YEAR)
        train(tiny_recipe(), tmp_path / "run")
    longest = time.perf_counter() - began
    assert outcome(tmp_path / "run") == outcome(finished)
    steps = [record["step_seconds"] for record in records(tmp_path / "run", "train")]
    assert 0 < 9 * min(steps) < RunDir(tmp_path / "run").result().wall_seconds < longest


def test_the_newest_checkpoint_is_that_of_the_last_step_whatever_its_time(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.keep_last=3")
    train(recipe, tmp_path / "whole")
    run = unfinished_copy(tmp_path / "whole", tmp_path / "run", 8)
    paths = checkpoint_paths(run / "checkpoints")
    assert [step_of(path) for path in paths] == [8, 7]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (-age * YEAR + 60 * YEAR,) * 2)
    notes = resume(run).notes
    assert outcome(run) == outcome(tmp_path / "whole")
    assert [step_of(path) for path in checkpoint_paths(run / "checkpoints")] == [9, 8, 7]
    assert not notes
