"""A line of the loss over the logarithm of a quantity that differs between variants, with intervals.

loss = slope * log2(quantity) + intercept, the form in which the virtual-width paper states its law (arXiv:2511.11238,
Fig. 8). A slope is a sum of the variants' losses whose factors add up to 0, like those of a difference: it is paired
by seed and by held-out text, and its interval is computed like that of a difference. What the runs of a seed have in
common moves only the intercept, whose interval is computed like that of a variant's own loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic

from widthwise.config_io import Config, UserError, nearest_hint
from widthwise.experiments.statistics import Estimate, paired_mean, seed_interval, verdict
from widthwise.shape.breakdown import HEADLINES

QUANTITIES = HEADLINES | {"virtual_width": lambda summary: summary["virtual_width"]}
"""Quantities that a trend can run over, and where a cost summary has them."""
FEWEST_VALUES = 3
"""A line fits any two."""


class TrendConfig(Config):
    """The `trend:` part of a compare section."""

    over: str
    """A name in QUANTITIES."""
    variants: tuple[str, ...] | None = None
    """Variants that the line is fitted to; null: all."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "TrendConfig":
        if self.over not in QUANTITIES:
            raise ValueError(f"over: got {self.over!r}; {nearest_hint(self.over, QUANTITIES)}")
        if self.variants is not None and len(set(self.variants)) < len(self.variants):
            raise ValueError(f"variants: got {list(self.variants)}; each variant may stand once")
        return self

    def values(self, summaries: Mapping[str, dict[str, Any]]) -> dict[str, float]:
        """Variant -> its quantity. summaries: the cost summaries of all. Raises UserError for too few values."""
        names = summaries if self.variants is None else self.variants
        values = {name: QUANTITIES[self.over](summaries[name]) for name in names}
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


@dataclass(frozen=True)
class LogLinearFit:
    """Ordinary least squares over all variants, one line per seed. Losses in nats per token."""

    slope: Estimate
    """Change of the loss per doubling; Student's t times a bootstrap standard error over seeds and windows."""
    intercept: Estimate
    """The line where the quantity is 1; Student's t over seeds."""
    line: list[float]
    """The mean line at each variant's value."""
    residuals: list[float]
    """Mean loss of each variant minus the line."""
    r_squared: float
    """R² of the line through the mean losses; nan if they are all equal."""
    verdict: str
    """Like that of a difference: "better" if a larger quantity gives a lower loss. The tie margin applies to the total
    change from the smallest to the largest value."""


def fit_log_linear(values: Sequence[float], losses: np.ndarray, confidence: float = 0.95) -> LogLinearFit:
    """values: (n_variants,), above 0; losses: (n_variants, n_seeds, n_windows), paired as in `paired_mean`."""
    doublings, losses = np.log2(values), np.asarray(losses, dtype=np.float64)
    centre = doublings.mean()
    slope_factors = (doublings - centre) / np.square(doublings - centre).sum()
    slopes = np.tensordot(slope_factors, losses, axes=1)  # (n_seeds, n_windows)
    slope = paired_mean(slopes, confidence)
    intercept = seed_interval((losses.mean(axis=0) - centre * slopes).mean(axis=1), confidence)
    means = losses.mean(axis=(1, 2))
    line = intercept.mean + slope.mean * doublings
    return LogLinearFit(
        slope=slope,
        intercept=intercept,
        line=line.tolist(),
        residuals=(means - line).tolist(),
        r_squared=1 - (means - line).var() / means.var() if np.ptp(means) else float("nan"),
        verdict=verdict(paired_mean(np.ptp(doublings) * slopes, confidence)),
    )


def trend_summary(
    over: str, values: Mapping[str, float], losses: Mapping[str, np.ndarray], confidence: float
) -> dict[str, Any]:
    """The fit as data. losses: variant -> (n_seeds, n_windows)."""
    fit = fit_log_linear(list(values.values()), np.stack([losses[name] for name in values]), confidence)
    return {
        "over": over,
        "slope": vars(fit.slope),
        "intercept": vars(fit.intercept),
        "r_squared": float(fit.r_squared),
        "verdict": fit.verdict,
        "points": [
            {"variant": name, "value": value, "line": line, "residual": residual}
            for (name, value), line, residual in zip(values.items(), fit.line, fit.residuals)
        ],
    }
