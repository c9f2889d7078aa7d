"""The main table of a comparison, sweep or family as text cells, which page, terminal, CSV and LaTeX only lay out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

from widthwise.config_io import UserError, nearest_hint
from widthwise.records.comparison import Compared, Comparison, Family, Variant
from widthwise.records.estimate import NO_VERDICT, TIE_MARGIN, Estimate
from widthwise.records.quantities import QUANTITIES, QUANTITY, TITLES, OfModel, Quantity
from widthwise.records.sweep import Sweep
from widthwise.reports.page.formats import (
    MISSING,
    TIMES,
    capital,
    clean,
    counted,
    fixed,
    interval,
    percentage,
    ratio,
    shorten,
    shown,
    signed,
)
from widthwise.reports.page.table import Table, csv_cell, csv_estimate, csv_rows, escaped_row, latex_table


@dataclass(frozen=True)
class Cell:
    """A value, its interval (or "") and its ratio to the baseline (None for the baseline itself)."""

    value: str
    interval: str = ""
    ratio: float | None = None


VERDICT_NOTE = (
    f"Better or worse: the interval of the difference excludes 0. Tie: all of it is within {TIE_MARGIN:g} nats of 0. "
    f"Cannot tell: neither. {capital(NO_VERDICT)}."
)
NO_INTERVALS_NOTE = "No intervals are shown: a single seed gives none."
SHARED_NOTE = "*: other processes used the machine, not comparable"
RATIO_NOTE = f"The small number followed by {TIMES} is the ratio to {{baseline}}."


def seed_words(comparison: Compared) -> str:
    """`2 seeds (1, 2)`."""
    return f"{counted(len(comparison.seeds), 'seed')} ({', '.join(map(str, comparison.seeds))})"


def matched_words(quantity: str | None) -> str:
    """ " at equal parameters", or nothing where nothing is equal."""
    return "" if quantity in (None, "none") else f" at equal {TITLES.get(quantity, clean(quantity))}"


def has_intervals(comparison: Compared) -> bool:
    """Whether any variant has an interval; a single seed gives none."""
    every = [each for variant in comparison.variants for each in (variant.val_loss, variant.difference)]
    return any(each is not None and each.low is not None for each in every)


ComparedT = TypeVar("ComparedT", Comparison, Sweep, Family)


def with_columns(comparison: ComparedT, columns: Sequence[str] | None) -> ComparedT:
    """With these quantities in the main table; None: as it is.

    Raises UserError for a name that is none, and for a quantity that no variant has.
    """
    if columns is None:
        return comparison
    for name in columns:
        if name not in QUANTITY:
            raise UserError(f"--columns: got {name!r}; {nearest_hint(name, QUANTITY)}")
    had = {each.name for each in QUANTITIES for variant in comparison.variants if each.value(variant) is not None}
    for name in columns:
        if name not in had:
            raise UserError(f"--columns: got {name!r}, which no variant has; those known are {', '.join(sorted(had))}")
    return comparison.with_changes(columns=list(columns))


def main_columns(comparison: Compared) -> list[Quantity]:
    """Those that were asked for, otherwise the main quantities that some variant has."""
    if comparison.columns is not None:
        return [QUANTITY[name] for name in comparison.columns if name in QUANTITY]
    return [each for each in QUANTITIES if each.is_main and _is_known(each, comparison)]


def _is_known(quantity: Quantity, comparison: Compared) -> bool:
    if quantity.is_judged:
        return comparison.baseline_words is not None
    return any(quantity.of_variant(variant) for variant in comparison.variants)


def notes(comparison: Compared) -> list[str]:
    """The footnotes of the main table: one per column, one for the verdict, one for the ratios."""
    words = {"confidence": percentage(comparison.confidence), "baseline": clean(comparison.baseline_words or "")}
    found = [column.note or f"{capital(column.title)}." for column in main_columns(comparison)]
    if comparison.baseline_words:
        found += [VERDICT_NOTE, RATIO_NOTE]
    if not has_intervals(comparison):
        found.append(NO_INTERVALS_NOTE)
    return [*(note.format(**words) for note in found), *doubts(comparison)]


def doubts(comparison: Compared) -> list[str]:
    """What casts doubt on the last loss of single runs, whose variants are marked."""
    return [f"! {clean(each.name)}, {doubt}." for each in comparison.variants for doubt in each.doubts]


def marked(variant: Variant) -> str:
    """Its name, with a mark where something casts doubt on one of its losses."""
    return f"{clean(variant.name)}{' !' * bool(variant.doubts)}"


def cells(variant: Variant, comparison: Compared) -> list[Cell]:
    """The main table's row of one variant, one cell per column."""
    return [_cell(quantity, variant, comparison) for quantity in main_columns(comparison)]


