"""The page of fitted laws, with `fits.csv` and `savings.csv`."""

from typing import Any

import altair as alt
import numpy as np

from widthwise.experiments.laws import ALL_LAWS, CHINCHILLA
from widthwise.records.estimate import Estimate
from widthwise.records.record import finite
from widthwise.records.scaling import ScalingGroup, ScalingLaws
from widthwise.reports import charts
from widthwise.reports.charts import INK, Figure, Looks, Plot, styles
from widthwise.reports.formats import (
    MISSING,
    capital,
    clean,
    counted,
    fixed,
    minus,
    percentage,
    sequence,
    shorten,
    si,
    tick,
)
from widthwise.reports.page import Code, Page, Text, in_words, note, section
from widthwise.reports.table import Table, csv_rows


def scaling_page(scaling: ScalingLaws) -> Page:
    """Return the page of laws fitted to the losses of groups of models."""
    names, baseline = [group.name for group in scaling.groups], scaling.baseline if scaling.savings else None
    level, x, y = percentage(scaling.confidence), clean(scaling.x), clean(scaling.y)
    question = f"How does {y} of {sequence(list(map(clean, names)))} fall with {x}?"
    if baseline is not None:
        rest = [clean(name) for name in names if name != baseline]
        need = "does" if len(rest) == 1 else "do"
        question = f"With how much of the {x} of {clean(baseline)} {need} {sequence(rest)} reach the same {y}?"
    sentences, x2 = scaling.sentence.splitlines(), [clean(scaling.x2)] if scaling.x2 else []
    has_bands = any(group.chosen_fit.band for group in scaling.groups)
    files = "scaling.json: every number of this page\nfits.csv, savings.csv: fitted values and savings"
    points = [
        [clean(group.name), clean(point.name), *map(_digits, point.variables), fixed(point.y, 4), si(point.n_seeds)]
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
                note("fitted-laws", "bands" * has_bands, "arrows" * bool(scaling.arrows), level=level, y=y, x=x),
                in_words(sentences),
            ),
            section("Points", Table("Points", ["Group", "point", x, *x2, y, "seeds"], points, words={"point"})),
            section(
                "How to reproduce",
                Text(["Fits draw with fixed seeds: on the same points this command gives the same numbers."]),
                Code(scaling.command),
                Code(files, "Files"),
            ),
        ),
        made_from=f"{ScalingLaws.file_name} of {scaling.created}",
        files={"fits.csv": fits_csv(scaling), "savings.csv": savings_csv(scaling)},
    )


def scaling_answer(scaling: ScalingLaws) -> list[str]:
    """Return the share of the baseline's x that each group needs, a number a sentence; without a baseline, the laws.

    By the law whose curves are drawn, curve against curve.
    """
    x, y, lines = clean(scaling.x), clean(scaling.y), []
    for each in scaling.arrows:
        name, baseline, ratio = clean(each.group), clean(each.baseline), each.ratio
        lines.append(f"{name} needs {percent(ratio.mean)} of the {x} of {baseline} for the same {y}.")
        if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
            lines.append("This is not significant: the interval contains 100%.")
        if each.is_extrapolated:
            lines.append(f"It is extrapolated beyond the models of {name}.")
    without = [
        clean(each.name) for each in scaling.groups if each.name not in {arrow.group for arrow in scaling.arrows}
    ]
    if lines and (open_groups := [name for name in without if name != clean(scaling.baseline or "")]):
        lines.append(f"The curve of {sequence(open_groups)} never reaches that {y}.")
    return lines or scaling.sentence.splitlines()[:2]


def saving_table(scaling: ScalingLaws) -> Table | None:
    """Return savings by curve and by point, a row for each group and law."""
    rows = []
    for each in scaling.savings:
        ratio, law = each.ratio, each.fit + " *" * scaling.is_drawn(each)
        needs = percent(ratio.mean) + " (extrapolated)" * (each.is_extrapolated and ratio.mean is not None)
        has_ends = ratio.low is not None and ratio.high is not None
        ends = f"{percent(ratio.low)} to {percent(ratio.high)}" if has_ends else MISSING
        names = [clean(each.group), law, f"the {each.kind}"]
        rows.append([*names, needs, ends, fixed(each.at.y, 4), clean(each.at.name)])
    x, y = clean(scaling.x), clean(scaling.y)
    header = ["Group", "law", "against", "needs", "interval", f"at {y}", "of"]
    caption = f"{x} for the {y} of {clean(scaling.baseline or '')}; rows with a star are drawn"
    return Table(caption, header, rows, words={"law", "against", "of"}) if rows else None


def law_tables(scaling: ScalingLaws) -> list[Table]:
    """Return the fits of all groups, and the values of their symbols, if any law could be fitted."""
    quality, values = [], []
    for group in scaling.groups:
        for law, fit in group.fits.items():
            names = [clean(group.name), law + " *" * (law == group.chosen)]
            errors = [fixed(each, 5) for each in (fit.rms, fit.leave_one_out_rms)]
            note = clean(fit.reason or "") or MISSING
            n_points = f"{clean(group.name)}, {counted(len(group.points), 'point')}"
            quality.append([n_points, names[1], *errors, fixed(fit.r_squared, 4), clean(fit.form), note])
            values += [
                [*names, symbol, _digits(each.mean), f"{_digits(each.low)} to {_digits(each.high)}"]
                for symbol, each in fit.parameters.items()
            ]
    for name, optimum in scaling.optima.items():
        values += [
            [clean(name), optimum.form, symbol, _digits(each.mean), f"{_digits(each.low)} to {_digits(each.high)}"]
            for symbol, each in optimum.parameters.items()
        ]
    header = ["Group", "law", "rms", "left out", "R²", "form", "note"]
    caption = "Fitted laws; those with a star are drawn"
    left_out = "left out: rms at each point of the curve through the others"
    laws = Table(
        caption, header, quality, {"law", "form", "note"}, note=left_out, notes=[capital(left_out)], n_essential=5
    )
    symbols = ["Group", "law", "symbol", "value", f"{percentage(scaling.confidence)} interval"]
    return [laws, *[Table("Values of the fitted laws", symbols, values, {"law", "symbol"})] * bool(values)]


