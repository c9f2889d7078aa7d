"""`shrunk.json`: the cut of a smaller model out of a trained one, and its loss."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pydantic

from widthwise.records.certificate import ModelSize
from widthwise.records.record import Record, StoredRecord

SHRUNK = "shrunk"
"""Stem of two files: the record, and a recipe with the shape after the cut."""


class Curve(Record):
    """A `shape` section of a recipe: a point for each layer."""

    kind: Literal["curve"] = "curve"
    widths: Sequence[float]
    """Over the width of the uniform model."""
    attention: Sequence[float] | None = None
    """Width of attention over the uniform model's, and over the width of the layer; `hidden` likewise."""
    hidden: Sequence[float] | None = None

    def section(self, match: str) -> dict[str, Any]:
        """Return `model.shape` of a recipe, without sizes that follow its rule.

        match: the quantity that equals the uniform model's.
        """
        sizes = {"widths": self.widths, "attention": self.attention, "hidden": self.hidden}
        points = {size: [round(value, 4) for value in values] for size, values in sizes.items() if values}
        return {"kind": "curve", "match": match, "rounding": "balanced", **points}


class LayerCut(Record):
    """The cut of one layer. Sizes are [before, after]; after is 0 for a removed layer."""

    d_model: Sequence[int]
    n_kv_heads: Sequence[int]
    n_hidden: Sequence[int]
    """Hidden units; in a mixture, hidden units of each expert."""
    n_experts: Sequence[int] = (1, 1)
    """Routed experts of a mixture; 1 for other feed-forwards."""
    lost: float
    """Sum of first-order changes of the loss over everything that was cut, in nats."""
    energy_kept: Sequence[float]
    """[attention, feed-forward]: share of the squared norm of the input that is in the remaining coordinates."""


class Shrinking(StoredRecord):
    """The cut of one run."""

    file_name: ClassVar[str] = f"{SHRUNK}.json"

    source: str
    """Name of the original run."""
    step: int
    """Step of its checkpoint."""
    request: Mapping[str, object]
    """Options, as in `ShrinkOptions`."""
    turned: bool
    """True if the stream was rotated; otherwise its coordinates were at most reordered."""
    not_turned: str | None
    """Reason if a rotation was requested but impossible."""
    loss_before: float
    """Held-out loss before the cut, in nats per token."""
    loss_after: float
    """Held-out loss after the cut, before any training."""
    agreement: float
    """Share of held-out tokens for which both models predict the same next token as most likely."""
    n_tokens: int
    """Number of held-out tokens."""
    before: ModelSize
    after: ModelSize
    kv_bytes: Sequence[pydantic.PositiveFloat]
    """KV bytes per token, before and after."""
    d_model: Sequence[int] = ()
    """Width of embedding and head, before and after."""
    layers: Sequence[LayerCut]
    shape: Curve | None = None
    """Sizes after the cut relative to the original model; None if that was not uniform, or if no curve describes
    them."""
