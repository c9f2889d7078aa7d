"""Listing of the runs below a folder, with their progress. Imports no torch, and reads no more than is shown."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widthwise.files import read_text
from widthwise.mistakes import UserError
from widthwise.records.record import finite
from widthwise.records.run import ListedRun, PlannedRuns, RunState
from widthwise.run_dir import RunDir
from widthwise.yaml_io import parse_yaml

STOPPED = "stopped"
"""Event of a run that stopped because of an error."""


def list_runs(folder: Path | str) -> list[ListedRun]:
    """Return all runs in a folder and its subfolders, sorted by path, including planned runs of experiments.

    A run with damaged files is listed as unreadable. Raises UserError if there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; name one that holds runs")
    runs: dict[Path, ListedRun] = {}
    for name, subfolders, files in os.walk(folder):
        path = Path(name)
        if RunDir(path).exists:
            runs[path] = listed_run(path)
        elif (path / PlannedRuns.file_name).is_file():
            for planned in PlannedRuns.read(path).runs:
                if not RunDir(path / planned.path).exists:
                    runs[path / planned.path] = planned_run(path / planned.path, planned.n_steps)
        # Skip the folders of a run, and hidden folders.
        subfolders[:] = [] if "config.yaml" in files else sorted(s for s in subfolders if not s.startswith("."))
    return [runs[path] for path in sorted(runs)]


def listed_run(path: Path) -> ListedRun:
    """Return the entry of a run directory."""
    run = RunDir(path)
    metrics = run.metrics_file
    try:
        last, newest = metrics.last_records("train", "validation")
        trained = newest.get("train", {})
        data = parse_yaml(read_text(path / "config.yaml"), f"{path}/config.yaml")
        train = data.get("train") if isinstance(data, dict) else None
        n_steps = train.get("steps") if isinstance(train, dict) else None
        return ListedRun(
            path=str(path),
            state=_state(run, last),
            step=last.get("step", 0),
            n_steps=n_steps if type(n_steps) is int else None,
            loss=finite(trained.get("loss")),
            val_loss=finite(newest.get("validation", {}).get("loss")),
            tokens_per_second=finite(trained.get("tokens_per_second")),
            age_seconds=max(0.0, time.time() - metrics.path.stat().st_mtime) if metrics.path.is_file() else None,
            n_bytes=_n_bytes(path),
            reason=last.get("reason") if last.get("event") == STOPPED else None,
        )
    except UserError as error:
        return ListedRun(path=str(path), state="unreadable", n_bytes=_n_bytes(path), reason=str(error))


def planned_run(path: Path, n_steps: int) -> ListedRun:
    """Return the entry of a run without a recipe: it waits, or its data are being prepared."""
    return ListedRun(path=str(path), state="running" if RunDir(path).is_in_use else "waiting", n_steps=n_steps)


def stop_message(run: RunDir) -> str | None:
    """Return the error that stopped an unfinished run; None for any other run."""
    if not run.exists or run.has_result:
        return None
    last, _ = run.metrics_file.last_records()
    return last.get("message", last.get("reason")) if last.get("event") == STOPPED else None


def _state(run: RunDir, last: Mapping[str, Any]) -> RunState:
    """Return the state of a run. last: its last record; empty without one."""
    if run.has_result:
        return "finished"
    if run.is_in_use:
        return "running"
    if not last and run.checkpoints.is_dir() and any(run.checkpoints.iterdir()):
        return "ready"
    return "failed" if last.get("event") == STOPPED else "stopped"


def _n_bytes(folder: Path) -> int:
    """Return the sum of file sizes. Files that a running process deletes meanwhile are skipped."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue
    return total
