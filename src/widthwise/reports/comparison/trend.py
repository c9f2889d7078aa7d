"""The trend of a comparison: losses over the logarithm of a quantity, the fitted line, and its residuals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from widthwise.records.comparison import Comparison, Trend
from widthwise.records.estimate import Estimate
from widthwise.records.quantities import TITLES
from widthwise.records.record import finite
from widthwise.reports.page.formats import MISSING, capital, clean, fixed, interval, shorten, signed, tick
from widthwise.reports.page.html import Panel, legend
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, label_axes
from widthwise.reports.page.svg import CARD, INK, MUTED, Style, draw, line_legend
from widthwise.reports.page.table import Table
from widthwise.reports.page.ticks import TickFormatter


@dataclass(frozen=True)
class TrendSection:
    """The part of a page on the trend."""

    over: str
    figures: list[Panel]
    legend: list[tuple[Markup, str]]
    line: Table
    points: Table


def trend_section(comparison: Comparison, styles: Mapping[str, Style]) -> TrendSection | None:
    """Figure and table of the trend; None if the comparison has none."""
    trend = comparison.trend
    if trend is None:
        return None
    of = {variant.name: variant.measured_over_seeds(trend.of) for variant in comparison.variants}
    losses = {name: found for name, found in of.items() if found is not None}
    return TrendSection(
        trend.over,
        [Panel(f"{capital(_title(trend))} over {trend.over}", _figure(trend, losses, styles))],
        legend({point.variant: styles[point.variant] for point in trend.points}),
        _line_table(trend),
        _point_table(trend, losses),
    )


def _title(trend: Trend) -> str:
    """The title of the loss."""
    return TITLES.get(trend.of, clean(trend.of))


def _figure(trend: Trend, losses: Mapping[str, Estimate], styles: Mapping[str, Style]) -> Markup:
    """Seeds are shifted to a common mean, because runs are compared within a seed; so the band is that of the slope."""
    points = sorted(trend.points, key=lambda point: point.value)
    values = np.array([point.value for point in points])
    line = np.array([finite(point.line) for point in points])
    per_seed = np.array([list(map(finite, losses[point.variant].per_seed)) for point in points])
    shifted = per_seed - per_seed.mean(axis=0) + per_seed.mean()
    turn = np.log2(values) - np.log2(values).mean()
    low, high = (line + (finite(end) - finite(trend.slope.mean)) * turn for end in (trend.slope.low, trend.slope.high))

    def paint(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.fill_between(values, low, high, color=MUTED, alpha=0.16, linewidth=0)
        axes.plot(values, line, color=INK, linewidth=1.4, label=named("the fitted line"))
        for point, seeds in zip(points, shifted):
            style = styles[point.variant]
            at = np.full(len(seeds), point.value)
            label = named(point.variant, "a single seed, shifted to the common mean")
            axes.plot(at, seeds, "_", color=style.colour, markersize=11, markeredgewidth=1.4, label=label)
            look = {"color": style.colour, "markersize": 7.5, "markeredgecolor": CARD}
            axes.plot(point.value, seeds.mean(), style.marker, label=named(point.variant), **look)
        label_axes(axes, f"{clean(trend.over)}, on a logarithmic axis", _title(trend))
        axes.xaxis.set_major_locator(FixedLocator(_apart(values)))
        axes.xaxis.set_major_formatter(TickFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.08)

    parts = [
        f"{shorten(point.variant, 40)} at {tick(point.value)}: {fixed(losses[point.variant].mean, 4)}, "
        f"line {fixed(point.line, 4)}"
        for point in points
    ]
    slope = f"{signed(trend.slope.mean, 4)} with each doubling ({interval(trend.slope, 4, True) or 'no interval'})"
    label = f"{capital(_title(trend))} over {clean(trend.over)}: {slope}. {'; '.join(parts)}."
    legend = line_legend({point.variant: styles[point.variant] for point in points})
    return draw("trend", label, INCHES, paint, legend)


def _apart(values: Sequence[float] | np.ndarray) -> list[float]:
    """Those of ascending values whose labels stand clear of each other on a logarithmic axis."""
    positions = np.log2(values)
    chosen = [0]
    for i in range(1, len(values)):
        if positions[i] - positions[chosen[-1]] >= 0.08 * (positions[-1] - positions[0]):
            chosen.append(i)
    return [float(values[i]) for i in chosen]


def _line_table(trend: Trend) -> Table:
    rows = [
        ["slope, nats with each doubling", signed(trend.slope.mean, 4), interval(trend.slope, 4, True) or MISSING],
        ["intercept, nats", fixed(trend.intercept.mean, 4), interval(trend.intercept, 4) or MISSING],
        ["R² of the mean losses", fixed(trend.r_squared, 4), MISSING],
    ]
    n_seeds = len(trend.slope.per_seed)
    return Table(
        f"The line over log2 of {clean(trend.over)}, {n_seeds} seed{'s' if n_seeds != 1 else ''}",
        ["", "Value", "Interval"],
        rows,
        sortable=False,
    )


def _point_table(trend: Trend, losses: Mapping[str, Estimate]) -> Table:
    rows = [
        [
            clean(point.variant),
            tick(point.value),
            fixed(losses[point.variant].mean, 4),
            fixed(point.line, 4),
            signed(point.residual, 4),
        ]
        for point in trend.points
    ]
    return Table(f"{capital(_title(trend))} and line", ["Variant", clean(trend.over), "loss", "line", "residual"], rows)
