"""What the files behind several kinds of page hold: estimates, costs, and variants over the same seeds."""

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, Self

import pydantic

from widthwise.files import PathInside

Verdict = Literal["baseline", "better", "worse", "tie", "cannot tell", "no verdict"]


class Record(pydantic.BaseModel):
    """Base of the records: frozen and strict; a key that reports do not use is ignored."""

    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True)


class Estimate(Record):
    """A mean over seeds with its interval; no interval (None) where one seed allows none."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    per_seed: list[float | None] = []
    """One value per seed, in the order of `Compared.seeds`."""


class Flops(Record):
    """Floating-point operations per token."""

    forward: float
    training: float
    forward_causal: float | None = None


class Cost(Record):
    """Shape and cost of a model; lists hold one entry per layer."""

    widths: list[int]
    average_width: float
    virtual_width: float = 1.0
    """Width of a stream of slots over d_model; older runs say nothing of it, and have none."""
    d_model: int
    n_heads: list[int] = []
    n_kv_heads: list[int] = []
    head_dim: list[int] = []
    hidden_widths: list[list[int]] = []
    """Of the gated maps of each layer's feed-forward."""
    params: dict[str, float]
    flops_per_token: Flops
    kv_bytes_per_token: float
    activation_bytes_per_token: float | None = None

    @pydantic.model_validator(mode="after")
    def _one_entry_per_layer(self) -> Self:
        if not self.widths or min(self.widths) <= 0:
            raise ValueError("widths: expected at least one layer and widths above 0")
        for key in ("n_heads", "n_kv_heads", "head_dim", "hidden_widths"):
            n_entries = len(getattr(self, key))
            if n_entries not in (0, len(self.widths)):
                raise ValueError(f"{key}: got {n_entries} entries for {len(self.widths)} layers")
        if "total" not in self.params:
            raise ValueError("params: 'total' is missing")
        return self


class Variant(Record):
    """One recipe of a comparison, over all its seeds."""

    name: str
    runs: list[PathInside] = pydantic.Field(min_length=1)
    """Run directories, one per seed, relative to the comparison's folder."""
    val_loss: Estimate
    train_loss: Estimate | None = None
    val_bits_per_byte: Estimate | None = None
    tokens_per_second: Estimate | None = None
    shares_machine: bool = False
    """Whether other processes used the machine while a run trained, so that tokens_per_second is not comparable."""
    difference: Estimate | None = None
    """Of the metric to the baseline, paired by seed; None for the baseline."""
    verdict: Verdict
    cost: Cost
    ratio: dict[str, float | None]
    """Quantity -> value divided by the baseline's."""


class Compared(Protocol):
    """Variants over the same seeds, with or without a baseline: what the main table is made of."""

    @property
    def title(self) -> str: ...

    @property
    def confidence(self) -> float: ...

    @property
    def seeds(self) -> Sequence[int]: ...

    @property
    def baseline(self) -> str | None: ...

    @property
    def variants(self) -> Sequence[Variant]: ...

    @property
    def baseline_variant(self) -> Variant | None:
        """None where there is no baseline, or where it has no loss."""
        ...


def finite(value: Any) -> float:
    """The value as a float; NaN where it is absent, not a number or infinite."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan
