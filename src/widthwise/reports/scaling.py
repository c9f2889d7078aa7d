"""The page of fitted laws, with `fits.csv` and `savings.csv`."""

from collections.abc import Iterator, Mapping

import altair as alt
import numpy as np

from widthwise.experiments.laws import LAWS
from widthwise.records.record import finite
from widthwise.records.scaling import FittedLaw, Saving, ScalingGroup, ScalingLaws
from widthwise.reports import charts
from widthwise.reports.charts import INK, Figure, Style, styles
from widthwise.reports.formats import MISSING, clean, fixed, minus, percentage, sequence, shorten, si, tick
from widthwise.reports.page import Code, Page, Text, in_words, note, section
from widthwise.reports.table import Table, csv_cell, csv_rows


def scaling_page(scaling: ScalingLaws) -> Page:
    """Return the page of laws fitted to the losses of groups of models."""
    looks = styles([group.name for group in scaling.groups], scaling.compared_with)
    fits = [group.fits.get(group.chosen) for group in scaling.groups if group.chosen]
    level, symbols = percentage(scaling.confidence), _symbol_table(scaling)
    x, y = clean(scaling.x), clean(scaling.y)
    return Page(
        "scaling",
        scaling.title,
        scaling.sentence.splitlines()[:2],
        lead=_question(scaling),
        first=(law_figure(scaling, looks),),
        sections=(
            section(
                "Savings",
                _saving_table(scaling),
                note("savings", y=y, level=level),
            ),
            section(
                "Fitted laws",
                _fit_table(scaling),
                symbols if symbols.rows else None,
                note(
                    "fitted-laws",
                    "bands" * any(fit and fit.band for fit in fits),
                    "arrows" * bool(scaling.arrows),
                    level=level,
                    y=y,
                    x=x,
                ),
                in_words(scaling.sentence.splitlines()),
            ),
            section("Points", _point_table(scaling)),
            section(
                "How to reproduce",
                Text(["Fits draw with fixed seeds: on the same points this command gives the same numbers."]),
                Code(scaling.command),
                Code(
                    "scaling.json: every number of this page\nfits.csv, savings.csv: fitted values and savings", "Files"
                ),
            ),
        ),
        made_from=f"{ScalingLaws.file_name} of {scaling.created}",
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


def law_figure(scaling: ScalingLaws, looks: Mapping[str, Style]) -> Figure:
    """Return points and chosen curves on logarithmic axes; arrows lead from the baseline's curve to the others."""
    ends = {saving.group: saving.at.x * finite(saving.ratio.mean) for saving in scaling.arrows}
    y_scale = alt.Scale(type="log", nice=False) if scaling.is_positive else alt.Scale(zero=False)
    across = alt.X("x:Q", title=clean(scaling.x), scale=alt.Scale(type="log", nice=False), axis=alt.Axis(format=".3~s"))

    def up(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title=clean(scaling.y), scale=y_scale, axis=alt.Axis(format=".4~g"))

    points = [
        {"name": clean(group.name), "point": clean(each.name), "x": float(each.x), "y": float(each.y)}
        for group in scaling.groups
        for each in group.points
    ]
    curves = [row for group in scaling.groups for row in _curve_rows(group, ends.get(group.name))]
    bands = [
        {"name": clean(group.name), "x": float(at), "low": finite(low), "high": finite(high)}
        for group in scaling.groups
        if (fit := group.chosen_fit) and fit.band
        for at, low, high in zip(fit.band.x, fit.band.low, fit.band.high)
    ]
    tip = charts.tips(name="|group", point="", x=f".4~s|{clean(scaling.x)}", y=f".4f|{clean(scaling.y)}")
    layers: list[alt.Chart] = []
    if bands:
        area = charts.chart(bands).mark_area(opacity=0.14)
        layers.append(area.encode(x=across, y=up("low"), y2="high:Q", **charts.coloured(looks, "fill")))
    if curves:
        line = charts.chart(curves).mark_line(strokeWidth=1.6)
        layers.append(line.encode(x=across, y=up("y"), **charts.coloured(looks, "color", "strokeDash")))
    marks = charts.chart(points).mark_point()
    layers.append(marks.encode(x=across, y=up("y"), tooltip=tip, **charts.coloured(looks, "color", "shape")))
    arrows = [
        {
            "start": saving.at.x,
            "x": ends[saving.group],
            "y": saving.at.y,
            "share": f"{shorten(saving.group, 24)}: {percent(saving.ratio.mean)}",
        }
        for saving in scaling.arrows
    ]
    if arrows:
        base = alt.Chart(charts.table_of(arrows)).encode(x=across, y=up("y"))
        layers += [
            base.mark_rule(strokeWidth=1.4, stroke=INK).encode(x2="start:Q", tooltip=charts.tips(share="|needs")),
            base.mark_point(shape="triangle-left", fill=INK, size=50),
            base.mark_text(align="right", dx=-8, dy=10).encode(text="share:N"),
        ]
    scale = "on logarithmic axes" if scaling.is_positive else "on a logarithmic axis"
    label = f"{clean(scaling.y)} over {clean(scaling.x)} {scale}. {'; '.join(map(_extent, scaling.groups))}."
    for saving in scaling.arrows:
        label += (
            f" {shorten(saving.group, 40)} reaches {fixed(saving.at.y, 4)} with {percent(saving.ratio.mean)} of what "
            f"{shorten(saving.baseline, 40)} needs."
        )
    title = f"{clean(scaling.y)} over {clean(scaling.x)}"
    return Figure("laws", title, label, alt.layer(*layers), looks, height=340)


def _curve_rows(group: ScalingGroup, end: float | None) -> list[dict[str, object]]:
    """Return the fitted law of a group. end: of an arrow, which may lie beyond the group's own points."""
    fit = group.chosen_fit
    if not (fit and group.chosen and fit.parameters):
        return []
    reached = [*(point.x for point in group.points), *([] if end is None else [end])]
    dense = np.geomspace(min(reached) / 1.15, max(reached) * 1.15, 80)
    values = np.array([finite(each.mean) for each in fit.parameters.values()])
    heights = LAWS[group.chosen].y(values, dense)
    return [{"name": clean(group.name), "x": float(at), "y": float(height)} for at, height in zip(dense, heights)]


def percent(ratio: float | None) -> str:
    """Return a ratio in percent: 0.7776 -> 77.8%."""
    return fixed(None if ratio is None else 100 * ratio, 1) + ("" if ratio is None else "%")


def _extent(group: ScalingGroup) -> str:
    ends = (min(group.points, key=lambda point: point.x), max(group.points, key=lambda point: point.x))
    first, last = (f"{fixed(point.y, 4)} at {tick(point.x)}" for point in ends)
    return f"{shorten(group.name, 40)} from {first} to {last}"
