"""Figures of a sweep: losses over the values of its axes, as heat maps or lines, and over training FLOPs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome, SearchedRange, UnfinishedPoint, Variant
from widthwise.records.quantities import QUANTITY
from widthwise.records.record import finite
from widthwise.reports import charts
from widthwise.reports.charts import BASELINE_STYLE, HEAT, INK, Figure, Looks
from widthwise.reports.experiment_figures import LOSS, Point, point_figure, shifted
from widthwise.reports.formats import MISSING, clean, fixed, interval, plain, shorten, signed, tick

ALL_POINTS = "all points"
"""Name of points without a group."""
_MOST_MEDIANS = 4.0
"""Colours saturate at this multiple of the median distance, so that a diverged point does not make all others pale."""


def axis_figures(outcome: Outcome, looks: Looks) -> list[Figure]:
    """Return a heat map for each grid of two keys; otherwise the losses over each key."""
    keys = list(dict.fromkeys(key for axes in outcome.axes.values() for key in axes))
    ends = [key.rpartition(".")[2] for key in keys]
    titles = {key: clean(end if ends.count(end) == 1 else key) for key, end in zip(keys, ends)}
    maps: list[Figure] = []
    slices: list[Figure] = []
    groups_of_key: dict[str, list[str]] = {}
    for number, group in enumerate(outcome.groups):
        if group == outcome.baseline_group or not _finished(outcome, group):
            continue
        varied = outcome.axes.get(group, {})
        axes = {key: axis for key, axis in varied.items() if isinstance(axis, SearchedRange) or len(axis) > 1}
        match list(axes.items()):
            case [(first, list(rows)), (second, list(columns))]:
                maps.append(_heat_map(f"map-{number}", outcome, group, {first: rows, second: columns}, titles))
            case [(key, list())]:
                groups_of_key.setdefault(key, []).append(group)
            case _:
                for i, key in enumerate(axes):
                    slices.append(_losses_over(f"slice-{number}-{i}", outcome, key, titles[key], [group], None, looks))
    lines = [
        _losses_over(f"line-{i}", outcome, key, titles[key], groups, "", looks)
        for i, (key, groups) in enumerate(groups_of_key.items())
    ]
    return [*maps, *slices, *lines]


def compute_figure(outcome: Outcome, looks: Looks) -> Figure | None:
    """Return the loss over training FLOPs with a marker for each point; None without points or their FLOPs.

    Bars are the intervals of the differences, shifted by the baseline's loss.
    """
    x_title = "training FLOPs"
    flops = {point.name: finite(QUANTITY["training_flops"].value(point)) for point in outcome.variants}
    if any(map(math.isnan, flops.values())):
        return None
    baseline = outcome.baseline_variant
    points = []
    for group in outcome.groups:
        for point in _finished(outcome, group):
            if point is not baseline:
                loss = point.val_loss
                if baseline is not None:
                    loss = shifted(_score(point, outcome), finite(baseline.val_loss.mean))
                points.append(Point(group or ALL_POINTS, point.name, flops[point.name], loss))
    if not points:
        return None
    drawn = {group or ALL_POINTS: style for group, style in looks.items()}
    level = None
    if baseline is not None:
        zero = finite(baseline.val_loss.mean)
        level = (baseline.name, zero)
        drawn[baseline.name] = BASELINE_STYLE
        points.append(Point(baseline.name, baseline.name, flops[baseline.name], Estimate(mean=zero)))
    across = charts.x("x", x_title, format="~s")
    return point_figure("shapes", f"Loss over {x_title}", points, drawn, across, LOSS, level)


def _score(point: Variant, outcome: Outcome) -> Estimate:
    """Return the difference from the baseline (0 for the baseline itself), or the loss if there is no baseline."""
    if outcome.baseline_words is None:
        return point.val_loss
    return point.difference or Estimate(mean=0.0 if outcome.baseline_of(point) is point else None)


def _finished(outcome: Outcome, group: str) -> list[Variant]:
    """Return the points of a group that have a result."""
    return [point for point in outcome.of_group(group) if isinstance(point, Variant)]


def _tick(value: Any) -> str:
    """Return the label of a value on an axis."""
    return tick(value) if _is_number(value) else shorten(plain(value), 14)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _losses_over(
    key: str, outcome: Outcome, axis: str, title: str, groups: Sequence[str], line: str | None, looks: Looks
) -> Figure:
    """Return points with their intervals over the values of one recipe key.

    line: "" joins the points of each group; None joins no points.
    """
    axes = [outcome.axes[group][axis] for group in groups]
    search = axes[0] if isinstance(axes[0], SearchedRange) else None
    values: list[Any] = []
    for axis_values in axes:
        values += (axis_values.low, axis_values.high) if isinstance(axis_values, SearchedRange) else axis_values
    points = [(group, point) for group in groups for point in _finished(outcome, group) if axis in point.values]
    if all(map(_is_number, values)):
        is_log = search.log if search else min(values) > 0 and max(values) > 8 * min(values)
        ticks = sorted(set(values)) if len(set(values)) <= 9 and not search else alt.Undefined
        across = charts.x("x", title, None, is_log, values=ticks, format=".4~g")
        points = [(group, point) for group, point in points if _is_number(point.values[axis])]
        position = float
    else:
        across = alt.X("x:N", title=title, sort=[_tick(value) for value in values], axis=alt.Axis(labelAngle=0))
        position = _tick
    markers = [
        Point(group or ALL_POINTS, point.name, position(point.values[axis]), _score(point, outcome), line)
        for group, point in points
    ]
    y_title = LOSS
    level = None
    if outcome.baseline_words is not None:
        y_title = f"loss minus the loss of {shorten(outcome.baseline_words, 30)}"
        level = (outcome.baseline_words, 0.0)
    drawn = {group or ALL_POINTS: looks[group] for group in groups}
    named = ", ".join(clean(group) for group in groups if group) or "All points"
    return point_figure(key, f"{named}: {title}", markers, drawn, across, y_title, level)


def _heat_map(key: str, outcome: Outcome, group: str, grid: dict[str, list[Any]], titles: Mapping[str, str]) -> Figure:
    """Return a heat map whose longer axis is vertical, so that it fits on a narrow screen."""
    (down, rows), (across, columns) = sorted(grid.items(), key=lambda item: -len(item[1]))
    is_compared = outcome.baseline_words is not None
    write = signed if is_compared else fixed
    points = [p for p in outcome.of_group(group) if p.values.get(down) in rows and p.values.get(across) in columns]
    scores = {point.name: finite(_score(point, outcome).mean) for point in outcome.variants}
    scores = {name: score for name, score in scores.items() if math.isfinite(score)}
    means = {point.name: scores[point.name] for point in points if point.name in scores}
    best = min(means, key=lambda name: means[name], default=None)
    shades = _shades(scores, is_compared)  # of all groups, so that the heat maps of a page have one scale of colours
    cells: list[dict[str, Any]] = []
    for point in points:
        cell = {"down": _tick(point.values[down]), "across": _tick(point.values[across]), "point": clean(point.name)}
        cell |= {"shade": shades.get(point.name), "best": point.name == best}
        if isinstance(point, UnfinishedPoint):
            cells.append(cell | {"score": point.state, "width": "", "interval": ""})
            continue
        number = write(means[point.name], 3 if is_compared else 4) if point.name in means else MISSING
        if is_compared and point.verdict in ("better", "worse"):
            number += "*"
        width = tick(round(point.cost.average_width, 1))
        cells.append(cell | {"score": number, "width": width, "interval": interval(_score(point, outcome), 4)})
    base = charts.chart(cells).encode(
        x=alt.X("across:N", sort=list(map(_tick, columns)), title=titles[across], axis=alt.Axis(labelAngle=0)),
        y=alt.Y("down:N", sort=list(map(_tick, reversed(rows))), title=titles[down]),
    )
    tip = charts.tips(point="", score="", interval="", width="|average width")
    scale = alt.Scale(domain=list(range(len(HEAT))), range=HEAT)
    layers = [
        base.mark_rect(stroke=charts.CARD, strokeWidth=2)
        .encode(fill=alt.Fill("shade:O", scale=scale, legend=None), tooltip=tip)
        .transform_filter("isValid(datum.shade)"),
        base.mark_rect(fill=None, stroke=INK, strokeWidth=1.8).transform_filter("datum.best"),
        base.mark_text(dy=-6, fill=INK).encode(text="score:N"),
        base.mark_text(dy=8).encode(text="width:N"),
    ]
    subject = "Difference to the baseline" if is_compared else "Held-out loss"
    axes = f"{titles[down]} and {titles[across]}"
    label = f"{subject} of {shorten(group or ALL_POINTS, 40)} over {axes}."
    if best is not None:
        label += f" From {write(means[best], 4)} to {write(max(means.values()), 4)}; best: {shorten(best, 60)}."
    title = f"{clean(group)}: {axes}" if group else axes
    return Figure(key, title, label, alt.layer(*layers), height=60 + 44 * len(rows))


def _shades(scores: Mapping[str, float], is_compared: bool) -> dict[str, int]:
    """Return the index in HEAT of each score: blue below 0, orange above 0.

    Without a baseline, lower losses are deeper blue.
    """
    start = 0.0 if is_compared else min(scores.values(), default=0.0)
    distances = [abs(score - start) for score in scores.values() if score != start] or [1.0]
    largest = min(max(distances), _MOST_MEDIANS * float(np.median(distances)))
    middle = start if is_compared else start + largest
    n_shades = len(HEAT) // 2
    shades = {}
    for name, score in scores.items():
        share = min(max((score - middle) / largest, -1.0), 1.0 if is_compared else 0.0)
        shades[name] = n_shades + int(math.copysign(math.ceil(abs(share) * n_shades - 1e-9), share))
    return shades
