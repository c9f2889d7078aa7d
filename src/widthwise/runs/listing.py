"""The runs below a folder, and how far each has come. Imports no torch, and reads of each run only what it shows."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError
from widthwise.files import read_text
from widthwise.records.record import finite
from widthwise.records.run import ListedRun, PlannedRuns, RunState
from widthwise.run_dir import RunDir
from widthwise.yaml_io import parse_yaml

STOPPED = "stopped"
"""Event of a run that has ended itself."""


def list_runs(folder: Path | str) -> list[ListedRun]:
    """Every run in a folder and below, by path, and those that an experiment there has still to begin.

    A run whose files are broken is listed as such. Raises UserError where there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; name one that holds runs")
    found: dict[Path, ListedRun] = {}
    for path in _folders(folder):
        if RunDir(path).exists:
            found[path] = listed_run(path)
        elif (path / PlannedRuns.file_name).is_file():
            planned = {path / each.path: each.n_steps for each in PlannedRuns.read(path).runs}
            found |= {run: planned_run(run, n) for run, n in planned.items() if not RunDir(run).exists}
    return [found[path] for path in sorted(found)]


def listed_run(path: Path) -> ListedRun:
    """One run that was begun."""
    run = RunDir(path)
    metrics = run.metrics_file
    try:
        last, found = metrics.last_records("train", "validation")
        trained, validated = found.get("train", {}), found.get("validation", {})
        has_ended_itself = last.get("event") == STOPPED
        return ListedRun(
            path=str(path),
            state=_state(run, last),
            step=last.get("step", 0),
            n_steps=_n_steps(run),
            loss=finite(trained.get("loss")),
            val_loss=finite(validated.get("loss")),
            tokens_per_second=finite(trained.get("tokens_per_second")),
            age_seconds=max(0.0, time.time() - metrics.path.stat().st_mtime) if metrics.path.is_file() else None,
            n_bytes=_n_bytes(path),
            reason=last.get("reason") if has_ended_itself else None,
        )
    except UserError as error:
        return ListedRun(path=str(path), state="unreadable", n_bytes=_n_bytes(path), reason=str(error))


def planned_run(path: Path, n_steps: int) -> ListedRun:
    """One run that has no recipe yet: it waits, or its data are being prepared."""
    return ListedRun(path=str(path), state="running" if RunDir(path).is_in_use else "waiting", n_steps=n_steps)


def stop_message(run: RunDir) -> str | None:
    """Return why a run without a process has ended itself; None for any other."""
    if not run.exists or run.has_result:
        return None
    last, _ = run.metrics_file.last_records()
    return last.get("message", last.get("reason")) if last.get("event") == STOPPED else None


def _state(run: RunDir, last: Mapping[str, Any]) -> RunState:
    """last: its last record; empty if there is none."""
    if run.has_result:
        return "finished"
    if run.is_in_use:
        return "running"
    if not last and run.checkpoints.is_dir() and any(run.checkpoints.iterdir()):
        return "ready"
    return "failed" if last.get("event") == STOPPED else "stopped"


def _n_steps(run: RunDir) -> int | None:
    path = run.path / "config.yaml"
    data = parse_yaml(read_text(path), str(path))
    train = data.get("train") if isinstance(data, dict) else None
    n_steps = train.get("steps") if isinstance(train, dict) else None
    return n_steps if isinstance(n_steps, int) else None


def _folders(folder: Path) -> Iterator[Path]:
    """The folder and all below it, but nothing inside of a run, and nothing hidden."""
    for path, names, files in os.walk(folder):
        yield Path(path)
        names[:] = [] if "config.yaml" in files else sorted(name for name in names if not name.startswith("."))


def _n_bytes(folder: Path) -> int:
    """Sum the file sizes; a file that a running process deletes meanwhile does not count."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue
    return total
