"""`demonstration.json`: what expansions of a model do to the function that it computes."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from widthwise.records.record import Number, Record, StoredRecord


class Demonstrated(Record):
    """One expansion of a model, drawn once for each seed."""

    does: Sequence[str]
    """The expansion in words, a line each."""
    params: Number
    """Parameters of the larger model."""
    quantities: Mapping[str, Sequence[float]]
    """Quantity -> one value per seed, in the order of the seeds."""


class Demonstration(StoredRecord):
    """Several expansions of the same model."""

    file_name: ClassVar[str] = "demonstration.json"

    command: str
    created: str
    environment: Mapping[str, Any]
    seeds: Sequence[int]
    params: Number
    """Parameters of the model before it grows."""
    expansions: Mapping[str, Demonstrated]
