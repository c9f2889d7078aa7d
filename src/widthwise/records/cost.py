"""The cost of a model, counted from its config."""

from collections.abc import Mapping, Sequence
from typing import Self

import pydantic

from widthwise.records.record import Number, Record

PARTS = ("embedding", "attention", "ffn", "norm", "residual", "head", "mtp")
"""The parts of a model, in the order in which tables list them."""


class FlopsPerToken(Record):
    """Floating-point operations per token; attention is counted in full, except in `forward_causal`."""

    forward: Number
    training: Number
    training_mtp: Number | None = None
    """The share of `training` that multi-token prediction takes."""
    forward_causal: Number | None = None


class CostSummary(Record):
    """Sizes and costs of a model; lists hold one entry per layer.

    Total parameters, training FLOPs and activations include multi-token prediction; active parameters, KV bytes and
    forward FLOPs do not, except that `flops_by_part` lists its forward FLOPs too.
    """

    d_model: int
    residual: str | None = None
    stream_width: int | None = None
    virtual_width: Number = 1.0
    """Width of a stream of slots divided by d_model; files of older versions lack it, their models have no slots."""
    n_slots: int | None = None
    slot_width: int | None = None
    n_mtp_depths: int = 0
    n_layers: int | None = None
    vocab_size: int | None = None
    seq_len: int | None = None
    widths: Sequence[int]
    average_width: Number
    n_heads: Sequence[int] = ()
    n_kv_heads: Sequence[int] = ()
    head_dim: Sequence[int] = ()
    hidden_widths: Sequence[Sequence[int]] = ()
    """Widths of the gated maps of each layer's feed-forward."""
    params: Mapping[str, Number]
    """Parameters by part: total, active, one entry for each of PARTS, and dead, those whose gradient is always 0."""
    flops_per_token: FlopsPerToken
    flops_by_part: Mapping[str, Number] = pydantic.Field(default_factory=dict)
    """Forward FLOPs per token by part, those of multi-token prediction included."""
    kv_bytes_per_token: Number
    activation_bytes_per_token: Number | None = None

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

    @property
    def is_uniform(self) -> bool:
        """True if all layers are equally wide."""
        return len(set(self.widths)) == 1


def sum_of(params: Mapping[str, Number], parts: Sequence[str]) -> Number | None:
    """Sum of the parameters of some parts; None if one of them is unknown."""
    return sum(params[part] for part in parts) if set(parts) <= params.keys() else None
