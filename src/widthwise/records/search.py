"""`search.json`: the shapes that a search found at one budget."""

from collections.abc import Sequence
from typing import ClassVar

from widthwise.records.record import Record, StoredRecord


class Candidate(Record):
    """One shape."""

    name: str
    """That of its recipe."""


class Search(StoredRecord):
    """What a search found; its file holds the sizes and costs of each shape too."""

    file_name: ClassVar[str] = "search.json"

    candidates: Sequence[Candidate]
