"""`search.json`: the shapes that a search found at one budget."""

from collections.abc import Sequence
from typing import ClassVar

from widthwise.records.record import Record, StoredRecord


class ListedShape(Record):
    """One shape of a search."""

    name: str


class Search(StoredRecord):
    """The shapes that a search found at one budget; its file holds their sizes and costs too."""

    file_name: ClassVar[str] = "search.json"

    candidates: Sequence[ListedShape]
