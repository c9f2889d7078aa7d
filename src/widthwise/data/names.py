"""The names of a split's documents, in their order: `PREFIX.names.jsonl`, each line a name as JSON."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from widthwise.config_io import UserError
from widthwise.files import parse_json, reading, writing

ENDING = ".names.jsonl"
COPIED_BYTES_AT_ONCE = 2**24


def names_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ENDING)


class NameWriter:
    """Writes the names of a split's documents; used in a `with` block, at whose end they are on disk."""

    def __init__(self, prefix: Path):
        self._path = names_path(prefix)
        self._file: BinaryIO

    def __enter__(self) -> Self:
        with writing(self._path):
            self._file = open(self._path, "xb")
        return self

    def add(self, names: Iterable[str]) -> None:
        """Appends names; a byte of a file's name that is no UTF-8 is kept as Python has it, half a surrogate pair."""
        with writing(self._path):
            self._file.write(b"".join(json.dumps(name).encode() + b"\n" for name in names))

    def append(self, prefix: Path) -> None:
        """Appends the names of another split."""
        with writing(self._path), open(names_path(prefix), "rb") as others:
            shutil.copyfileobj(others, self._file, COPIED_BYTES_AT_ONCE)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with writing(self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


def read_names(prefix: Path) -> Iterator[str]:
    """The names that a NameWriter wrote. Raises UserError for anything else."""
    path = names_path(prefix)
    with reading(path), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            name = parse_json(line.decode(errors="replace"), f"{path}: line {number}")
            if not isinstance(name, str):
                raise UserError(f"{path}: line {number}: holds {type(name).__name__}, not the name of a document")
            yield name
