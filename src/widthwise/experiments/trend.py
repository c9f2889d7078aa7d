"""A line of the loss over the logarithm of a quantity that differs between variants, with intervals.

loss = slope * log2(quantity) + intercept, the form in which the virtual-width paper states its law (arXiv:2511.11238,
Fig. 8). A slope is a sum of the variants' losses whose factors add up to 0, like those of a difference: it is paired
by seed and by held-out text, and its interval is computed like that of a difference. What the runs of a seed have in
common moves only the intercept, whose interval is computed like that of a variant's own loss.
"""

from collections.abc import Mapping

import numpy as np
import pydantic

from widthwise.config_io import Config, UserError, nearest_hint
from widthwise.experiments.statistics import paired_mean, seed_interval, verdict
from widthwise.records.comparison import Trend, TrendPoint
from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_HELD_OUT, OF_MODELS
from widthwise.records.record import finite

FEWEST_VALUES = 3
"""A line passes through any two points, so two would say nothing about the fit."""


class TrendConfig(Config):
    """The `trend:` part of a compare section."""

    over: str
    """Name of a quantity that is counted from the config of a model."""
    of: str = "val_loss"
    """Name of a loss on held-out text, such as val_loss_next_2 of multi-token prediction."""
    variants: tuple[str, ...] | None = None
    """Variants that the line is fitted to; null: all."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "TrendConfig":
        if self.over not in OF_MODELS:
            raise ValueError(f"over: got {self.over!r}; {nearest_hint(self.over, OF_MODELS)}")
        if self.of not in OF_HELD_OUT:
            raise ValueError(f"of: got {self.of!r}; {nearest_hint(self.of, OF_HELD_OUT)}")
        if self.variants is not None and len(set(self.variants)) < len(self.variants):
            raise ValueError(f"variants: got {list(self.variants)}; each variant may be given once")
        return self

    def values(self, summaries: Mapping[str, CostSummary]) -> dict[str, float]:
        """Variant -> its quantity. summaries: the cost summaries of all.

        Raises UserError for too few values, and for a variant that will have no such loss.
        """
        names = summaries if self.variants is None else self.variants
        depth = OF_HELD_OUT[self.of].depth
        if found := [name for name in names if summaries[name].n_mtp_depths < depth]:
            raise UserError(f"compare.trend.of: got {self.of!r}; {found[0]} has no depth {depth} of model.mtp")
        values = {name: OF_MODELS[self.over].of_cost(summaries[name]) for name in names}
        check_values(values, self.over)
        return values


def check_values(values: dict[str, float], over: str) -> None:
    """Raises UserError if no line over their logarithm is determined."""
    found = ", ".join(f"{name} {value:.7g}" for name, value in values.items())
    if min(values.values(), default=1) <= 0:
        raise UserError(f"compare.trend.over: {over} is {found}; a logarithm needs values above 0")
    if len(set(values.values())) < FEWEST_VALUES:
        raise UserError(
            f"compare.trend.over: {over} is {found or 'given for no variant'}; a trend needs at least {FEWEST_VALUES} "
            "different values"
        )


def fit_trend(
    over: str, values: Mapping[str, float], losses: Mapping[str, np.ndarray], confidence: float, of: str = "val_loss"
) -> Trend:
    """Ordinary least squares over all variants, one line per seed.

    over: what the values are of; values: above 0, by variant; of: what the losses are; losses: in nats per token, by
    variant (n_seeds, n_windows), paired as in `paired_mean`.
    """
    doublings = np.log2(list(values.values()))
    of_variants = np.stack([np.asarray(losses[name], dtype=np.float64) for name in values])
    centre = doublings.mean()
    slope_factors = (doublings - centre) / np.square(doublings - centre).sum()
    slopes = np.tensordot(slope_factors, of_variants, axes=1)  # (n_seeds, n_windows)
    slope = paired_mean(slopes, confidence)
    intercept = seed_interval((of_variants.mean(axis=0) - centre * slopes).mean(axis=1), confidence)
    means = of_variants.mean(axis=(1, 2))
    line = finite(intercept.mean) + finite(slope.mean) * doublings
    return Trend(
        of=of,
        over=over,
        slope=slope,
        intercept=intercept,
        r_squared=float(1 - (means - line).var() / means.var()) if np.ptp(means) else None,
        verdict=verdict(paired_mean(np.ptp(doublings) * slopes, confidence)),
        points=[
            TrendPoint(variant=name, value=value, line=on_line, residual=residual)
            for (name, value), on_line, residual in zip(values.items(), line.tolist(), (means - line).tolist())
        ],
    )
