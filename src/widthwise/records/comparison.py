"""What `comparison.json` holds, as far as reports show it."""

from typing import Any, Self

import pydantic

from widthwise.records.record import Estimate, Record, Variant, Verdict


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
