"""The main table of a comparison for a terminal of 100 columns."""

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from widthwise.records.comparison import Comparison, Variant
from widthwise.records.estimate import Estimate
from widthwise.reports.comparison.main_table import cells, main_columns, shown_verdict
from widthwise.reports.page.formats import clean, fixed, ratio, shorten, signed

_VERDICT_STYLES = {"better": "bold green", "worse": "bold red", "baseline": "dim"}


def comparison_table(comparison: Comparison) -> Table:
    """The content of `comparison.json` as a table: values, and below each its interval or its ratio to the baseline."""
    table = Table(title=Text(clean(comparison.title)), caption=_caption(comparison), box=SIMPLE_HEAD, show_edge=False)
    table.padding, table.pad_edge = 0, False
    table.add_column("variant", overflow="fold", min_width=9, max_width=18)
    columns = main_columns(comparison)
    for column in filter(lambda column: column.short, columns):
        table.add_column(column.short, justify="right", no_wrap=True)
        if column.is_signed:
            table.add_column("verdict", min_width=8)
    for variant in comparison.variants:
        table.add_row(*_row(variant, comparison))
    return table


def _row(variant: Variant, comparison: Comparison) -> list[Text]:
    row = [Text(shorten(variant.name, 36))]
    for column, cell in zip(main_columns(comparison), cells(variant, comparison)):
        if not column.short:
            continue
        text = ratio(cell.ratio, sign="")
        below = f"({text})" if text else "" if column.has_ratio else _ends(column.of_variant(variant), column.is_signed)
        row.append(_stacked(cell.value, below))
        if column.is_signed:
            verdict = shown_verdict(variant)
            row.append(Text(verdict, style=_VERDICT_STYLES.get(verdict, "")))
    return row


def _ends(estimate: Estimate | None, is_signed: bool) -> str:
    """The ends of an interval with the three decimals a narrow column has room for."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    show = signed if is_signed else fixed
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
