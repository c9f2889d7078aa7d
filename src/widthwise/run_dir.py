"""A run on disk, the contract between the tools.

config.yaml        the resolved recipe: explicit layers, every default written out
environment.json   versions, machine, commit, command
metrics.jsonl      one record a line: {"step", "event": "train" | "validation" | "growth" | "stopped", ...},
                   and "grown", "baked" or "padded" where the run begins where another one stood
result.json        written once, when the run has finished
checkpoints/       step_00000100/ ... (training/checkpoint.py)
tokenizer/         the tokenizer's file, so that the run can be used without its data
lock, holder       held by the process that writes here, and its number
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from widthwise.config_io import UserError, parse_yaml, read_text
from widthwise.files import fsync_file, parse_json, read_json_mapping, write_atomic, writing


class RunDir:
    """Paths and records of one run."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tokenizer_folder(self) -> Path:
        return self.path / "tokenizer"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.yaml").is_file()

    def begin(self, config_yaml: str, environment: Mapping[str, Any]) -> None:
        """Makes the folder, or accepts one begun with the same recipe. Raises UserError where the recipes differ."""
        if self.exists:
            self.check_recipe(config_yaml)
            return
        write_atomic(self.path / "environment.json", json.dumps(environment, indent=2) + "\n")
        write_atomic(self.path / "config.yaml", config_yaml)

    def check_recipe(self, config_yaml: str) -> None:
        """Raises UserError where the run was begun with another recipe."""
        if parse_yaml(self.config_yaml(), "config.yaml") != parse_yaml(config_yaml, "recipe"):
            raise UserError(f"{self.path}: holds a run of another recipe; choose another folder with --out")

    def config_yaml(self) -> str:
        """The resolved recipe. Raises UserError where `path` is not a run directory."""
        if not self.exists:
            raise UserError(f"{self.path}: is not a run directory (no config.yaml)")
        return read_text(self.path / "config.yaml")

    def environment(self) -> dict[str, Any]:
        """Versions, machine, command and data. Raises UserError where the file is missing or broken."""
        return read_json_mapping(self.path / "environment.json")

    def add_to_environment(self, records: Mapping[str, Any]) -> None:
        """Writes down what was not known when the run was begun."""
        write_atomic(self.path / "environment.json", json.dumps({**self.environment(), **records}, indent=2) + "\n")

    def result(self) -> dict[str, Any] | None:
        """The result, or None while the run has not finished."""
        path = self.path / "result.json"
        return read_json_mapping(path) if path.is_file() else None

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomic(self.path / "result.json", json.dumps(result, indent=2) + "\n")

    def append_metrics(self, records: list[dict[str, Any]]) -> None:
        """Appends records to metrics.jsonl, one line each. Raises UserError on a full disk."""
        with writing(self._metrics), open(self._metrics, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def fsync_metrics(self) -> None:
        """Makes the records appended so far survive a power cut. Raises UserError on a full disk."""
        with writing(self._metrics):
            self._metrics.touch()
            fsync_file(self._metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """All records; a last line cut short by a kill is left out. Raises UserError for a line that is no record."""
        if not self._metrics.is_file():
            return []
        lines = read_text(self._metrics).split("\n")[:-1]  # what follows the last newline is a torn line
        return [_record(line, f"{self._metrics}: line {number}") for number, line in enumerate(lines, start=1)]

    def rewind_metrics(self, step: int) -> None:
        """Drops the records after `step`, so that a resumed run writes each record once."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        write_atomic(self._metrics, "".join(json.dumps(record) + "\n" for record in kept))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for one process; a killed one holds nothing. Raises RunInUse where another holds it."""
        holder = self.path / "holder"
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = FileLock(self.path / "lock").acquire(timeout=0)
            except Timeout:
                process = read_text(holder) if holder.is_file() else "unknown"
                raise RunInUse(f"{self.path}: is in use by process {process}") from None
        with lock:
            write_atomic(holder, str(os.getpid()))
            yield


def _record(line: str, where: str) -> dict[str, Any]:
    record = parse_json(line, where)
    step, event = (record.get("step"), record.get("event")) if isinstance(record, dict) else (None, None)
    if not isinstance(step, int) or isinstance(step, bool):
        raise UserError(f"{where}: has no whole-number 'step'")
    if not isinstance(event, str):
        raise UserError(f"{where}: has no 'event'")
    return record


class RunInUse(UserError):
    """A run that another process works on at this moment."""


class RunFailed(RuntimeError):
    """A run that stopped for a reason of its own, such as a loss that is not finite. Exit code 1."""
