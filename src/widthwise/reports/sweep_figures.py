"""The figures of a sweep: heat maps, lines with intervals, and losses over training compute."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from widthwise.reports.formats import clean, fixed, plain, shorten, si, signed, tick
from widthwise.reports.html import Panel
from widthwise.reports.plots import label_axes
from widthwise.reports.records import Estimate, finite
from widthwise.reports.svg import CARD, HEAT, INK, MUTED, Style, draw, line_legend
from widthwise.reports.sweep_records import FinishedPoint, OpenPoint, Range, Sweep

Axis = list[Any] | Range
_MOST_NARROW_COLUMNS = 4
_WIDE_RANGE = 8.0
"""Positive numbers that differ by more than this factor stand on a logarithmic axis."""


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Recipe key -> its last part, or all of it where two end alike."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: clean(end if ends.count(end) == 1 else key) for key, end in zip(keys, ends)}


@dataclass(frozen=True)
class GroupFigures:
    """What was varied in each group."""

    maps: list[Panel]
    """Of grids of two keys that fit beside each other."""
    wide_maps: list[Panel]
    """Of those that do not."""
    lines: list[Panel]
    """Of everything else: losses over each key."""
    line_groups: list[str]
    """Groups that `lines` show."""


def group_figures(sweep: Sweep, styles: Mapping[str, Style]) -> GroupFigures:
    """A heat map for a grid of two keys; for one key, for a search and for larger grids the losses over each key."""
    found = GroupFigures([], [], [], [])
    single: dict[str, list[str]] = {}
    for number, group in enumerate(sweep.groups):
        axes = {key: axis for key, axis in sweep.axes.get(group, {}).items() if isinstance(axis, Range) or axis[1:]}
        match list(axes.items()):
            case [(first, list(rows)), (second, list(columns))]:
                maps = found.maps if min(len(rows), len(columns)) <= _MOST_NARROW_COLUMNS else found.wide_maps
                maps.append(_heat_map(f"map-{number}", sweep, group, {first: rows, second: columns}))
                continue
            case [(key, list())]:
                single.setdefault(key, []).append(group)
            case _:
                found.lines.extend(
                    _losses_over(f"slice-{number}-{i}", sweep, key, [group], styles, connected=False)
                    for i, key in enumerate(axes)
                )
        if axes:
            found.line_groups.append(group)
    for i, (key, groups) in enumerate(single.items()):
        found.lines.append(_losses_over(f"line-{i}", sweep, key, groups, styles, connected=True))
    return found


@dataclass(frozen=True)
class _Cell:
    """One place of a grid."""

    row: int
    column: int
    point: FinishedPoint | OpenPoint


def _heat_map(key: str, sweep: Sweep, group: str, grid: dict[str, list[Any]]) -> Panel:
    """The longer axis runs upwards, so that a narrow screen has room."""
    (down, rows), (across, columns) = sorted(grid.items(), key=lambda item: -len(item[1]))
    cells = [
        _Cell(_index(rows, point.values.get(down)), _index(columns, point.values.get(across)), point)
        for point in sweep.of_group(group)
    ]
    cells = [cell for cell in cells if cell.row >= 0 and cell.column >= 0]
    scores = {cell.point.name: _score(cell.point, sweep) for cell in cells if isinstance(cell.point, FinishedPoint)}
    known = {name: score for name, score in scores.items() if np.isfinite(score)}
    best = min(known, key=lambda name: known[name], default=None)
    shade = _Shades(list(known.values()), sweep.baseline_variant is not None)
    names = short_keys([down, across])

    def paint(axes: Axes) -> None:
        for cell in cells:
            _paint_cell(axes, cell, sweep, shade, cell.point.name == best)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_xticks(range(len(columns)), [_shown(value) for value in columns])
        axes.set_yticks(range(len(rows)), [_shown(value) for value in rows])
        axes.set_xlabel(names[across])
        axes.set_ylabel(names[down])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)

    what = "Difference to the baseline" if sweep.baseline_variant else "Held-out loss"
    label = f"{what} of {shorten(group or 'all points', 40)} over {names[down]} and {names[across]}."
    if best is not None:
        low, high = (_number(end, sweep) for end in (min(known.values()), max(known.values())))
        label += f" From {low} to {high}; best: {shorten(best, 60)}."
    cell_width = 0.95 if len(columns) <= _MOST_NARROW_COLUMNS else 0.72
    size = (1.2 + max(cell_width * len(columns), 2.3), 0.9 + 0.62 * len(rows))
    title = f"{clean(group)}: {names[down]} and {names[across]}" if group else f"{names[down]} and {names[across]}"
    return Panel(title, draw(key, label, size, paint))


def _index(values: list[Any], value: Any) -> int:
    """-1 where it is none of them."""
    return next((i for i, each in enumerate(values) if each == value), -1)


def _score(point: FinishedPoint, sweep: Sweep) -> float:
    """Difference to the baseline where there is one, else the loss; NaN where it is unknown."""
    if sweep.baseline_variant is None:
        return finite(point.val_loss.mean)
    return finite(_estimate(point, sweep).mean)


def _number(score: float, sweep: Sweep) -> str:
    return signed(score, 4) if sweep.baseline_variant else fixed(score, 4)


class _Shades:
    """Numbers to colours: blue below 0 and orange above; without a baseline the deeper blue, the lower the loss."""

    def __init__(self, scores: Sequence[float], has_zero: bool):
        self._middle = 0.0 if has_zero else max(scores, default=0.0)
        self._largest = max((abs(score - self._middle) for score in scores), default=0.0) or 1.0

    def __call__(self, score: float) -> str:
        n_each = len(HEAT) // 2
        share = (score - self._middle) / self._largest
        return HEAT[n_each + int(math.copysign(math.ceil(abs(share) * n_each - 1e-9), share))]


def _paint_cell(axes: Axes, cell: _Cell, sweep: Sweep, shade: _Shades, is_best: bool) -> None:
    point, x, y = cell.point, cell.column, cell.row
    if isinstance(point, OpenPoint):
        axes.text(x, y, point.state, ha="center", va="center", color=MUTED, fontsize=8.5)
        return
    score = _score(point, sweep)
    if np.isfinite(score):
        axes.add_patch(Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, color=shade(score), linewidth=0))
    if is_best:
        axes.add_patch(Rectangle((x - 0.46, y - 0.45), 0.92, 0.9, fill=False, edgecolor=INK, linewidth=1.8))
    mark = "*" if _excludes_zero(point.difference) else ""
    shown = signed(score, 3) if sweep.baseline_variant else fixed(score, 4)
    weight = "bold" if is_best else "normal"
    axes.text(x, y + 0.17, shown + mark, ha="center", va="center", fontsize=10, fontweight=weight)
    axes.text(x, y - 0.2, tick(round(point.cost.average_width, 1)), ha="center", va="center", fontsize=8.5)


def _excludes_zero(difference: Estimate | None) -> bool:
    if difference is None or difference.low is None or difference.high is None:
        return False
    return difference.high < 0 or difference.low > 0


def _shown(value: Any) -> str:
    return tick(value) if _is_number(value) else shorten(plain(value), 14)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _Scale:
    """Where values of one key stand on an axis: numbers at their place, everything else in the given order."""

    def __init__(self, axis: Axis):
        self.values = axis if isinstance(axis, list) else []
        ends = [axis.low, axis.high] if isinstance(axis, Range) else list(axis)
        self.is_numeric = bool(ends) and all(map(_is_number, ends))
        is_wide = self.is_numeric and min(ends) > 0 and max(ends) > _WIDE_RANGE * min(ends)
        self.is_log = axis.log if isinstance(axis, Range) else is_wide
        self._ends = (min(ends), max(ends)) if self.is_numeric else (0.0, len(self.values) - 1.0)

    def at(self, value: Any) -> float:
        """NaN for what is not on the axis."""
        if self.is_numeric:
            return float(value) if _is_number(value) else math.nan
        index = _index(self.values, value)
        return float(index) if index >= 0 else math.nan

    def aside(self, place: float, share: float) -> float:
        """A little beside a place, by so much of the axis: intervals of several groups are told apart."""
        low, high = self._ends
        return place * (high / low) ** share if self.is_log else place + share * (high - low)

    def apply(self, axes: Axes) -> None:
        if self.is_log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        if self.values and len(self.values) <= 9:
            axes.set_xticks([self.at(value) for value in self.values], [_shown(value) for value in self.values])
            axes.xaxis.set_minor_locator(NullLocator())


def _scale_of(sweep: Sweep, key: str, groups: Sequence[str]) -> _Scale:
    """One for all groups that vary the key."""
    axes = [sweep.axes[group][key] for group in groups]
    if isinstance(axes[0], Range):
        return _Scale(axes[0])
    every = [value for axis in axes if isinstance(axis, list) for value in axis]
    distinct = [value for i, value in enumerate(every) if value not in every[:i]]
    return _Scale(sorted(distinct) if all(map(_is_number, distinct)) else distinct)


def _losses_over(
    figure: str, sweep: Sweep, key: str, groups: Sequence[str], styles: Mapping[str, Style], connected: bool
) -> Panel:
    """Points with their intervals over the values of one key. connected: a line for each group."""
    scale, name = _scale_of(sweep, key, groups), clean(key.rpartition(".")[2])
    placed = {
        group: sorted(
            (
                (scale.at(point.values.get(key)), _estimate(point, sweep))
                for point in _finished(sweep, group)
                if np.isfinite(scale.at(point.values.get(key)))
            ),
            key=lambda pair: pair[0],
        )
        for group in groups
    }

    def paint(axes: Axes) -> None:
        label_axes(axes, name, _y_label(sweep))
        scale.apply(axes)
        if sweep.baseline_variant:
            axes.axhline(0, color=INK, linewidth=1)
        for i, (group, own) in enumerate(placed.items()):
            share = 0.012 * (i - (len(placed) - 1) / 2)
            _paint_points(axes, [(scale.aside(x, share), each) for x, each in own], styles[group], connected)
        axes.margins(x=0.08)

    best = min(
        ((finite(each.mean), group, x) for group, own in placed.items() for x, each in own if each.mean is not None),
        default=None,
    )
    label = f"{_y_label(sweep).capitalize()} over {name}."
    if best is not None:
        at = _shown(scale.values[int(best[2])]) if not scale.is_numeric else tick(best[2])
        label += f" Lowest: {_number(best[0], sweep)} at {at}{f' of {shorten(best[1], 40)}' if best[1] else ''}."
    shown = {group: styles[group] for group in groups}
    title = f"{', '.join(clean(group) for group in groups if group) or 'All points'}: {name}"
    return Panel(title, draw(figure, label, (5.4, 3.3), paint, line_legend(shown)))


def _paint_points(axes: Axes, placed: Sequence[tuple[float, Estimate]], style: Style, connected: bool) -> None:
    x, y = [x for x, _ in placed], [finite(each.mean) for _, each in placed]
    if connected:
        axes.plot(x, y, color=style.colour, linestyle=style.dash, linewidth=1.5)
    for at, each in placed:
        if each.low is not None and each.high is not None:
            axes.plot([at, at], [each.low, each.high], color=style.colour, linewidth=1.6, alpha=0.55)
    axes.plot(x, y, style.marker, color=style.colour, markersize=7, markeredgecolor=CARD)


def _estimate(point: FinishedPoint, sweep: Sweep) -> Estimate:
    """What the figures show of a point, with its interval; the baseline differs by 0 from itself."""
    if sweep.baseline_variant is None:
        return point.val_loss
    return point.difference or Estimate(mean=0.0 if point.name == sweep.baseline else None)


def _y_label(sweep: Sweep) -> str:
    return f"loss minus that of {shorten(sweep.baseline or '', 20)}" if sweep.baseline_variant else "held-out loss"


def _finished(sweep: Sweep, group: str) -> list[FinishedPoint]:
    return [point for point in sweep.of_group(group) if isinstance(point, FinishedPoint)]


def shape_figure(sweep: Sweep, flops: Mapping[str, float], styles: Mapping[str, Style], x_label: str) -> Markup | None:
    """Loss over what training cost, a marker for each point; None where nothing has finished.

    flops: by point. Bars are the intervals of the differences, seen from the baseline's loss.
    """
    baseline = sweep.baseline_variant
    zero = finite(baseline.val_loss.mean) if baseline else 0.0
    points = {group: [point for point in _finished(sweep, group) if point is not baseline] for group in sweep.groups}
    if not any(points.values()):
        return None

    def paint(axes: Axes) -> None:
        if baseline:
            axes.axhline(zero, color=MUTED, linewidth=1.2, linestyle=(0, (5, 1.6)))
            axes.plot(flops[baseline.name], zero, "o", color=MUTED, markersize=8, markeredgecolor=CARD)
        for group, own in points.items():
            placed = [(flops[point.name], _moved(_estimate(point, sweep), zero)) for point in own]
            _paint_points(axes, placed, styles[group], connected=False)
        label_axes(axes, x_label, "held-out loss")

    lowest = next((point for point in sweep.variants if point.val_loss.mean is not None), None)
    label = f"Held-out loss over {x_label}, a marker for each of {sum(map(len, points.values()))} points."
    if baseline:
        label += (
            f" The dashed line is {shorten(baseline.name, 40)} at {fixed(zero, 4)}, {si(flops[baseline.name])} FLOPs."
        )
    if lowest:
        name = shorten(lowest.name, 40)
        label += f" The lowest loss is {fixed(lowest.val_loss.mean, 4)}, of {name} with {si(flops[lowest.name])} FLOPs."
    return draw("shapes", label, (5.4, 3.6), paint, line_legend(styles))


def _moved(estimate: Estimate, by: float) -> Estimate:
    ends = (None if end is None else end + by for end in (estimate.mean, estimate.low, estimate.high))
    mean, low, high = ends
    return Estimate(mean=mean, low=low, high=high)
