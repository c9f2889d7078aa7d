"""The page of fitted laws, with the files `fits.csv` and `savings.csv`."""

from typing import Any

import altair as alt
import numpy as np

from widthwise.experiments.laws import LAWS
from widthwise.records.quantities import TITLES
from widthwise.records.record import finite
from widthwise.records.scaling import FittedLaw, ScalingGroup, ScalingLaws
from widthwise.reports import charts
from widthwise.reports.charts import INK, Figure, Looks, Plot, styles
from widthwise.reports.formats import MISSING, capital, clean, counted, fixed, joined, minus, percentage, shorten, tick
from widthwise.reports.page import Code, Page, Text, note, section
from widthwise.reports.table import Table, csv_rows


def scaling_page(scaling: ScalingLaws) -> Page:
    """Return the page of laws fitted to groups of models."""
    names = [group.name for group in scaling.groups]
    baseline = scaling.baseline if scaling.savings else None
    level = percentage(scaling.confidence)
    x = clean(scaling.x)
    y = clean(scaling.y)
    question = f"How does the {titled(y)} of {joined(list(map(clean, names)))} fall with {titled(x)}?"
    if baseline is not None:
        rest = [clean(name) for name in names if name != baseline]
        need = "does" if len(rest) == 1 else "do"
        question = (
            f"How much of the {titled(x)} of {clean(baseline)} {need} {joined(rest)} need for the same {titled(y)}?"
        )
    notes = ["fitted-laws"]
    if any(group.chosen_fit.band for group in scaling.groups):
        notes.append("bands")
    if scaling.arrows:
        notes.append("arrows")
    files = "scaling.json: every number of this page\nfits.csv, savings.csv: fitted values and savings"
    points = [
        [clean(group.name), clean(point.name), _digits(point.x), fixed(point.y, 4), str(point.n_seeds)]
        for group in scaling.groups
        for point in group.points
    ]
    return Page(
        "scaling",
        scaling.title,
        scaling_answer(scaling),
        lead=question,
        first=(law_figure(scaling, styles(names, baseline)),),
        sections=(
            section("Savings", saving_table(scaling), note("savings", y=y, level=level)),
            section(
                "Fitted laws",
                *law_tables(scaling),
                note(*notes, level=level, y=y, x=x),
                Text(["Summary:", *scaling.sentence.splitlines()]),
            ),
            section("Points", Table("Points", ["Group", "point", x, y, "seeds"], points, text_columns={"point"})),
            section(
                "How to reproduce",
                Text(["Fits use fixed seeds: with the same points, this command gives the same numbers."]),
                Code(scaling.command),
                Code(files, "Files"),
            ),
        ),
        made_from=f"{ScalingLaws.file_name} of {scaling.created}",
        files=csv_files(scaling),
    )


def scaling_answer(scaling: ScalingLaws) -> list[str]:
    """Return a sentence for each group on the share of the baseline's x that it needs, from curve to curve.

    Without a baseline, the sentences describe the first laws. What is left out follows.
    """
    x = titled(scaling.x)
    y = titled(scaling.y)
    lines = []
    for saving in scaling.arrows:
        ratio = saving.ratio
        line = f"{clean(saving.group)} needs {percent(ratio.mean)} of the {x} of {clean(saving.baseline)}"
        line += f" for the same {y}"
        if ratio.low is not None and ratio.high is not None:
            line += f" ({percentage(scaling.confidence)} CI {percent(ratio.low)} to {percent(ratio.high)})"
        line += ": not significant." if ratio.side(1.0) == 0 else "."
        lines.append(line)
        if saving.is_extrapolated:
            lines.append(f"This is extrapolated beyond the models of {clean(saving.group)}.")
    reached = {scaling.baseline, *(saving.group for saving in scaling.arrows)}
    unreached = [clean(group.name) for group in scaling.groups if group.name not in reached]
    if scaling.savings and unreached:
        lines.append(f"The curve of {joined(unreached)} never reaches the {y} of {clean(scaling.baseline or '')}.")
    sentences = scaling.sentence.splitlines()
    return [*(lines or sentences[:2]), *(sentence for sentence in sentences if sentence.startswith("Left out: "))]


