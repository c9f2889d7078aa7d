"""metrics.jsonl: the records of a run, one a line, each with its step and event."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError
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

_BETWEEN = ("tokens", "training_flops", "params_before", "params_after")
NUMBERS: Mapping[str, Sequence[str]] = {
    "train": ("loss", "step_seconds"),
    "validation": ("loss",),
    **dict.fromkeys(("growth", "grown"), _BETWEEN),
}
"""Event -> the numbers that training reads from its records when it resumes and when it ends."""


@dataclass(frozen=True)
class MetricsFile:
    """The file, which need not be there yet."""

    path: Path

    def records(self) -> list[dict[str, Any]]:
        """All records; a last line cut short by a kill is left out. Raises UserError for a line that is no record."""
        if not self.path.exists():
            return []
        lines = read_text(self.path).split("\n")[:-1]  # what follows the last newline is a torn line
        return [_record(line, f"{self.path}: line {number}") for number, line in enumerate(lines, start=1)]

    def last_records(self, *events: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The last record, and by event the last one of each; reads from the end no further than it must.

        What is not there is missing. Raises UserError for a line that is no record.
        """
        last: dict[str, Any] = {}
        found: dict[str, dict[str, Any]] = {}
        lines = read_text(self.path).split("\n")[:-1] if self.path.exists() else []
        for number, line in reversed(list(enumerate(lines, start=1))):
            # Records of layers are long, and most lines need not be parsed to know that they are of another event.
            if last and not any(f'"{event}"' in line for event in events if event not in found):
                continue
            record = _record(line, f"{self.path}: line {number}")
            last = last or record
            if record["event"] in events:
                found.setdefault(record["event"], record)
            if len(found) == len(events):
                break
        return last, found

    def append(self, records: list[dict[str, Any]]) -> None:
        """Appends records, one line each. Raises UserError on a full disk."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def fsync(self) -> None:
        """Makes the records appended so far survive a power cut. Raises UserError on a full disk."""
        with writing(self.path):
            self.path.touch()
            fsync_file(self.path)

    def rewind(self, step: int) -> None:
        """Drops the records after `step`, so that a resumed run writes each record once.

        Raises UserError for a record without its NUMBERS.
        """
        kept = [record for record in self.records() if record["step"] <= step]
        for number, record in enumerate(kept, start=1):
            for key in NUMBERS.get(record["event"], ()):
                if not isinstance(record.get(key), (int, float)):
                    raise UserError(f"{self.path}: record {number} ({record['event']}): has no number {key!r}")
        write_atomic(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    def front(self, n_bytes: int = sys.maxsize) -> FileRecord:
        """Size and checksum of the first n_bytes bytes, or of all."""
        digest, n_read = hashlib.sha256(), 0
        if self.path.exists():
            with reading(self.path), open(self.path, "rb", buffering=0) as file:
                while part := file.read(min(HASHED_BYTES_AT_ONCE, n_bytes - n_read)):
                    digest.update(part)
                    n_read += len(part)
        return FileRecord(n_bytes=n_read, sha256=digest.hexdigest())

    def check_front(self, wanted: FileRecord, of: str) -> None:
        """Raises UserError where the file does not begin as it was when something was written; of: what, for errors."""
        found = self.front(wanted.n_bytes)
        if found.n_bytes < wanted.n_bytes:
            raise UserError(
                f"{self.path}: has {found.n_bytes} bytes, and had {wanted.n_bytes} when {of} was written; records are "
                "missing"
            )
        if found != wanted:
            raise UserError(f"{self.path}: its first {wanted.n_bytes} bytes were changed after {of} was written")


def _record(line: str, where: str) -> dict[str, Any]:
    record = parse_json(line, where)
    step, event = (record.get("step"), record.get("event")) if isinstance(record, dict) else (None, None)
    if not isinstance(step, int) or isinstance(step, bool):
        raise UserError(f"{where}: has no whole-number 'step'")
    if not isinstance(event, str):
        raise UserError(f"{where}: has no 'event'")
    return record
