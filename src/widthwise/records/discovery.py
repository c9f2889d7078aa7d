"""`discovery.json`: the search for a profile of sizes along the depth, its result and cost; and `search.json`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from widthwise.records.record import Known, Number, Record, StoredRecord

DISCOVERED = "discovered"
"""The variant of a comparison that was found, and the stem of the file with its recipe."""


class LayerSizes(Record):
    """Sizes of one layer, in channels."""

    width: Number
    attention: Number
    """n_heads * head_dim."""
    hidden: Number
    """Hidden units of the feed-forward, of all blocks together."""
    blocks: Number | None = None
    """Blocks of an hourglass; None where the search leaves their number as it is."""


class Candidate(Record):
    """A growth of one part of one layer that could be chosen, or of the model by a layer."""

    layer: int
    """From 0."""
    is_gap: bool = False
    """True if a further layer would come before `layer`, or behind all if there is none of that number."""
    part: str
    gain: float
    """Fall of the loss by a step of its new entries that are 0, to first order: nats, at a rate of 1."""
    gain_error: float | None = None
    """Standard error of the gain over draws of the new weights; None where nothing is drawn, or once."""
    cost: float
    """Its share of the matched quantity."""
    is_taken: bool = False


class Stage(Record):
    """The model at a moment of the search."""

    step: int
    """Training steps that the search had done by then."""
    layers: Sequence[LayerSizes]
    sources: Sequence[int | None] | None = None
    """(n_layers,) the layer of the stage before that each is, None for one that was added; None: the same layers."""
    cost: float
    """The matched quantity of the model."""
    loss: Known = None
    candidates: Sequence[Candidate] = ()
    """Growths that were possible then; empty for methods that do not grow, and at the end."""


OVER_WIDTH = ("attention", "hidden")
"""Lists of a curve whose points are sizes over the width of the layer."""


class Curve(Record):
    """Points of `shape: {kind: curve}`, one for each layer in which they were found."""

    widths: Sequence[float]
    attention: Sequence[float] | None = None
    hidden: Sequence[float] | None = None
    blocks: Sequence[float] | None = None

    @classmethod
    def of_sizes(cls, sizes: Mapping[str, Sequence[float]]) -> "Curve":
        """Return the curve of layers of these sizes; see `sizes`."""
        units = {name: _units(name, sizes["widths"]) for name in sizes}
        return cls(**{name: [a / b for a, b in zip(each, units[name], strict=True)] for name, each in sizes.items()})

    def sizes(self) -> dict[str, list[float]]:
        """Return each list as sizes in proportion to each other; those of a curve are over the width."""
        lists = {name: points for name, points in self.to_data().items() if points is not None}
        units = {name: _units(name, self.widths) for name in lists}
        return {name: [a * b for a, b in zip(points, units[name], strict=True)] for name, points in lists.items()}

    @property
    def trades_kinds(self) -> bool:
        """True if attention, hidden units or blocks have, on average, another relation to the width than in the uniform
        model, by more than a tenth."""
        even = self.even()
        means = [points[0] for points in (even.attention, even.hidden, even.blocks) if points is not None]
        return any(abs(mean - 1) > 0.1 for mean in means)

    def even(self) -> "Curve":
        """Return the curve with the mean of each size in all layers."""
        return Curve.of_sizes({name: [sum(each) / len(each)] * len(each) for name, each in self.sizes().items()})

    def reversed(self) -> "Curve":
        """Return the curve with the last layer first."""
        return Curve(**{name: points and points[::-1] for name, points in self.to_data().items()})


def _units(name: str, widths: Sequence[float]) -> Sequence[float]:
    """Return (n_layers,) sizes that are 1 in a list of a curve."""
    return widths if name in OVER_WIDTH else [1.0] * len(widths)


class DiscoveredShape(Record):
    """The curve that a search found, and its stages and cost."""

    curve: Curve
    n_layers: int | None = None
    """Number of layers, if it differs from the recipe's."""
    stages: Sequence[Stage]
    tokens: int
    """Seen by all models of the search."""
    flops: float
    """Training FLOPs of the search, measurements of candidates included."""

    def places(self) -> list[list[int]]:
        """Return for each stage the index, from 0, of each of its layers in the last stage."""
        places = [list(range(len(self.stages[-1].layers)))]
        for stage in reversed(self.stages[1:]):
            last = places[-1]
            sources = range(len(last)) if stage.sources is None else stage.sources
            places.append([place for place, source in zip(last, sources, strict=True) if source is not None])
        return places[::-1]

    def added(self) -> dict[int, int]:
        """Return layer of the last stage, from 0, that was not there at first -> the step after which it was added."""
        found = {}
        for places, before, stage in zip(self.places()[1:], self.stages, self.stages[1:]):
            sources = stage.sources or ()
            found |= {place: before.step for place, source in zip(places, sources) if source is None}
        return found


class Discovery(StoredRecord):
    """A discovered profile, and the cost of the search."""

    file_name: ClassVar[str] = "discovery.json"

    title: str
    method: str
    how: str = "found"
    """The method in words, as in "8 layers, grown where it gained most"."""
    options: Mapping[str, Any] | None = None
    """All options of the method as the search had them, defaults included."""
    match: str
    """The quantity whose budget the profile meets."""
    budget: float
    """That quantity of the uniform model."""
    seed: int
    command: str | None = None
    environment: Mapping[str, Any] | None = None
    """Versions, machine and commit of the process that wrote the record."""
    found: DiscoveredShape
    comparison: str | None = None
    """Folder of the comparison with its rivals, from that of this file; None if none was made."""


class ListedShape(Record):
    """One shape of a search."""

    name: str


class Search(StoredRecord):
    """The shapes that a search found at one budget; its file holds their sizes and costs too."""

    file_name: ClassVar[str] = "search.json"

    candidates: Sequence[ListedShape]