def titled(name: str) -> str:
    """Return the title of a quantity; other names unchanged."""
    return TITLES.get(name, clean(name))


def saving_table(scaling: ScalingLaws) -> Table | None:
    """Return the savings against the curve and against the point, a row for each group and law."""
    rows = []
    for saving in scaling.savings:
        ratio = saving.ratio
        law = f"{saving.fit} *" if scaling.is_drawn(saving) else saving.fit
        needs = percent(ratio.mean)
        if saving.is_extrapolated and ratio.mean is not None:
            needs += " (extrapolated)"
        has_ends = ratio.low is not None and ratio.high is not None
        ends = f"{percent(ratio.low)} to {percent(ratio.high)}" if has_ends else MISSING
        names = [clean(saving.group), law, f"the {saving.kind}"]
        rows.append([*names, needs, ends, fixed(saving.at.y, 4), clean(saving.at.name)])
    y = clean(scaling.y)
    header = ["Group", "law", "against", "needs", "interval", f"at {y}", "of"]
    caption = f"{clean(scaling.x)} for the {y} of {clean(scaling.baseline or '')}; rows with a star are drawn"
    return Table(caption, header, rows, text_columns={"law", "against", "of"}) if rows else None


def law_tables(scaling: ScalingLaws) -> list[Table]:
    """Return a table of the fits of all groups, and a table of their parameters if any law was fitted."""
    quality = []
    fits: list[tuple[str, str, FittedLaw]] = []
    for group in scaling.groups:
        for law, fit in group.fits.items():
            marked_law = f"{law} *" if law == group.chosen else law
            n_points = f"{clean(group.name)}, {counted(len(group.points), 'point')}"
            errors = [fixed(fit.rms, 5), fixed(fit.leave_one_out_rms, 5), fixed(fit.r_squared, 4)]
            quality.append([n_points, marked_law, *errors, clean(fit.form), clean(fit.reason or "") or MISSING])
            fits.append((group.name, marked_law, fit))
    values = [
        [clean(name), law, symbol, _digits(value.mean), f"{_digits(value.low)} to {_digits(value.high)}"]
        for name, law, fit in fits
        for symbol, value in fit.parameters.items()
    ]
    header = ["Group", "law", "rms", "left out", "R²", "form", "note"]
    caption = "Fitted laws; those with a star are drawn"
    left_out = "left out: rms at each point of the curve fitted to the other points"
    text_columns = {"law", "form", "note"}
    tables = [Table(caption, header, quality, text_columns, note=left_out, notes=[capital(left_out)], n_essential=5)]
    if values:
        symbols = ["Group", "law", "symbol", "value", f"{percentage(scaling.confidence)} interval"]
        tables.append(Table("Values of the fitted laws", symbols, values, {"law", "symbol"}))
    return tables


def _digits(value: float | None) -> str:
    """Return five significant digits, because parameters differ by orders of magnitude."""
    return MISSING if value is None else minus(f"{value:.5g}")


def csv_files(scaling: ScalingLaws) -> dict[str, str]:
    """Return `fits.csv`, a row for each parameter of each fit, and `savings.csv`, at full precision."""
    fits = [
        (group.name, law, law == group.chosen, symbol, value.mean, value.low, value.high, fit.rms, fit.r_squared)
        for group in scaling.groups
        for law, fit in group.fits.items()
        for symbol, value in fit.parameters.items()
    ]
    savings = []
    for saving in scaling.savings:
        at = saving.at
        ratio = saving.ratio
        names = (saving.group, saving.baseline, saving.fit, saving.kind, at.name)
        savings.append((*names, at.x, at.y, ratio.mean, ratio.low, ratio.high))
    of_fits = ["group", "law", "chosen", "symbol", "value", "low", "high", "rms", "r_squared"]
    of_savings = ["group", "baseline", "law", "kind", "at", "x", "y", "ratio", "low", "high"]
    return {"fits.csv": csv_rows(of_fits, fits), "savings.csv": csv_rows(of_savings, savings)}


