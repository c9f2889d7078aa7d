"""The scores and axes of a sweep's figures, and the heat map over two recipe keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from widthwise.records.estimate import Estimate
from widthwise.records.record import finite
from widthwise.records.sweep import FinishedPoint, OpenPoint, SearchedRange, Sweep
from widthwise.reports.page.formats import MISSING, clean, fixed, interval, plain, shorten, signed, tick
from widthwise.reports.page.html import Panel
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES
from widthwise.reports.page.svg import HEAT, INK, MUTED, draw
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


MOST_NARROW_COLUMNS = 4
_MOST_MEDIANS = 4.0
"""Colours saturate at this many times the median distance, so that a point that diverged does not pale the others."""


@dataclass(frozen=True)
class _Cell:
    """One cell of a grid."""

    row: int
    column: int
    point: FinishedPoint | OpenPoint


def heat_map(key: str, sweep: Sweep, group: str, grid: dict[str, list[Any]]) -> Panel:
    """A heat map whose longer axis is vertical, so that it fits on a narrow screen."""
    (down, rows), (across, columns) = sorted(grid.items(), key=lambda item: -len(item[1]))
    cells = [
        _Cell(index_of(rows, point.values.get(down)), index_of(columns, point.values.get(across)), point)
        for point in sweep.of_group(group)
    ]
    cells = [cell for cell in cells if cell.row >= 0 and cell.column >= 0]
    finished = [cell.point for cell in cells if isinstance(cell.point, FinishedPoint)]
    means = {point.name: finite(score(point, sweep).mean) for point in finished}
    known = {name: mean for name, mean in means.items() if np.isfinite(mean)}
    best = min(known, key=known.__getitem__, default=None)
    shade = _Shades(list(known.values()), sweep.baseline_words is not None)
    names = short_keys([down, across])

    def paint(axes: Axes) -> None:
        for cell in cells:
            _paint_cell(axes, cell, sweep, shade, cell.point.name == best)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_xticks(range(len(columns)), [shown(value) for value in columns])
        axes.set_yticks(range(len(rows)), [shown(value) for value in rows])
        axes.set_xlabel(names[across])
        axes.set_ylabel(names[down])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)

    what = "Difference to the baseline" if sweep.baseline_words else "Held-out loss"
    label = f"{what} of {shorten(group or 'all points', 40)} over {names[down]} and {names[across]}."
    if best is not None:
        low, high = (shown_score(end, sweep) for end in (min(known.values()), max(known.values())))
        label += f" From {low} to {high}; best: {shorten(best, 60)}."
    cell_width = 0.95 if len(columns) <= MOST_NARROW_COLUMNS else 0.6
    size = (max(1.2 + cell_width * len(columns), INCHES[0]), 0.9 + 0.62 * len(rows))
    title = f"{clean(group)}: {names[down]} and {names[across]}" if group else f"{names[down]} and {names[across]}"
    return Panel(title, draw(key, label, size, paint))


class _Shades:
    """Numbers to colours: blue below 0 and orange above; without a baseline the deeper blue, the lower the loss."""

    def __init__(self, scores: Sequence[float], has_zero: bool):
        self._has_zero = has_zero
        start = 0.0 if has_zero else min(scores, default=0.0)
        distances = [abs(each - start) for each in scores if each != start] or [1.0]
        self._largest = min(max(distances), _MOST_MEDIANS * float(np.median(distances)))
        self._middle = start if has_zero else start + self._largest

    def __call__(self, each: float) -> str:
        n_each = len(HEAT) // 2
        highest = 1.0 if self._has_zero else 0.0
        share = min(max((each - self._middle) / self._largest, -1.0), highest)
        return HEAT[n_each + int(math.copysign(math.ceil(abs(share) * n_each - 1e-9), share))]


def _paint_cell(axes: Axes, cell: _Cell, sweep: Sweep, shade: _Shades, is_best: bool) -> None:
    point, x, y = cell.point, cell.column, cell.row
    if isinstance(point, OpenPoint):
        axes.text(x, y, point.state, ha="center", va="center", color=MUTED)
        return
    mean = finite(score(point, sweep).mean)
    if np.isfinite(mean):
        label = named(point.name, shown_score(mean, sweep), interval(score(point, sweep), 4))
        axes.add_patch(Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, color=shade(mean), linewidth=0, label=label))
    if is_best:
        axes.add_patch(Rectangle((x - 0.46, y - 0.45), 0.92, 0.9, fill=False, edgecolor=INK, linewidth=1.8))
    mark = "*" if sweep.baseline_words and point.verdict in ("better", "worse") else ""
    number = shown_score(mean, sweep, 3 if sweep.baseline_words else 4) if np.isfinite(mean) else MISSING
    weight = "bold" if is_best else "normal"
    axes.text(x, y + 0.17, number + mark, ha="center", va="center", fontweight=weight)
    axes.text(x, y - 0.2, tick(round(point.cost.average_width, 1)), ha="center", va="center")
