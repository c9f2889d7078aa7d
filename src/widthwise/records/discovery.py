"""`discovery.json`: the search for a profile of sizes along the depth, its result and cost; `consensus.json`: the mean
of several; and `search.json`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from widthwise.records.estimate import Estimate
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


class Candidate(Record):
    """A growth of one part of one layer that could be chosen."""

    layer: int
    """From 0."""
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
    cost: float
    """The matched quantity of the model."""
    loss: Known = None
    candidates: Sequence[Candidate] = ()
    """Growths that were possible then; empty for methods that do not grow, and at the end."""


class Curve(Record):
    """A `shape` section of a recipe: points, one for each layer in which they were found."""

    kind: Literal["curve"] = "curve"
    widths: Sequence[float]
    """Over the width of the uniform model."""
    attention: Sequence[float] | None = None
    """Width of attention over that of the uniform model and over the width of the layer; `hidden` alike."""
    hidden: Sequence[float] | None = None

    @classmethod
    def of(cls, layers: Sequence[LayerSizes], uniform: LayerSizes) -> "Curve":
        """Return the sizes of layers relative to a layer of the uniform model."""
        widths = [each.width / uniform.width for each in layers]
        attention = [each.attention / uniform.attention / width for each, width in zip(layers, widths)]
        hidden = [each.hidden / uniform.hidden / width for each, width in zip(layers, widths)]
        return cls(kind="curve", widths=widths, attention=attention, hidden=hidden)

    @property
    def points(self) -> dict[str, Sequence[float]]:
        """The points by size, without sizes that follow the recipe's rule."""
        found = {"widths": self.widths, "attention": self.attention, "hidden": self.hidden}
        return {name: points for name, points in found.items() if points}

    def section(self, match: str) -> dict[str, Any]:
        """Return `model.shape` of a recipe. match: the quantity that equals the uniform model's."""
        points = {size: [round(float(point), 4) for point in each] for size, each in self.points.items()}
        return {"kind": "curve", "match": match, "rounding": "balanced", **points}

    def even(self) -> "Curve":
        """Return the curve with the mean of each size in all layers."""
        n_layers, width = len(self.widths), sum(self.widths) / len(self.widths)
        even = {name: [sum(each) / n_layers] * n_layers for name, each in self.points.items()}
        for name in {"attention", "hidden"} & even.keys():
            sizes = [point * own for point, own in zip(self[name], self.widths, strict=True)]
            even[name] = [sum(sizes) / n_layers / width] * n_layers
        return Curve.model_validate(even)


class DiscoveredShape(Record):
    """The curve that a search found, and its stages and cost."""

    curve: Curve
    stages: Sequence[Stage]
    tokens: int
    """Seen by all models of the search."""
    flops: float
    """Training FLOPs of the search, measurements of candidates included."""


class Discovery(StoredRecord):
    """A discovered profile, and the cost of the search."""

    file_name: ClassVar[str] = "discovery.json"

    title: str
    method: str
    how: str = "found"
    """The method as text, as in "8 layers, grown where it gained most"."""
    options: Mapping[str, Any] | None = None
    """All options of the method as the search had them, defaults included."""
    match: str
    """The quantity whose budget the profile meets."""
    budget: float
    """That quantity of the uniform model."""
    seed: int
    command: str | None = None
    environment: Mapping[str, Any] | None = None
    """Versions, machine, commit and data of the first run of the search; without data in records of older versions."""
    found: DiscoveredShape
    comparison: str | None = None
    """Folder of the comparison with its rivals, from that of this file; None if none was made."""


class Consensus(StoredRecord):
    """The mean profile of several searches."""

    file_name: ClassVar[str] = "consensus.json"

    command: str
    """The command that makes the page again, in the folder of this file."""
    searches: Sequence[str]
    """Folders of the searches from that of this file."""
    match: str
    """The quantity whose budget each of them met."""
    profiles: Mapping[str, Sequence[Estimate]]
    """Field of `LayerSizes` -> for each layer its size over the mean of all layers: mean, interval and one value per
    search."""
    correlations: Mapping[str, Mapping[str, float]]
    """Such a field -> "same text" and "different texts" -> correlation of two searches, mean over all such pairs."""
    curve: Curve
    """The mean profile, with the mean division between width, attention and hidden units."""


class ListedShape(Record):
    """One shape of a search."""

    name: str


class Search(StoredRecord):
    """The shapes that a search found at one budget; its file holds their sizes and costs too."""

    file_name: ClassVar[str] = "search.json"

    candidates: Sequence[ListedShape]
