"""What `comparison.json` and run directories hold, as far as reports show it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import pydantic

Verdict = Literal["baseline", "better", "worse", "tie", "cannot tell"]


class Record(pydantic.BaseModel):
    """Base of the records: frozen and strict; a key that reports do not use is ignored."""

    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True)


class Estimate(Record):
    """A mean over seeds with its interval; no interval (None) where one seed allows none."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    per_seed: list[float | None] = []
    """One value per seed, in the order of `Comparison.seeds`."""


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
    runs: list[str] = pydantic.Field(min_length=1)
    """Run directories, one per seed, relative to the comparison's folder."""
    val_loss: Estimate
    train_loss: Estimate | None = None
    val_bits_per_byte: Estimate | None = None
    tokens_per_second: Estimate | None = None
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
        """None where there is no baseline, or where it has not finished."""
        ...


class TrendPoint(Record):
    """One variant of a trend."""

    variant: str
    value: float = pydantic.Field(gt=0)
    """Of the quantity."""
    line: float | None
    """The fitted line there."""
    residual: float | None
    """Mean loss minus the line."""


class Trend(Record):
    """The losses as a line over the logarithm of a quantity."""

    over: str
    """The quantity."""
    slope: Estimate
    """Nats with each doubling."""
    intercept: Estimate
    """The line where the quantity is 1."""
    r_squared: float | None
    verdict: Verdict
    points: list[TrendPoint] = pydantic.Field(min_length=1)


class Comparison(Record):
    """The content of `comparison.json`."""

    title: str
    command: str
    created: str
    metric: str
    confidence: float = pydantic.Field(gt=0, lt=1)
    seeds: list[int]
    baseline: str
    matched: str | None = None
    sentence: str
    """The answer in words, a line for each variant and one for the trend."""
    environment: dict[str, Any]
    variants: list[Variant] = pydantic.Field(min_length=1)
    trend: Trend | None = None

    @pydantic.model_validator(mode="after")
    def _baseline_is_a_variant(self) -> Self:
        names = [variant.name for variant in self.variants]
        if self.baseline not in names:
            raise ValueError(f"baseline: got {self.baseline!r}, which is none of the variants {', '.join(names)}")
        if len(set(names)) < len(names):
            raise ValueError("variants: two have the same name")
        return self

    @pydantic.model_validator(mode="after")
    def _trend_is_of_the_variants(self) -> Self:
        n_losses = {variant.name: len(variant.val_loss.per_seed) for variant in self.variants}
        for point in self.trend.points if self.trend else ():
            if point.variant not in n_losses:
                raise ValueError(f"trend.points: got {point.variant!r}, which is none of {', '.join(n_losses)}")
            if n_losses[point.variant] != len(self.seeds):
                raise ValueError(f"variants: {point.variant} has not one loss per seed, which the trend needs")
        return self

    @property
    def baseline_variant(self) -> Variant:
        return next(variant for variant in self.variants if variant.name == self.baseline)


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
    correlations: dict[str, Correlation | None] = {}
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
    by_frequency_decile: list[float | None] = []
    """Mean fraction of the tokens by how frequent they are, the most frequent tenth first."""
    by_token_class: dict[str, float] = {}
    forced: list[ForcedLoss] = []


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
    growth: list[Growth] = []
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


def finite(value: Any) -> float:
    """The value as a float; NaN where it is absent, not a number or infinite."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan
