"""The figures of a sweep: heat maps, lines with intervals, and losses over training compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.estimate import Estimate
from widthwise.records.record import finite
from widthwise.records.sweep import FinishedPoint, SearchedRange, Sweep
from widthwise.reports.page.formats import capital, clean, fixed, interval, shorten, si, tick
from widthwise.reports.page.html import Panel
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, label_axes, moved, paint_estimate
from widthwise.reports.page.svg import CARD, INK, MUTED, Style, draw, line_legend
from widthwise.reports.sweep.maps import MOST_NARROW_COLUMNS, heat_map, scale_of, score, short_keys, shown, shown_score


@dataclass(frozen=True)
class GroupFigures:
    """The figures of a sweep's groups."""

    maps: list[Panel]
    """Maps of grids of two keys, narrow enough to be placed side by side."""
    wide_maps: list[Panel]
    """Maps that are too wide for that."""
    lines: list[Panel]
    """For all other groups, losses over each key."""
    line_groups: list[str]
    """Groups that `lines` show."""

    @property
    def is_empty(self) -> bool:
        return not (self.maps or self.wide_maps or self.lines)


def group_figures(sweep: Sweep, styles: Mapping[str, Style]) -> GroupFigures:
    """A heat map for a grid of two keys; for one key, for a search and for larger grids the losses over each key."""
    found = GroupFigures([], [], [], [])
    single: dict[str, list[str]] = {}
    names = short_keys(list(dict.fromkeys(key for axes in sweep.axes.values() for key in axes)))
    for number, group in enumerate(sweep.groups):
        if group == sweep.baseline_group or not _finished(sweep, group):
            continue
        varied = sweep.axes.get(group, {})
        axes = {key: axis for key, axis in varied.items() if isinstance(axis, SearchedRange) or axis[1:]}
        match list(axes.items()):
            case [(first, list(rows)), (second, list(columns))]:
                maps = found.maps if min(len(rows), len(columns)) <= MOST_NARROW_COLUMNS else found.wide_maps
                maps.append(heat_map(f"map-{number}", sweep, group, {first: rows, second: columns}))
                continue
            case [(key, list())]:
                single.setdefault(key, []).append(group)
            case _:
                found.lines.extend(
                    _losses_over(f"slice-{number}-{i}", sweep, (key, names[key]), [group], styles, connected=False)
                    for i, key in enumerate(axes)
                )
        if axes:
            found.line_groups.append(group)
    for i, (key, groups) in enumerate(single.items()):
        found.lines.append(_losses_over(f"line-{i}", sweep, (key, names[key]), groups, styles, connected=True))
    return found


def _losses_over(
    figure: str,
    sweep: Sweep,
    named_key: tuple[str, str],
    groups: Sequence[str],
    styles: Mapping[str, Style],
    connected: bool,
) -> Panel:
    """Points with their intervals over the values of one key.

    named_key: of the recipe, and as the figure calls it. connected: a line for each group.
    """
    key, name = named_key
    scale = scale_of(sweep, key, groups)
    placed = {
        group: sorted(
            (
                (scale.at(point.values.get(key)), point.name, score(point, sweep))
                for point in _finished(sweep, group)
                if np.isfinite(scale.at(point.values.get(key)))
            ),
            key=lambda placed: placed[0],
        )
        for group in groups
    }

    def paint(axes: Axes) -> None:
        label_axes(axes, name, _y_label(sweep))
        scale.apply(axes)
        if sweep.baseline_words:
            axes.axhline(0, color=INK, linewidth=1)
        for i, (group, own) in enumerate(placed.items()):
            share = 0.012 * (i - (len(placed) - 1) / 2)
            moved = [(scale.aside(x, share), name, each) for x, name, each in own]
            _paint_points(axes, group, moved, styles[group], connected)
        axes.margins(x=0.08)

    best = min(
        ((finite(each.mean), group, x) for group, own in placed.items() for x, _, each in own if each.mean is not None),
        default=None,
    )
    label = f"{capital(_y_label(sweep))} over {name}."
    if best is not None:
        at = shown(scale.values[int(best[2])]) if not scale.is_numeric else tick(best[2])
        label += f" Lowest: {shown_score(best[0], sweep)} at {at}{f' of {shorten(best[1], 40)}' if best[1] else ''}."
    title = f"{', '.join(clean(group) for group in groups if group) or 'All points'}: {name}"
    return Panel(
        title,
        draw(figure, label, INCHES, paint, line_legend({group or "all points": styles[group] for group in groups})),
    )


def _paint_points(
    axes: Axes, group: str, placed: Sequence[tuple[float, str, Estimate]], style: Style, connected: bool
) -> None:
    """placed: where on the x axis, which point, and its loss."""
    series = group or "all points"
    if connected:
        x, y = [x for x, *_ in placed], [finite(each.mean) for *_, each in placed]
        axes.plot(x, y, color=style.colour, linestyle=style.dash, linewidth=1.5, label=named(series))
    for at, name, each in placed:
        label = named(series, name, interval(each, 4))
        paint_estimate(axes, at, each, style, label)


def _y_label(sweep: Sweep) -> str:
    return f"loss minus that of {shorten(sweep.baseline_words, 30)}" if sweep.baseline_words else "held-out loss"


def _finished(sweep: Sweep, group: str) -> list[FinishedPoint]:
    return [point for point in sweep.of_group(group) if isinstance(point, FinishedPoint)]


def shape_figure(sweep: Sweep, flops: Mapping[str, float], styles: Mapping[str, Style], x_label: str) -> Markup | None:
    """Loss over training compute, one marker per point; None if no point has finished.

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
            look = {"color": MUTED, "markersize": 8, "markeredgecolor": CARD, "label": named(baseline.name, "baseline")}
            axes.plot(flops[baseline.name], zero, "o", **look)
        for group, own in points.items():
            placed = [
                (flops[point.name], point.name, moved(score(point, sweep), zero) if baseline else point.val_loss)
                for point in own
            ]
            _paint_points(axes, group, placed, styles[group], connected=False)
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
    return draw("shapes", label, INCHES, paint, line_legend(styles))
