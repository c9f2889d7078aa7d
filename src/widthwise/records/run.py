"""What run directories hold, as far as reports show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import pydantic

from widthwise.records.record import Cost, Record


class Correlation(Record):
    """Of a layer's width with a property of the token."""

    spearman: float
    low: float | None = None
    high: float | None = None
    """No interval (None) from one window of text."""
    pearson: float


class LayerWidths(Record):
    """The widths that one dynamic-width layer chose for held-out tokens, as fractions of d_ff."""

    layer: int = pydantic.Field(ge=1)
    d_ff: int
    mean: float
    sd: float
    min: float
    max: float
    histogram: list[float]
    """Share of the tokens in each of equally wide bins from 0 to 1."""
    floor_share: float
    ceiling_share: float
    dead_share: float
    """Share of the hidden units that no token used."""
    max_units: int
    gain: float | None = None
    bias: float | None = None
    temperature: float | None = None
    correlations: dict[str, Correlation | None] = pydantic.Field(default_factory=dict)
    """Property of the token -> correlation; None where one of the two does not vary."""


class ForcedLoss(Record):
    """Held-out loss where every token uses the same fraction of the hidden width."""

    fraction: float
    loss: float


class TokenWidths(Record):
    """What a validation found in the dynamic-width layers of a model."""

    n_tokens: int
    mean_fraction: float
    token_variance_share: float | None = None
    """Part of the variance of the fractions that lies between tokens; the rest lies between layers."""
    flops_per_token: dict[str, float]
    """Of these layers: full, asked, bucketed, executed."""
    layers: list[LayerWidths] = pydantic.Field(min_length=1)
    by_frequency_decile: list[float | None] = pydantic.Field(default_factory=list)
    """Mean fraction of the tokens by how frequent they are, the most frequent tenth first."""
    by_token_class: dict[str, float] = pydantic.Field(default_factory=dict)
    forced: list[ForcedLoss] = pydantic.Field(default_factory=list)


class SiteSlots(Record):
    """What one sublayer reads and writes of a stream of slots; tables have a row a slot."""

    name: str
    reach: list[float]
    """Weights of the embedding and of every sublayer before."""
    reach_sd: list[float]
    mean_distance: float | None
    plain_distance: float
    """What the distance would be with equal weights."""
    read: list[list[float]]
    carry: list[list[float]]
    write: list[list[float]]
    sd: dict[str, list[float]]


class VirtualWidth(Record):
    """How a model with hyper-connections uses its stream."""

    n_tokens: int
    n_slots: int
    slot_width: int
    sites: list[SiteSlots] = pydantic.Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        for i, site in enumerate(self.sites):
            if not len(site.reach) == len(site.reach_sd) == i + 1:
                raise ValueError(f"sites.{i}.reach: expected {i + 1} weights, one for each source")
            if {len(site.read), len(site.carry), len(site.write)} != {self.n_slots}:
                raise ValueError(f"sites.{i}: expected tables of n_slots = {self.n_slots} rows")
        return self


class Growth(Record):
    """A moment at which the model of a run became another one, most often a larger one."""

    event: Literal["growth", "grown", "baked", "padded"] = "growth"
    """In the course of the run; or by a verb, where the run begins where another one stood."""
    step: int
    """Steps done before."""
    tokens: int
    training_flops: float
    """Of all steps before."""
    params_before: float
    params_after: float
    loss_before: float | None = None
    """Held out."""
    loss_after: float | None = None


class Result(Record):
    """The content of a run's `result.json`."""

    status: str = "finished"
    name: str | None = None
    seed: int | None = None
    steps: int | None = None
    tokens: int | None = None
    train_loss: float | None = None
    val_loss: float | None = None
    val_perplexity: float | None = None
    val_bits_per_byte: float | None = None
    tokens_per_second: float | None = None
    wall_seconds: float | None = None
    pflops_days: float | None = None
    """Training compute in PFLOP/s-days, all passes over a token counted."""
    training_flops: float | None = None
    """The same in FLOPs."""
    growth: list[Growth] = pydantic.Field(default_factory=list)
    """In order; empty where the model stayed the same."""
    val_mtp_losses: list[float] | None = None
    """Of the further heads, nearest first; None for a model without."""
    cost: Cost | None = None
    token_widths: TokenWidths | None = None
    """None for a model without dynamic-width layers."""
    virtual_width: VirtualWidth | None = None
    """None for a model without hyper-connections."""


class Liveness(Record):
    """Of the new entries of one tensor: how many have had a gradient by the end of two steps."""

    n_new: int
    n_alive: int
    n_dead: int
    n_unjudged: int
    """Rows of tokens and positions that did not occur."""


class Size(Record):
    """Of a model before or after its growth."""

    params: int
    flops_per_token: float
    """Forward."""


class Certificate(Record):
    """The content of `certificate.json`: what was measured of a grown model. Differences are the largest of all."""

    is_preserved: bool
    dtype: str
    n_sequences: int
    n_tokens: int
    """Of each sequence."""
    largest_logit: float
    logit_difference: float
    logit_bound: float
    stored_logit_difference: float
    stored_logit_bound: float
    gradient_difference: float
    """Over the largest entry of all gradients."""
    gradient_bound: float
    liveness: dict[str, Liveness]
    is_padding: bool
    before: Size
    after: Size


@dataclass(frozen=True)
class Run:
    """A run directory in memory; `result` is None while the run has not finished."""

    path: str
    config_yaml: str
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: Result | None
    growths: Sequence[Growth] = ()
    """In order."""
    certificate: Certificate | None = None
    """Of the last growth by a verb."""

    @property
    def name(self) -> str:
        return (self.result and self.result.name) or Path(self.path).name or self.path

    @property
    def cost(self) -> Cost | None:
        return self.result.cost if self.result else None