def _digits(value: float | None) -> str:
    """Symbols differ by many orders of magnitude: five significant digits each."""
    return MISSING if value is None else minus(f"{value:.5g}")


def fits_csv(scaling: ScalingLaws) -> str:
    """One row for each symbol of each fit, at full precision."""
    header = ["group", "law", "chosen", "symbol", "value", "low", "high", "rms", "r_squared"]
    rows = [
        (group.name, law, law == group.chosen, symbol, *_ends(each), fit.rms, fit.r_squared)
        for group in scaling.groups
        for law, fit in group.fits.items()
        for symbol, each in fit.parameters.items()
    ]
    return csv_rows(header, rows)


def savings_csv(scaling: ScalingLaws) -> str:
    """One row for each saving, at full precision."""
    header = ["group", "baseline", "law", "kind", "at", "x", "y", "ratio", "low", "high"]
    rows = [
        (each.group, each.baseline, each.fit, each.kind, each.at.name, each.at.x, each.at.y, *_ends(each.ratio))
        for each in scaling.savings
    ]
    return csv_rows(header, rows)


def _ends(estimate: Estimate) -> tuple[float | None, ...]:
    return estimate.mean, estimate.low, estimate.high


def law_figure(scaling: ScalingLaws, looks: Looks) -> Figure:
    """Return points and chosen curves on logarithmic axes; arrows lead from the baseline's curve to the others."""
    x_title, y_title = clean(scaling.x), clean(scaling.y)
    ends = {saving.group: saving.at.x * finite(saving.ratio.mean) for saving in scaling.arrows}
    points, curves, bands = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for group in scaling.groups:
        name, band = {"name": clean(group.name)}, group.chosen_fit.band
        points += [name | {"point": clean(each.name), "x": float(each.x), "y": each.y} for each in group.points]
        curves += [name | {"x": x, "y": y} for x, y in _curve(group, ends.get(group.name))]
        if band:
            rows = zip(band.x, map(finite, band.low), map(finite, band.high))
            bands += [name | {"x": x, "low": low, "high": high} for x, low, high in rows]
    tip = charts.tips(name="|group", point="", x=f".4~s|{x_title}", y=f".4f|{y_title}")
    plot = Plot(charts.x("x", x_title, None, True, format=".3~s"), y_title, looks, tip, is_log=True)
    layers = [draw(rows) for draw, rows in ((plot.bands, bands), (plot.lines, curves), (plot.points, points)) if rows]
    arrows, reached = list[dict[str, Any]](), ""
    for saving in scaling.arrows:
        share, y = percent(saving.ratio.mean), saving.at.y
        row = {"start": saving.at.x, "x": ends[saving.group], "y": y}
        arrows.append(row | {"share": f"{shorten(saving.group, 24)}: {share}"})
        names = shorten(saving.group, 40), shorten(saving.baseline, 40)
        reached += f" {names[0]} reaches {fixed(y, 4)} with {share} of what {names[1]} needs."
    if arrows:
        base = alt.Chart(charts.table_of(arrows)).encode(x="x:Q", y="y:Q")
        layers += [
            base.mark_rule(strokeWidth=1.4, stroke=INK).encode(x2="start:Q", tooltip=charts.tips(share="|needs")),
            base.mark_point(shape="triangle-left", fill=INK, size=50),
            base.mark_text(align="right", dx=-8, dy=10).encode(text="share:N"),
        ]
    title = f"{y_title} over {x_title}"
    extents = []
    for group in scaling.groups:
        ends = (min(group.points, key=lambda point: point.x), max(group.points, key=lambda point: point.x))
        first, last = (f"{fixed(point.y, 4)} at {tick(point.x)}" for point in ends)
        extents.append(f"{shorten(group.name, 40)} from {first} to {last}")
    label = f"{title} on logarithmic axes. {'; '.join(extents)}.{reached}"
    return Figure("laws", title, label, alt.layer(*layers), looks, height=340)


def _curve(group: ScalingGroup, end: float | None) -> list[tuple[float, float]]:
    """Return points of the chosen law of a group. end: of an arrow, which may lie beyond the group's own points."""
    values = np.array([finite(each.mean) for each in group.chosen_fit.parameters.values()])
    if group.chosen == CHINCHILLA.kind:
        return []
    reached = [*(point.x for point in group.points), *([] if end is None else [end])]
    dense = np.geomspace(min(reached) / 1.15, max(reached) * 1.15, 80)
    return list(zip(dense.tolist(), ALL_LAWS[group.chosen].y(values, dense).tolist())) if len(values) else []


def percent(ratio: float | None) -> str:
    """Return a ratio in percent: 0.7776 -> 77.8%."""
    return MISSING if ratio is None else f"{fixed(100 * ratio, 1)}%"
