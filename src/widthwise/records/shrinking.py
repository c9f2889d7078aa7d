"""`shrunk.json`: where a smaller model was cut out of a trained one, and what it lost."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pydantic

from widthwise.records.certificate import ModelSize
from widthwise.records.record import Number, Record, StoredRecord

SHRUNK = "shrunk"
"""The stem of the files with the record, and with the recipe of its shape."""


class LayerSizes(Record):
    """Sizes of one layer, in channels."""

    width: Number
    attention: Number
    """n_heads * head_dim."""
    hidden: Number
    """Hidden units of the feed-forward, of all blocks together."""


class Curve(Record):
    """A `shape` section of a recipe: a point for each layer."""

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


class LayerCut(Record):
    """One layer; each size as [before, after], with 0 after for one that was left out."""

    d_model: Sequence[int]
    n_kv_heads: Sequence[int]
    n_hidden: Sequence[int]
    """Hidden units, in a mixture of each expert."""
    n_experts: Sequence[int] = (1, 1)
    """Experts among which a mixture chooses; any other feed-forward is one of one."""
    lost: float
    """Sum of the first-order changes of the loss for what was cut, in nats."""
    energy_kept: Sequence[float]
    """[attention, feed-forward]: share of the squares of what its norm measures in the coordinates that it keeps."""


class Shrinking(StoredRecord):
    """The cut of one run."""

    file_name: ClassVar[str] = f"{SHRUNK}.json"

    source: str
    """Name of the run that was cut."""
    step: int
    """Step of its checkpoint."""
    request: Mapping[str, object]
    """Options, as `ShrinkOptions` has them."""
    turned: bool
    """True if the stream was turned; if not, its coordinates changed their order only, or stayed."""
    not_turned: str | None
    """The reason if it was requested and impossible."""
    loss_before: float
    """On the held-out text, nats per token."""
    loss_after: float
    """The same after the cut, before any training."""
    agreement: float
    """Share of held-out tokens whose most likely successor both models agree on."""
    n_tokens: int
    """Held-out tokens."""
    before: ModelSize
    after: ModelSize
    kv_bytes: Sequence[pydantic.PositiveFloat]
    """Per token, before and after."""
    d_model: Sequence[int] = ()
    """Width of embedding and head, before and after."""
    layers: Sequence[LayerCut]
    shape: Curve | None = None
    """Sizes after the cut relative to the model that was cut; None where that was not uniform, or a curve does not hold
    them."""
