"""Dynamic width: the widths that layers choose for held-out tokens."""

from collections.abc import Mapping, Sequence

import pydantic

from widthwise.records.record import Known, Record


class LayerWidths(Record):
    """The widths that one dynamic-width layer chose for held-out tokens, as fractions of d_ff."""

    layer: int = pydantic.Field(ge=1)
    d_ff: int
    mean: float
    sd: float
    min: float
    max: float
    histogram: Sequence[float]
    """Share of the tokens in each of equally wide bins from 0 to 1."""
    floor_share: float
    ceiling_share: float
    dead_share: float
    """Share of the hidden units that no token used."""
    max_units: int
    gain: Known = None
    bias: Known = None
    temperature: Known = None


class ForcedLoss(Record):
    """Held-out loss if every token uses the same fraction of the hidden width."""

    fraction: float
    loss: float


class TokenWidths(Record):
    """Statistics of the dynamic-width layers of a model over held-out text."""

    n_tokens: int
    mean_fraction: float
    token_variance_share: Known = None
    """Part of the variance of the fractions that lies between tokens; the rest lies between layers."""
    flops_per_token: Mapping[str, float]
    """FLOPs of these layers: full, asked, bucketed, executed."""
    layers: Sequence[LayerWidths] = pydantic.Field(min_length=1)
    by_frequency_decile: Sequence[Known] = ()
    """Mean fraction by frequency of the token, the most frequent tenth first."""
    by_token_class: Mapping[str, float] = pydantic.Field(default_factory=dict)
    forced: Sequence[ForcedLoss] = ()