def law_figure(scaling: ScalingLaws, looks: Looks) -> Figure:
    """Return points and chosen curves on logarithmic axes, with arrows from the baseline's curve to other curves."""
    x_title = clean(scaling.x)
    y_title = clean(scaling.y)
    ends = {saving.group: saving.at.x * finite(saving.ratio.mean) for saving in scaling.arrows}
    points: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    for group in scaling.groups:
        name = {"name": clean(group.name)}
        band = group.chosen_fit.band
        points += [name | {"point": clean(point.name), "x": float(point.x), "y": point.y} for point in group.points]
        curves += [name | {"x": x, "y": y} for x, y in _curve(group, ends.get(group.name))]
        if band:
            rows = zip(band.x, map(finite, band.low), map(finite, band.high))
            bands += [name | {"x": x, "low": low, "high": high} for x, low, high in rows]
    tip = charts.tips(name="|group", point="", x=f".4~s|{x_title}", y=f".4f|{y_title}")
    plot = Plot(charts.x("x", x_title, None, True, format=".3~s"), y_title, looks, tip, is_log=True)
    layers = [draw(rows) for draw, rows in ((plot.bands, bands), (plot.lines, curves), (plot.points, points)) if rows]
    arrows: list[dict[str, Any]] = []
    reached = ""
    for saving in scaling.arrows:
        share = percent(saving.ratio.mean)
        row = {"start": saving.at.x, "x": ends[saving.group], "y": saving.at.y}
        arrows.append(row | {"share": f"{shorten(saving.group, 24)}: {share}"})
        reached += f" {shorten(saving.group, 40)} reaches {fixed(saving.at.y, 4)} with {share} of the {x_title} of "
        reached += f"{shorten(saving.baseline, 40)}."
    if arrows:
        base = charts.chart(arrows).encode(x="x:Q", y="y:Q")
        layers += [
            base.mark_rule(strokeWidth=1.4, stroke=INK).encode(x2="start:Q", tooltip=charts.tips(share="|needs")),
            base.mark_point(shape="triangle-left", fill=INK, size=50),
            base.mark_text(align="right", dx=-8, dy=10).encode(text="share:N"),
        ]
    title = f"{y_title} over {x_title}"
    extents = []
    for group in scaling.groups:
        by_x = sorted(group.points, key=lambda point: point.x)
        first, last = (f"{fixed(point.y, 4)} at {tick(point.x)}" for point in (by_x[0], by_x[-1]))
        extents.append(f"{shorten(group.name, 40)} from {first} to {last}")
    label = f"{title} on logarithmic axes. {'; '.join(extents)}.{reached}"
    return Figure("laws", title, label, alt.layer(*layers), looks, height=340)


def _curve(group: ScalingGroup, end: float | None) -> list[tuple[float, float]]:
    """Return points of the chosen law of a group. end: x of the end of an arrow, possibly beyond the group's points."""
    values = np.array([finite(parameter.mean) for parameter in group.chosen_fit.parameters.values()])
    if not len(values):
        return []
    xs = [point.x for point in group.points]
    if end is not None:
        xs.append(end)
    dense = np.geomspace(min(xs) / 1.15, max(xs) * 1.15, 80)
    return list(zip(dense.tolist(), LAWS[group.chosen].y(values, dense).tolist()))


def percent(ratio: float | None) -> str:
    """Return a ratio in percent: 0.7776 -> 77.8%."""
    return MISSING if ratio is None else f"{fixed(100 * ratio, 1)}%"
