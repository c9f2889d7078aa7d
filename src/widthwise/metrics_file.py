"""metrics.jsonl: the records of a run, one a line, each with its step and event."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widthwise.files import (
    HASHED_BYTES_AT_ONCE,
    FileRecord,
    fsync_file,
    parse_json,
    read_text,
    reading,
    write_atomic,
    writing,
)
from widthwise.mistakes import UserError


@dataclass(frozen=True)
class MetricsFile:
    """metrics.jsonl of a run, which may not exist yet."""

    path: Path

    def records(self) -> list[dict[str, Any]]:
        """Return all records, without a last line that a kill cut short. Raises UserError for an invalid line."""
        if not self.path.exists():
            return []
        lines = read_text(self.path).split("\n")[:-1]  # text after the last newline is a torn line
        return [_record(line, f"{self.path}: line {number}") for number, line in enumerate(lines, start=1)]

    def last_records(self, *events: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return the last record, and a dict from event to its last record; read from the end.

        Events without a record are missing. Raises UserError for an invalid line.
        """
        last: dict[str, Any] = {}
        by_event: dict[str, dict[str, Any]] = {}
        lines = read_text(self.path).split("\n")[:-1] if self.path.exists() else []
        for number, line in reversed(list(enumerate(lines, start=1))):
            # Records of layers are long: skip lines that cannot be of a missing event without parsing them.
            if last and not any(f'"{event}"' in line for event in events if event not in by_event):
                continue
            record = _record(line, f"{self.path}: line {number}")
            last = last or record
            if record["event"] in events:
                by_event.setdefault(record["event"], record)
            if len(by_event) == len(events):
                break
        return last, by_event

    def append(self, records: list[dict[str, Any]]) -> None:
        """Append records, one line each. Raises UserError on a full disk."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def fsync(self) -> None:
        """Make the records appended so far survive a power cut. Raises UserError on a full disk."""
        with writing(self.path):
            self.path.touch()
            fsync_file(self.path)

    def rewind(self, step: int) -> None:
        """Drop the records after `step`, so that a resumed run writes each record once."""
        records = [record for record in self.records() if record["step"] <= step]
        write_atomic(self.path, "".join(json.dumps(record) + "\n" for record in records))

    def front(self, n_bytes: int = sys.maxsize) -> FileRecord:
        """Return size and checksum of the first n_bytes bytes, or of all."""
        digest = hashlib.sha256()
        n_read = 0
        if self.path.exists():
            with reading(self.path), open(self.path, "rb", buffering=0) as file:
                while part := file.read(min(HASHED_BYTES_AT_ONCE, n_bytes - n_read)):
                    digest.update(part)
                    n_read += len(part)
        return FileRecord(n_bytes=n_read, sha256=digest.hexdigest())


def _record(line: str, where: str) -> dict[str, Any]:
    record = parse_json(line, where)
    entries = record if isinstance(record, dict) else {}
    if type(entries.get("step")) is not int:
        raise UserError(f"{where}: has no whole-number 'step'")
    if not isinstance(entries.get("event"), str):
        raise UserError(f"{where}: has no 'event'")
    return entries
