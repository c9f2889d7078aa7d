"""`effects.json`: comparisons at several scales, and what they say together."""

from collections.abc import Sequence
from typing import ClassVar

import pydantic

from widthwise.records.record import StoredRecord


class Effects(StoredRecord):
    """Which comparisons a page of effects was made from, so that it can be made anew."""

    file_name: ClassVar[str] = "effects.json"

    command: str
    """What makes the page anew, in the folder of this file."""
    comparisons: Sequence[str] = pydantic.Field(min_length=2)
    """Folders of the comparisons from that of this file, from small to large."""
    sentence: str
    """What they say of each variant, a line each."""
