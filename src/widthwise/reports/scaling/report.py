"""The report of fitted laws: `report.html`, `fits.csv` and `savings.csv`."""

from collections.abc import Iterator
from pathlib import Path

from widthwise.records.scaling import FittedLaw, Saving, ScalingLaws
from widthwise.reports.page.formats import MISSING, clean, fixed, minus, percentage, si
from widthwise.reports.page.html import legend, panels, render, sequence, write_all
from widthwise.reports.page.spreadsheet import csv_cell, csv_rows
from widthwise.reports.page.svg import styles
from widthwise.reports.page.table import Table
from widthwise.reports.scaling.figures import law_figure, percent


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
        "scaling/scaling.html",
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
        for law, fit in group.fits.items():
            if fit:
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
            for law, fit in group.fits.items()
            if fit
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
