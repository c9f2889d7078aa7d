"""metrics.jsonl: the records of a run, one a line, each with its step and event."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from widthwise.config_io import parse
from widthwise.files import FileRecord, fsync, parse_json, read_text, write_atomic, writing


@dataclass(frozen=True)
class MetricsFile:
    """metrics.jsonl or samples.jsonl of a run. The file may not exist yet."""

    path: Path

    def records(self) -> list[dict[str, Any]]:
        """Return all records, without a torn last line. Raises UserError for an invalid line."""
        return [_record(line, f"{self.path}: line {number}") for number, line in self._lines()]

    def last_records(self, *events: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return the last record, and a dict from event to the last record of that event, reading from the end.

        Events without a record are missing. Raises UserError for an invalid line among those that are read.
        """
        last: dict[str, Any] = {}
        by_event: dict[str, dict[str, Any]] = {}
        for number, line in reversed(self._lines()):
            # Parsing a long record of layers takes time, so skip lines without the name of a missing event.
            if last and not any(f'"{event}"' in line for event in events if event not in by_event):
                continue
            record = _record(line, f"{self.path}: line {number}")
            last = last or record
            if record["event"] in events:
                by_event.setdefault(record["event"], record)
            if len(by_event) == len(events):
                break
        return last, by_event

    def _lines(self) -> list[tuple[int, str]]:
        """Return the number and text of each complete line. A kill may leave a torn line at the end."""
        lines = read_text(self.path).split("\n")[:-1] if self.path.exists() else []
        return list(enumerate(lines, start=1))

    def append(self, records: list[dict[str, Any]]) -> None:
        """Append records, one line each. Raises UserError on a full disk."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def fsync(self) -> None:
        """Make the records appended so far survive a power cut. Raises UserError on a full disk."""
        with writing(self.path):
            self.path.touch()
            fsync(self.path)

    def rewind(self, step: int) -> None:
        """Drop the records after `step`, so that a resumed run writes each record once."""
        records = [record for record in self.records() if record["step"] <= step]
        write_atomic(self.path, "".join(json.dumps(record) + "\n" for record in records))

    def front(self, n_bytes: int = sys.maxsize) -> FileRecord:
        """Return size and checksum of the first n_bytes bytes, or of all. A missing file counts as empty."""
        if not self.path.exists():
            return FileRecord(n_bytes=0, sha256=hashlib.sha256().hexdigest())
        return FileRecord.of(self.path, max_bytes=n_bytes)


class _Record(pydantic.BaseModel):
    """The keys of a record that are more than numbers to draw, of any event."""

    model_config = pydantic.ConfigDict(strict=True)

    step: int
    event: str
    tokens: int | None = None
    training_flops: float | None = None
    step_seconds: pydantic.PositiveFloat | None = None
    memory_bytes: int | None = None
    reason: str | None = None
    message: str | None = None
    prompt: str = ""
    text: str = ""
    mtp_losses: list[Any] | None = None
    val_texts: dict[str, dict[str, Any] | None] | None = None
    val_tasks: dict[str, dict[str, Any] | None] | None = None
    grad_norms: list[Any] | None = None
    weight_norms: list[Any] | None = None
    update_norms: list[Any] | None = None
    output_rms: list[Any] | None = None


def _record(line: str, where: str) -> dict[str, Any]:
    """Parse a line. `where` names it in errors."""
    record = parse_json(line, where)
    parse(_Record, record, where)
    return record
