"""The main table of a comparison for a terminal of 100 columns."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from widthwise.records.comparison import Comparison
from widthwise.records.record import Estimate, Variant
from widthwise.reports.comparison.main_table import MAIN_COLUMNS, cells
from widthwise.reports.page.formats import clean, fixed, ratio, shorten, signed
from widthwise.reports.run.reading import parse_comparison

_VERDICT_STYLES = {"better": "bold green", "worse": "bold red", "baseline": "dim"}


def comparison_table(comparison: Mapping[str, Any]) -> Table:
    """The content of `comparison.json` as a table: values, and below each its interval or its ratio to the baseline.

    Raises UserError where a key is missing or wrong.
    """
    record = parse_comparison(comparison)
    table = Table(title=Text(clean(record.title)), caption=_caption(record), box=SIMPLE_HEAD, show_edge=False)
    table.padding, table.pad_edge = 0, False
    table.add_column("variant", overflow="fold", min_width=9, max_width=18)
    for column in MAIN_COLUMNS:
        table.add_column(column.short, justify="right", no_wrap=True)
        if column.key == "difference":
            table.add_column("verdict", min_width=8)
    for variant in record.variants:
        table.add_row(*_row(variant, record))
    return table


def _row(variant: Variant, comparison: Comparison) -> list[Text]:
    below = {"val_loss": _ends(variant.val_loss, fixed), "difference": _ends(variant.difference, signed)}
    row = [Text(shorten(variant.name, 36))]
    for column, cell in zip(MAIN_COLUMNS, cells(variant, comparison)):
        text = ratio(cell.ratio, sign="")
        row.append(_stacked(cell.value, below.get(column.key, f"({text})" if text else "")))
        if column.key == "difference":
            row.append(Text(variant.verdict, style=_VERDICT_STYLES.get(variant.verdict, "")))
    return row


def _ends(estimate: Estimate | None, show: Callable[[float | None, int], str]) -> str:
    """The ends of an interval with the three decimals a narrow column has room for."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{show(estimate.low, 3)}…{show(estimate.high, 3)}"


def _stacked(value: str, detail: str) -> Text:
    return Text(value).append(f"\n{detail}", style="dim") if detail else Text(value)


def _caption(comparison: Comparison) -> Text:
    level, baseline = f"{100 * comparison.confidence:.4g}%", shorten(comparison.baseline, 30)
    shared = any(variant.shares_machine for variant in comparison.variants)
    return Text(
        f"below: {level} interval, (ratio to {baseline}); FLOPs: forward, per token; KV B: bytes per token"
        + ("; *: other processes used the machine, not comparable" if shared else "")
    )
