"""A run on disk, the contract between the tools.

config.yaml        the resolved recipe: explicit layers, every default written out
environment.json   versions, machine, commit, command
metrics.jsonl      one record a line: {"step", "event": "train" | "validation", ...}
result.json        written once, when the run has finished
checkpoints/       step_00000100/ ... (training/checkpoint.py)
tokenizer/         the tokenizer's file, so that the run can be used without its data
lock               held by the process that writes here
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, parse_yaml, read_text


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a whole file or nothing: temporary file, fsync, rename, fsync of the folder. Raises UserError on a full
    disk.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)  # there is none after the rename
        fsync_folder(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); nothing written before is lost") from None


def fsync_folder(folder: Path) -> None:
    """Makes a rename inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> Any:
    """JSON from a file; a UserError names the file if it is missing or broken."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: is not valid JSON ({error})") from None


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
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.yaml").is_file()

    def begin(self, config_yaml: str, environment: Mapping[str, Any]) -> None:
        """Makes the folder, or accepts one begun with the same recipe. Raises UserError for a folder of another
        recipe.
        """
        if self.exists:
            if parse_yaml(self.config_yaml(), "config.yaml") != parse_yaml(config_yaml, "recipe"):
                raise UserError(f"{self.path}: holds a run of another recipe; choose another folder with --out")
            return
        write_atomic(self.path / "environment.json", json.dumps(environment, indent=2) + "\n")
        write_atomic(self.path / "config.yaml", config_yaml)

    def config_yaml(self) -> str:
        """The resolved recipe. Raises UserError where `path` is not a run directory."""
        if not self.exists:
            raise UserError(f"{self.path}: is not a run directory (no config.yaml)")
        return read_text(self.path / "config.yaml")

    def environment(self) -> dict[str, Any]:
        return read_json(self.path / "environment.json")

    def result(self) -> dict[str, Any] | None:
        """The result, or None while the run has not finished."""
        path = self.path / "result.json"
        return read_json(path) if path.is_file() else None

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomic(self.path / "result.json", json.dumps(result, indent=2) + "\n")

    def append_metrics(self, records: list[dict[str, Any]]) -> None:
        """Appends records to metrics.jsonl, one line each. Raises UserError on a full disk."""
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None

    def metrics(self) -> list[dict[str, Any]]:
        """All whole records; a last line cut short by a kill is left out."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        lines = read_text(path).split("\n")[:-1]  # what follows the last newline is a torn line
        try:
            return [json.loads(line) for line in lines]
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: holds a line that is not JSON ({error})") from None

    def rewind_metrics(self, step: int) -> None:
        """Drops the records after `step`, so that a resumed run writes each record once."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        write_atomic(self.path / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for one process. Raises UserError when another process holds it; a killed process holds
        nothing.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / "lock", "a+")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise UserError(f"{self.path}: is in use by process {file.read().strip() or 'unknown'}") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


class RunFailed(RuntimeError):
    """A run that stopped for a reason of its own, such as a loss that is not finite. Exit code 1."""
