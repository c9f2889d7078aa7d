"""The figure of fitted laws: points, curves with their confidence bands, and savings."""

import math
from collections.abc import Mapping

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from widthwise.experiments.scaling.laws import LAWS
from widthwise.records.record import finite
from widthwise.records.scaling import Saving, ScalingGroup, ScalingLaws
from widthwise.reports.page.formats import clean, fixed, shorten, tick
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES
from widthwise.reports.page.svg import CARD, INK, Style, draw, line_legend
from widthwise.reports.page.ticks import RoundSteps, TickFormatter

_N_CURVE_POINTS = 80
_MOST_TICKS = 7


def law_figure(scaling: ScalingLaws, styles: Mapping[str, Style]) -> Markup:
    """Points and chosen curves on two logarithmic axes; arrows lead from the baseline's curve to where others are."""
    every = [point for group in scaling.groups for point in group.points]
    low, high = min(point.x for point in every), max(point.x for point in every)
    ends = {saving.group: saving.at.x * finite(saving.ratio.mean) for saving in scaling.arrows}
    low, high = min([low, *ends.values()]), max([high, *ends.values()])

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        if scaling.is_positive:
            axes.set_yscale("log")
        for group in scaling.groups:
            _paint_group(axes, group, styles[group.name], ends.get(group.name))
        for i, saving in enumerate(reversed(scaling.arrows)):
            _paint_arrow(axes, saving, styles[saving.group], number=i)
        axes.set_xlabel(clean(scaling.x))
        axes.set_ylabel(clean(scaling.y))
        _tick(axes, low, high)
        axes.grid(axis="y")
        axes.tick_params(length=0)

    axes_said = "on logarithmic axes" if scaling.is_positive else "which stands on a logarithmic axis"
    label = f"{clean(scaling.y)} over {clean(scaling.x)} {axes_said}. {'; '.join(map(_said, scaling.groups))}."
    for saving in scaling.arrows:
        label += (
            f" {shorten(saving.group, 40)} reaches {fixed(saving.at.y, 4)} with {percent(saving.ratio.mean)} of what "
            f"{shorten(saving.baseline, 40)} needs."
        )
    return draw("laws", label, (INCHES[0], 3.4), paint, line_legend(styles))


def percent(ratio: float | None) -> str:
    """A ratio in percent: 0.7776 -> 77.8%."""
    return fixed(None if ratio is None else 100 * ratio, 1) + ("" if ratio is None else "%")


def _said(group: ScalingGroup) -> str:
    ends = (min(group.points, key=lambda point: point.x), max(group.points, key=lambda point: point.x))
    first, last = (f"{fixed(point.y, 4)} at {tick(point.x)}" for point in ends)
    return f"{shorten(group.name, 40)} from {first} to {last}"


def _paint_group(axes: Axes, group: ScalingGroup, style: Style, end: float | None) -> None:
    """end: of an arrow, which may lie beyond the group's own points."""
    x = np.array([point.x for point in group.points])
    reached = [*x, *([] if end is None else [end])]
    dense = np.geomspace(min(reached) / 1.15, max(reached) * 1.15, _N_CURVE_POINTS)
    fit = group.chosen_fit
    if fit and fit.band:
        low, high = ([finite(value) for value in end] for end in (fit.band.low, fit.band.high))
        axes.fill_between(fit.band.x, low, high, color=style.colour, alpha=0.14, linewidth=0, label=named(group.name))
    if fit and group.chosen and fit.parameters:
        values = np.array([finite(each.mean) for each in fit.parameters.values()])
        look = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.6}
        axes.plot(dense, LAWS[group.chosen].y(values, dense), label=named(group.name, "the fitted law"), **look)
    for point in group.points:
        look = {"color": style.colour, "markersize": 7, "markeredgecolor": CARD}
        axes.plot(point.x, point.y, style.marker, label=named(group.name, point.name), **look)


def _paint_arrow(axes: Axes, saving: Saving, style: Style, number: int) -> None:
    """number: the shares of several groups stand above each other, where falling curves leave room."""
    end = saving.at.x * finite(saving.ratio.mean)
    axes.annotate(
        "", (end, saving.at.y), (saving.at.x, saving.at.y), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.4}
    )
    axes.annotate(
        f"{shorten(saving.group, 24)}: {percent(saving.ratio.mean)}",
        (0, 0),
        (8, 8 + 14 * number),
        xycoords="axes fraction",
        textcoords="offset points",
        color=style.colour,
    )


def _tick(axes: Axes, low: float, high: float) -> None:
    """Round numbers: matplotlib names only powers of ten, of which a loss has none."""
    axes.xaxis.set_major_locator(FixedLocator(round_steps(low, high)))
    axes.yaxis.set_major_locator(FixedLocator(RoundSteps(8, most_letters=math.inf).tick_values(*axes.get_ylim())))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(TickFormatter())


def round_steps(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from `low` to `high`, or powers alone, and of many every second or further one."""
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    for factors in ((1, 2, 5), (1,)):
        found = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        found = [value for value in found if low / 1.2 <= value <= high * 1.2]
        if len(found) <= _MOST_TICKS:
            return found
    return found[:: math.ceil(len(found) / _MOST_TICKS)]
