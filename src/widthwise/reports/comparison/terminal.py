"""The main table of a comparison for a terminal of 100 columns; a narrower one shows fewer costs."""

from widthwise.records.comparison import Comparison, Variant
from widthwise.records.estimate import Estimate
from widthwise.reports.comparison.main_table import SHARED_NOTE, cells, doubts, main_columns, marked, shown_verdict
from widthwise.reports.page.formats import clean, fixed, percentage, ratio, shorten, signed
from widthwise.reports.page.table import Table

COLUMNS = (
    "val_loss",
    "difference",
    "val_bits_per_byte",
    "params",
    "dead_params",
    "flops",
    "average_width",
    "kv_bytes",
    "tokens_per_second",
)
"""The columns of the main table for which a terminal has room."""


def comparison_table(comparison: Comparison) -> Table:
    """The content of `comparison.json`: values, and below each its interval or its ratio to the baseline."""
    header = ["variant"]
    for column in main_columns(comparison):
        if column.name in COLUMNS:
            header += [column.short, "verdict"] if column.is_judged else [column.short]
    rows = [_row(variant, comparison) for variant in comparison.variants]
    n_essential = 1 + header.index("verdict") if "verdict" in header else None
    return Table(
        clean(comparison.title), header, rows, words={"verdict"}, note=_note(comparison), n_essential=n_essential
    )


def _row(variant: Variant, comparison: Comparison) -> list[str]:
    row = [shorten(marked(variant), 36)]
    for column, cell in zip(main_columns(comparison), cells(variant, comparison)):
        if column.name not in COLUMNS:
            continue
        text = ratio(cell.ratio, sign="")
        below = f"({text})" if text else "" if column.has_ratio else _ends(column.of_variant(variant), column.is_signed)
        row.append(f"{cell.value}\n{below}" if below else cell.value)
        if column.is_judged:
            row.append(shown_verdict(variant))
    return row


def _ends(estimate: Estimate | None, is_signed: bool) -> str:
    """The ends of an interval with the three decimals a narrow column has room for."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    show = signed if is_signed else fixed
    return f"{show(estimate.low, 3)}…{show(estimate.high, 3)}"


def _note(comparison: Comparison) -> str:
    level, baseline = percentage(comparison.confidence), shorten(comparison.baseline, 30)
    shared = any(variant.shares_machine for variant in comparison.variants)
    lines = [f"below: {level} interval, (ratio to {baseline})", "FLOPs: forward, per token; KV B: bytes per token"]
    return "\n".join([*lines, *([SHARED_NOTE] if shared else []), *doubts(comparison)])
