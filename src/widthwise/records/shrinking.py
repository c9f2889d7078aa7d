"""`shrunk.json`: where a smaller model was cut out of a trained one, and what it lost."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pydantic

from widthwise.records.certificate import ModelSize
from widthwise.records.discovery import Curve
from widthwise.records.record import Record, StoredRecord

SHRUNK = "shrunk"
"""The stem of the files with the record, and with the recipe of its shape."""


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
