"""Laws and savings in words."""

from collections.abc import Sequence

import numpy as np

from widthwise.experiments.scaling.law_fit import N_RESAMPLES, Fit
from widthwise.experiments.scaling.points import Axes
from widthwise.records.estimate import CONFIDENCE, Estimate
from widthwise.records.scaling import Saving


def law_sentence(fit: Fit, axes: Axes) -> str:
    """The curve of a group with its numbers."""
    symbol = fit.law.steepness
    steepness = fit.intervals(CONFIDENCE)[symbol]
    doubt = "" if fit.reason is None else f"; {fit.reason}"
    quality = "all points are equal" if np.isnan(fit.r_squared) else f"R² {fit.r_squared:.4f}"
    if fit.misses_by_more_than_luck:
        doubt += "; its points lie off it by more than the luck of runs, and of that the intervals know nothing"
    return (
        f"{fit.group.name}: {fit.law.written(fit.parameters, axes.x, axes.y)} "
        f"({symbol}: {_ends(steepness, '{:.4g}')}; {quality}){doubt}."
    )


def saving_sentence(found: Sequence[Saving], group: str, law: str, x: str) -> str:
    """What a group saves by one law, curve against curve and point against curve, and by the other laws."""
    own = {(each.fit, each.kind): each for each in found if each.group == group}
    curve, point = own[law, "curve"], own[law, "point"]
    by_curves = _reached(curve, f"{curve.baseline}'s fitted loss of {curve.at.y:.4g}", x)
    by_point = _reached(point, f"the measured loss of {point.at.name} ({point.at.y:.4g})", x)
    others = [f"{kind} {_share(each)}" for (kind, how), each in own.items() if how == "curve" and kind != law]
    also = f" Curve against curve by other laws: {', '.join(others)}." if others else ""
    return f"{group} {by_curves}, by the two fitted curves; it {by_point}, by its curve and that point.{also}"


def method_sentence(fits: Sequence[Fit]) -> str:
    """How the intervals were computed."""
    drawn = sorted({"the luck of runs" if fit.group.has_seeds else "residuals" for fit in fits})
    return f"Intervals: {' and '.join(drawn)} drawn {N_RESAMPLES:,} times."


def _reached(saving: Saving, loss: str, x: str) -> str:
    if saving.ratio.mean is None:
        return f"never reaches {loss}"
    outside = ", outside its own models" if saving.is_extrapolated else ""
    return f"reaches {loss} with {_share(saving)} ({_ends(saving.ratio, '{:.1%}')}{outside}) of the {x}"


def _share(saving: Saving) -> str:
    return "never" if saving.ratio.mean is None else f"{saving.ratio.mean:.1%}"


def _ends(interval: Estimate, style: str) -> str:
    if interval.low is None or interval.high is None:
        return "no interval"
    return f"{CONFIDENCE:.0%} interval {style.format(interval.low)} to {style.format(interval.high)}"
