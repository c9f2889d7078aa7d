"""`discovery.json`: how a profile of sizes along the depth was found, and what finding it cost."""

from collections.abc import Sequence
from typing import ClassVar

from widthwise.records.record import Known, Number, Record, StoredRecord

DISCOVERED = "discovered"
"""The variant of a comparison that was found, and the stem of the file with its recipe."""


class LayerSizes(Record):
    """Sizes of one layer, in channels."""

    width: Number
    """Width of the stream."""
    attention: Number
    """n_heads * head_dim."""
    hidden: Number
    """Hidden units of the feed-forward."""


class Candidate(Record):
    """A growth of one part of one layer that could be chosen."""

    layer: int
    """From 0."""
    part: str
    gain: float
    """Squared gradient of its new entries that are 0: nats per unit of the learning rate, to first order."""
    cost: float
    """What it would add to the matched quantity."""
    is_taken: bool = False


class Stage(Record):
    """The model at a moment of the search."""

    step: int
    """Training steps that the search had done by then."""
    layers: Sequence[LayerSizes]
    cost: float
    """How much of the matched quantity the model takes."""
    loss: Known = None
    """Held-out loss at that step."""
    candidates: Sequence[Candidate] = ()
    """What could grow then; empty for methods that do not grow, and at the end."""


class Curve(Record):
    """Points of `shape: {kind: curve}`, one for each layer in which they were found."""

    widths: Sequence[float]
    attention: Sequence[float] | None = None
    hidden: Sequence[float] | None = None

    @property
    def n_kinds(self) -> int:
        """How many kinds of sizes were searched: one leaves nothing to divide differently between kinds."""
        others = (self.attention, self.hidden)
        return (len(set(self.widths)) > 1) + sum(points is not None for points in others)

    def even(self) -> "Curve":
        """The mean of each list in all layers."""
        return Curve(
            **{name: points and [sum(points) / len(points)] * len(points) for name, points in self.to_data().items()}
        )

    def reversed(self) -> "Curve":
        """The last layer first."""
        return Curve(**{name: points and points[::-1] for name, points in self.to_data().items()})


class Found(Record):
    """What a method of discovery found."""

    curve: Curve
    stages: Sequence[Stage]
    tokens: int
    """Seen by all models of the search."""
    flops: float
    """Training FLOPs of the search, measurements of candidates included."""


class Discovery(StoredRecord):
    """A profile that was found, and what finding it cost."""

    file_name: ClassVar[str] = "discovery.json"

    title: str
    method: str
    match: str
    """The quantity whose budget the profile meets."""
    budget: float
    """How much of that quantity the uniform model takes."""
    seed: int
    command: str | None = None
    found: Found
    comparison: str | None = None
    """Folder of the comparison with its rivals, from that of this file; None if none was made."""
