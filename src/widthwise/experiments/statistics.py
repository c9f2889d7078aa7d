"""Statistics for few seeds: paired differences and their intervals, and lines through losses."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, check_one_of
from widthwise.evaluation.estimate import SampleEstimate, mean
from widthwise.records.cost import CostSummary
from widthwise.records.estimate import CONFIDENCE, FEWEST_SEEDS, TIE_MARGIN, Estimate, Verdict
from widthwise.records.outcome import Trend, TrendPoint
from widthwise.records.quantities import OF_HELD_OUT, OF_MODELS
from widthwise.records.record import finite


def seed_interval(per_seed: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return Student's t interval of the mean over seeds; one seed gives no interval (None).

    per_seed: one number per seed.
    """
    values = np.asarray(per_seed, dtype=np.float64)
    return mean(values).with_interval(confidence).with_changes(per_seed=values.tolist())


def paired_mean(differences: np.ndarray, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of differences of losses, or of other sums of them, with Student's t interval.

    differences: (n_seeds, n_windows); the same row is the same seed and data order, the same column the same held-out
    text. The variance of the mean has two parts: that of the means of seeds, and what the means of windows vary beyond
    their noise, which the first part includes (a two-way layout with random rows and columns). One seed gives no
    interval.
    """
    n_seeds, n_windows = differences.shape
    of_seeds, of_windows = differences.mean(axis=1), differences.mean(axis=0)
    seeds, text = mean(of_seeds), mean(of_windows)
    noise = np.square(differences - of_seeds[:, None] - of_windows + seeds.value).sum()
    noise /= max((n_seeds - 1) * (n_windows - 1), 1) * differences.size
    of_text = max(0.0, text.stderr**2 - noise)  # 0 for a single window, the error of which is nan
    found = _of_parts(seeds.value, [(seeds.stderr**2, seeds.df), (of_text, text.df)])
    return found.with_interval(confidence).with_changes(per_seed=of_seeds.tolist(), df=found.df)


def _of_parts(value: float, parts: Sequence[tuple[float, float]]) -> SampleEstimate:
    """Return a value with the standard error of the sum of independent variances. parts: variance, degrees of freedom.

    The degrees of freedom are the harmonic mean, weighted by variance. Welch and Satterthwaite square the weights,
    which takes estimated variances for true ones: with three seeds such intervals cover as little as 92 percent
    (`test_statistics.py`), with these weights 94 to 97.
    """
    variance = sum(part for part, _ in parts)
    uncertainty = sum(part / max(df, 1) for part, df in parts)
    return SampleEstimate(value, variance**0.5, variance / uncertainty if uncertainty else math.inf)


def verdict(difference: Estimate) -> Verdict:
    """Return the verdict on a difference of losses.

    "better" or "worse" if the interval excludes 0; "tie" if it lies within TIE_MARGIN of 0; otherwise "cannot tell".
    With fewer than FEWEST_SEEDS seeds, "no verdict".
    """
    if len(difference.per_seed) < FEWEST_SEEDS:
        return "no verdict"
    if difference.low is None or difference.high is None:
        return "cannot tell"
    if difference.high < 0:
        return "better"
    if difference.low > 0:
        return "worse"
    return "tie" if max(-difference.low, difference.high) <= TIE_MARGIN else "cannot tell"


FEWEST_VALUES = 3
"""A line passes through any two points, so two would say nothing about the fit."""


class TrendConfig(Config):
    """The `trend:` part of a compare section."""

    over: str
    """Name of a quantity that is counted from the config of a model."""
    of: str = "val_loss"
    """Name of a loss on held-out text, such as val_loss_next_2 of multi-token prediction."""
    variants: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Variants that the line is fitted to; null: all."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "TrendConfig":
        check_one_of("over", self.over, OF_MODELS)
        check_one_of("of", self.of, OF_HELD_OUT)
        if self.variants is not None and len(set(self.variants)) < len(self.variants):
            raise ValueError(f"variants: got {list(self.variants)}; each variant may be given once")
        return self

    def values(self, summaries: Mapping[str, CostSummary]) -> dict[str, float]:
        """Return variant -> its quantity. summaries: the cost summaries of all.

        Raises UserError if no line over the logarithm is determined, and for a variant that will have no such loss.
        """
        names, depth, over = self.variants or summaries, OF_HELD_OUT[self.of].depth, "compare.trend.over"
        if found := [name for name in names if summaries[name].n_mtp_depths < depth]:
            raise UserError(f"compare.trend.of: got {self.of!r}; {found[0]} has no depth {depth} of model.mtp")
        values = {name: OF_MODELS[self.over].of_cost(summaries[name]) for name in names}
        shown = ", ".join(f"{name} {value:.7g}" for name, value in values.items())
        if min(values.values()) <= 0:
            raise UserError(f"{over}: {self.over} is {shown}; a logarithm needs values above 0")
        if len(set(values.values())) < FEWEST_VALUES:
            raise UserError(f"{over}: {self.over} is {shown}; a trend needs at least {FEWEST_VALUES} different values")
        return values


def fit_trend(over: str, values: Mapping[str, float], losses: Mapping[str, np.ndarray], of: str = "val_loss") -> Trend:
    """Fit ordinary least squares over all variants, one line per seed.

    over: name of the quantity; values: above 0, by variant; of: name of the loss; losses: in nats per token, by variant
    (n_seeds, n_windows), paired as in `paired_mean`.
    """
    doublings = np.log2(list(values.values()))
    of_variants = np.stack([np.asarray(losses[name], dtype=np.float64) for name in values])
    centre = doublings.mean()
    slope_factors = (doublings - centre) / np.square(doublings - centre).sum()
    slopes = np.tensordot(slope_factors, of_variants, axes=1)  # (n_seeds, n_windows)
    slope = paired_mean(slopes)
    intercept = seed_interval((of_variants.mean(axis=0) - centre * slopes).mean(axis=1))
    means = of_variants.mean(axis=(1, 2))
    line = finite(intercept.mean) + finite(slope.mean) * doublings
    return Trend(
        of=of,
        over=over,
        slope=slope,
        intercept=intercept,
        r_squared=float(1 - (means - line).var() / means.var()) if np.ptp(means) else None,
        verdict=verdict(paired_mean(np.ptp(doublings) * slopes)),
        points=[
            TrendPoint(variant=name, value=value, line=on_line, residual=residual)
            for (name, value), on_line, residual in zip(values.items(), line.tolist(), (means - line).tolist())
        ],
    )
