"""The report of fitted laws: `report.html`, `fits.csv` and `savings.csv`."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from widthwise.experiments.laws import LAWS
from widthwise.records.record import finite
from widthwise.records.scaling import FittedLaw, Saving, ScalingGroup, ScalingLaws
from widthwise.reports.page.formats import MISSING, clean, fixed, minus, percentage, shorten, si, tick
from widthwise.reports.page.html import legend, panels, render, sequence, write_all
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, label_axes
from widthwise.reports.page.svg import CARD, INK, Style, draw, line_legend, styles
from widthwise.reports.page.table import Table, csv_cell, csv_rows
from widthwise.reports.page.ticks import RoundSteps, TickFormatter


def write_scaling_report(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Reads `folder/scaling.json`, writes the report into `out` (default: `folder`).

    Returns {"html": ..., "fits": ..., "savings": ...}. Raises UserError where it is broken, before it writes anything.
    """
    folder, out = Path(folder), Path(out or folder)
    scaling = ScalingLaws.read(folder)
    contents = {
        "html": ("report.html", _page(scaling)),
        "fits": ("fits.csv", fits_csv(scaling)),
        "savings": ("savings.csv", savings_csv(scaling)),
    }
    return write_all(contents, out)


def _page(scaling: ScalingLaws) -> str:
    chosen = styles([group.name for group in scaling.groups], scaling.compared_with)
    chosen_fits = [group.fits.get(group.chosen) for group in scaling.groups if group.chosen]
    return render(
        "scaling.html",
        title=f"{scaling.title} · widthwise scaling",
        scaling=scaling,
        question=_question(scaling),
        confidence=percentage(scaling.confidence),
        laws=panels({f"{scaling.y} over {scaling.x}": law_figure(scaling, chosen)}),
        has_curves=any(fit and fit.parameters for fit in chosen_fits),
        has_bands=any(fit and fit.band for fit in chosen_fits),
        has_logarithms=scaling.is_positive,
        has_arrows=bool(scaling.arrows),
        legend=legend(chosen),
        saving_table=_saving_table(scaling),
        fit_table=_fit_table(scaling),
        symbol_table=_symbol_table(scaling),
        point_table=_point_table(scaling),
    )


def _question(scaling: ScalingLaws) -> str:
    names = [clean(group.name) for group in scaling.groups]
    x, y = clean(scaling.x), clean(scaling.y)
    if scaling.compared_with is None:
        return f"How does {y} of {sequence(names)} fall with {x}?"
    others = [name for name in names if name != clean(scaling.compared_with)]
    need = "does" if len(others) == 1 else "do"
    return f"With how much of the {x} of {clean(scaling.compared_with)} {need} {sequence(others)} reach the same {y}?"


def _saving_table(scaling: ScalingLaws) -> Table | None:
    """Savings by curve and by point side by side, one row for each group and law."""
    if not scaling.savings:
        return None
    pairs: dict[tuple[str, str, str], dict[str, Saving]] = {}
    drawn = {(saving.group, saving.fit) for saving in scaling.savings if scaling.is_drawn(saving)}
    for saving in scaling.savings:
        pairs.setdefault((saving.group, saving.baseline, saving.fit), {})[saving.kind] = saving
    rows = [
        [
            clean(group),
            clean(baseline),
            clean(fit) + (" *" if (group, fit) in drawn else ""),
            *_saving_cells(kinds.get("curve")),
            *_saving_cells(kinds.get("point")),
        ]
        for (group, baseline, fit), kinds in pairs.items()
    ]
    header = ["Group", "baseline", "law", "curve against curve", "interval", f"at {clean(scaling.y)}"]
    header += ["point against curve", "interval", f"at {clean(scaling.y)}"]
    return Table(
        f"{clean(scaling.x)} for the same {clean(scaling.y)}, relative to the baseline; rows with a star are drawn",
        header,
        rows,
        words={"baseline", "law"},
    )


def _saving_cells(saving: Saving | None) -> list[str]:
    if saving is None or saving.ratio.mean is None:
        return [MISSING, MISSING, MISSING if saving is None else fixed(saving.at.y, 4)]
    low, high = saving.ratio.low, saving.ratio.high
    ends = MISSING if low is None or high is None else f"{percent(low)} to {percent(high)}"
    return [
        percent(saving.ratio.mean) + (" (extrapolated)" if saving.is_extrapolated else ""),
        ends,
        fixed(saving.at.y, 4),
    ]


def _fits(scaling: ScalingLaws) -> Iterator[tuple[str, str, FittedLaw]]:
    """Group, law (with a star if its curve is drawn), and fit."""
    for group in scaling.groups:
        for law, fit in group.laws:
            yield clean(group.name), law + (" *" if law == group.chosen else ""), fit


def _fit_table(scaling: ScalingLaws) -> Table:
    rows = [
        [name, law, clean(fit.form), fixed(fit.rms, 5), fixed(fit.r_squared, 4), clean(fit.reason or "") or MISSING]
        for name, law, fit in _fits(scaling)
    ]
    return Table(
        "Fitted laws; those with a star are drawn" if any(group.chosen for group in scaling.groups) else "Fitted laws",
        ["Group", "law", "form", "rms", "R²", "note"],
        rows,
        words={"law", "form", "note"},
    )


def _symbol_table(scaling: ScalingLaws) -> Table:
    rows = [
        [name, law, clean(symbol), _digits(each.mean), f"{_digits(each.low)} to {_digits(each.high)}"]
        for name, law, fit in _fits(scaling)
        for symbol, each in fit.parameters.items()
    ]
    return Table(
        "Values of the fitted laws", ["Group", "law", "symbol", "value", "interval"], rows, words={"law", "symbol"}
    )


def _digits(value: float | None) -> str:
    """Symbols differ by many orders of magnitude: four significant digits each."""
    return MISSING if value is None else minus(f"{value:.4g}")


def _point_table(scaling: ScalingLaws) -> Table:
    rows = [
        [clean(group.name), clean(point.name), f"{point.x:.4g}", fixed(point.y, 4), si(point.n_seeds)]
        for group in scaling.groups
        for point in group.points
    ]
    return Table("Points", ["Group", "point", clean(scaling.x), clean(scaling.y), "seeds"], rows, words={"point"})


def fits_csv(scaling: ScalingLaws) -> str:
    """One row for each symbol of each fit, at full precision."""
    return csv_rows(
        [
            {
                "group": csv_cell(group.name),
                "law": law,
                "chosen": law == group.chosen,
                "symbol": symbol,
                "value": each.mean,
                "low": each.low,
                "high": each.high,
                "rms": fit.rms,
                "r_squared": fit.r_squared,
            }
            for group in scaling.groups
            for law, fit in group.laws
            for symbol, each in fit.parameters.items()
        ],
        ["group", "law", "chosen", "symbol", "value", "low", "high", "rms", "r_squared"],
    )


def savings_csv(scaling: ScalingLaws) -> str:
    """One row for each saving, at full precision."""
    return csv_rows(
        [
            {
                "group": csv_cell(saving.group),
                "baseline": csv_cell(saving.baseline),
                "law": csv_cell(saving.fit),
                "kind": saving.kind,
                "at": csv_cell(saving.at.name),
                "x": saving.at.x,
                "y": saving.at.y,
                "ratio": saving.ratio.mean,
                "low": saving.ratio.low,
                "high": saving.ratio.high,
            }
            for saving in scaling.savings
        ],
        ["group", "baseline", "law", "kind", "at", "x", "y", "ratio", "low", "high"],
    )


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
        label_axes(axes, clean(scaling.x), clean(scaling.y))
        _tick(axes, low, high)

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
