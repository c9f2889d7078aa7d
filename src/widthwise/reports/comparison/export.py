"""The main table of a comparison, sweep or family as CSV and as LaTeX; text that comes from a user is made harmless."""

from collections.abc import Sequence

from widthwise.records.comparison import Compared, Variant
from widthwise.records.quantities import QUANTITIES, OfModel, Quantity
from widthwise.reports.comparison.main_table import SHARED_NOTE, cells, main_columns, shown_verdict
from widthwise.reports.comparison.validated import validated_names
from widthwise.reports.page.formats import capital, percentage, ratio
from widthwise.reports.page.latex import escaped_row, latex_table
from widthwise.reports.page.spreadsheet import csv_cell, csv_rows


def csv_text(comparison: Compared) -> str:
    """One row per variant, full precision, empty where a number is unknown."""
    measured = [
        each
        for each in QUANTITIES
        if not isinstance(each, OfModel) and any(each.of_variant(variant) for variant in comparison.variants)
    ]
    rows = [_csv_row(variant, comparison, measured) for variant in comparison.variants]
    return csv_rows(rows, list(rows[0]))


def _csv_row(variant: Variant, comparison: Compared, measured: Sequence[Quantity]) -> dict[str, str | float | None]:
    """What was measured, with intervals; what was counted; and both over the baseline's."""
    row: dict[str, str | float | None] = {"variant": csv_cell(variant.name), "verdict": shown_verdict(variant)}
    for quantity in measured:
        estimate = quantity.of_variant(variant)
        for part in ("mean", "low", "high"):
            row[f"{quantity.csv_column}_{part}"] = getattr(estimate, part) if estimate else None
    for name in validated_names(comparison):
        found = variant.validated.get(name)
        for column, estimate in ((name, found and found.value), (f"{name}_difference", found and found.difference)):
            for part in ("mean", "low", "high"):
                row[csv_cell(f"{column}_{part}")] = getattr(estimate, part) if estimate else None
    row |= {each.csv_column: each.value(variant) for each in QUANTITIES if isinstance(each, OfModel)}
    baseline = comparison.baseline_of(variant)
    ratios = {each.name: each.ratio(variant, baseline) if baseline else None for each in QUANTITIES if each.has_ratio}
    return row | {f"{name}_ratio": ratio for name, ratio in ratios.items()}


def latex_text(comparison: Compared) -> str:
    r"""A `table` environment for a paper; needs \usepackage{booktabs} and T1 font encoding."""
    columns = main_columns(comparison)
    has_verdicts = comparison.baseline_words is not None
    header = ["", *(capital(column.title) for column in columns), *(["Verdict"] if has_verdicts else [])]
    body = [line for variant in comparison.variants for line in _latex_lines(variant, comparison)]
    return latex_table(_caption(comparison), "r" * len(columns) + "l" * has_verdicts, [escaped_row(header)], body)


def _caption(comparison: Compared) -> str:
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    start = (
        f"{comparison.title}. Means over seeds {seeds}. Second lines: {percentage(comparison.confidence)} intervals of"
    )
    name = comparison.baseline_words
    end = f" {SHARED_NOTE}." if any(variant.shares_machine for variant in comparison.variants) else ""
    if name is None:
        return f"{start} losses.{end}"
    return f"{start} losses and of paired differences to {name}; otherwise the ratio to {name}.{end}"


def _latex_lines(variant: Variant, comparison: Compared) -> list[str]:
    row = cells(variant, comparison)
    verdict = [shown_verdict(variant)] if comparison.baseline_words else []
    first = escaped_row([variant.name, *(cell.value for cell in row), *verdict])
    details = [ratio(cell.ratio) or cell.interval for cell in row]
    return [first, escaped_row(["", *details, *("" for _ in verdict)])] if any(details) else [first]