def _cell(quantity: Quantity, variant: Variant, comparison: Compared) -> Cell:
    """A value with its interval, or with its ratio if it has one; the baseline has no ratio to itself."""
    estimate, baseline = quantity.of_variant(variant), comparison.baseline_of(variant)
    if estimate is None:
        return Cell(MISSING)
    if quantity.is_speed and variant.shares_machine:
        return Cell(f"{shown(estimate.mean, quantity)}*")
    if not quantity.has_ratio:
        n_decimals = quantity.n_decimals
        ends = "" if n_decimals is None else interval(estimate, n_decimals, quantity.is_signed)
        return Cell(shown(estimate.mean, quantity), ends)
    other = None if baseline is None or baseline.name == variant.name else baseline
    return Cell(shown(estimate.mean, quantity), "", quantity.ratio(variant, other) if other else None)


def shown_verdict(variant: Variant) -> str:
    """Nothing can be told where there is no baseline."""
    return variant.verdict or "cannot tell"


_VERDICT_SIGNS = {"better": "▼ ", "worse": "▲ "}


@dataclass(frozen=True)
class MainRow:
    """The row of one variant on a page."""

    name: str
    swatch: Markup
    cells: list[tuple[Quantity, Cell]]
    verdict: str
    verdict_class: str


@dataclass(frozen=True)
class MainTable:
    """The main table on a page, or one of the two into which it is divided."""

    caption: str
    columns: list[tuple[int, Quantity]]
    """Each with the number of its note."""
    rows: list[MainRow]


def main_tables(comparison: Compared, caption: str, swatches: Sequence[Markup]) -> list[MainTable]:
    """What a page shows: columns that were asked for in one table, otherwise a table of losses and one of costs.

    All of the usual columns side by side would be wider than most windows. swatches: one for each variant. No tables
    where there is no variant.
    """
    columns = list(enumerate(main_columns(comparison), start=1))
    losses = [each for each in columns if comparison.columns is not None or not _is_of_cost(each[1])]
    costs = [each for each in columns if each not in losses]
    rows = list(zip(comparison.variants, swatches, strict=True))
    return [
        MainTable(title, own, [_row(variant, comparison, own, swatch) for variant, swatch in rows])
        for title, own in ((caption, losses), ("What each costs", costs))
        if own and rows
    ]


def _is_of_cost(quantity: Quantity) -> bool:
    return isinstance(quantity, OfModel) or quantity.is_cost or quantity.is_speed


def _row(variant: Variant, comparison: Compared, columns: Sequence[tuple[int, Quantity]], swatch: Markup) -> MainRow:
    verdict = shown_verdict(variant)
    return MainRow(
        marked(variant),
        swatch,
        [(quantity, _cell(quantity, variant, comparison)) for _, quantity in columns],
        _VERDICT_SIGNS.get(verdict, "") + verdict,
        verdict.replace(" ", "-"),
    )


def validated_names(comparison: Compared) -> list[str]:
    """TEXT.loss, TASK.acc and so on, of all variants."""
    return list(dict.fromkeys(name for variant in comparison.variants for name in variant.validated))


def validated_table(comparison: Compared) -> Table | None:
    """One row per variant; differences to the baseline with their intervals stand behind the means."""
    names = validated_names(comparison)
    rows = [[clean(variant.name), *(_further(variant, name) for name in names)] for variant in comparison.variants]
    caption = f"Further texts and tasks: mean over seeds (difference, its {percentage(comparison.confidence)} interval)"
    return Table(caption, ["Variant", *names], rows) if names else None


def _further(variant: Variant, name: str) -> str:
    found = variant.validated.get(name)
    if found is None:
        return MISSING
    difference = found.difference
    if difference is None:
        return fixed(found.value.mean, 4)
    shown = interval(difference, 4, True)
    return f"{fixed(found.value.mean, 4)} ({signed(difference.mean, 4)}{f', {shown}' if shown else ''})"


TERMINAL_COLUMNS = (
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
        if column.name in TERMINAL_COLUMNS:
            header += [column.short, "verdict"] if column.is_judged else [column.short]
    rows = [_terminal_row(variant, comparison) for variant in comparison.variants]
    n_essential = 1 + header.index("verdict") if "verdict" in header else None
    return Table(
        clean(comparison.title),
        header,
        rows,
        words={"verdict"},
        note=_terminal_note(comparison),
        n_essential=n_essential,
    )


def _terminal_row(variant: Variant, comparison: Comparison) -> list[str]:
    row = [shorten(marked(variant), 36)]
    for column, cell in zip(main_columns(comparison), cells(variant, comparison)):
        if column.name not in TERMINAL_COLUMNS:
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


def _terminal_note(comparison: Comparison) -> str:
    level, baseline = percentage(comparison.confidence), shorten(comparison.baseline, 30)
    shared = any(variant.shares_machine for variant in comparison.variants)
    lines = [f"below: {level} interval, (ratio to {baseline})", "FLOPs: forward, per token; KV B: bytes per token"]
    return "\n".join([*lines, *([SHARED_NOTE] if shared else []), *doubts(comparison)])


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
        row |= csv_estimate(quantity.csv_column, quantity.of_variant(variant))
    for name in validated_names(comparison):
        found = variant.validated.get(name)
        row |= csv_estimate(name, found and found.value)
        row |= csv_estimate(f"{name}_difference", found and found.difference)
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
