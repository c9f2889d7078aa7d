"""The axes of a sweep's figures: losses or differences, and values of recipe keys."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from widthwise.records.estimate import Estimate
from widthwise.records.sweep import FinishedPoint, SearchedRange, Sweep
from widthwise.reports.page.formats import clean, fixed, plain, shorten, signed, tick
from widthwise.reports.page.ticks import TickFormatter

_WIDE_RANGE = 8.0
"""Positive numbers that differ by more than this factor get a logarithmic axis."""


def score(point: FinishedPoint, sweep: Sweep) -> Estimate:
    """Difference to its baseline if there is one, otherwise the loss; a baseline differs by 0 from itself."""
    if sweep.baseline_words is None:
        return point.val_loss
    return point.difference or Estimate(mean=0.0 if sweep.baseline_of(point) is point else None)


def shown_score(mean: float, sweep: Sweep, n_decimals: int = 4) -> str:
    """A score as text, with its sign if it is a difference."""
    return (signed if sweep.baseline_words else fixed)(mean, n_decimals)


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Recipe key -> its last part, or the whole key if two have the same last part."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: clean(end if ends.count(end) == 1 else key) for key, end in zip(keys, ends)}


def index_of(values: list[Any], value: Any) -> int:
    """Index of a value; -1 if it is none of them."""
    return next((i for i, each in enumerate(values) if each == value), -1)


def shown(value: Any) -> str:
    """A value as an axis labels it."""
    return tick(value) if _is_number(value) else shorten(plain(value), 14)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class AxisScale:
    """The positions of one key's values on an axis: numbers by their value, everything else in the given order."""

    def __init__(self, axis: list[Any] | SearchedRange):
        self.values = axis if isinstance(axis, list) else []
        ends = [axis.low, axis.high] if isinstance(axis, SearchedRange) else list(axis)
        self.is_numeric = bool(ends) and all(map(_is_number, ends))
        is_wide = self.is_numeric and min(ends) > 0 and max(ends) > _WIDE_RANGE * min(ends)
        self.is_log = axis.log if isinstance(axis, SearchedRange) else is_wide
        self._ends = (min(ends), max(ends)) if self.is_numeric else (0.0, len(self.values) - 1.0)

    def at(self, value: Any) -> float:
        """Position of a value; NaN if it is not on the axis."""
        if self.is_numeric:
            return float(value) if _is_number(value) else math.nan
        index = index_of(self.values, value)
        return float(index) if index >= 0 else math.nan

    def aside(self, place: float, share: float) -> float:
        """A position moved by a share of the axis, so that intervals of several groups do not overlap."""
        low, high = self._ends
        return place * (high / low) ** share if self.is_log else place + share * (high - low)

    def apply(self, axes: Axes) -> None:
        """Applies the scale, its ticks and labels to the x axis."""
        if self.is_log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(TickFormatter())
        if self.values and len(self.values) <= 9:
            axes.set_xticks([self.at(value) for value in self.values], [shown(value) for value in self.values])
            axes.xaxis.set_minor_locator(NullLocator())


def scale_of(sweep: Sweep, key: str, groups: Sequence[str]) -> AxisScale:
    """One scale for all groups that vary the key."""
    axes = [sweep.axes[group][key] for group in groups]
    if isinstance(axes[0], SearchedRange):
        return AxisScale(axes[0])
    every = [value for axis in axes if isinstance(axis, list) for value in axis]
    distinct = [value for i, value in enumerate(every) if value not in every[:i]]
    return AxisScale(sorted(distinct) if all(map(_is_number, distinct)) else distinct)
