"""The main table of an experiment as text cells, for page, terminal, CSV and LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from widthwise.config_io import UserError, nearest_hint
from widthwise.records.estimate import NO_VERDICT, TIE_MARGIN, Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import QUANTITIES, QUANTITY, OfModel, Quantity
from widthwise.reports.formats import (
    MISSING,
    TIMES,
    capital,
    clean,
    fixed,
    interval,
    percentage,
    ratio,
    shorten,
    shown,
    signed,
)
from widthwise.reports.table import Table, csv_cell, csv_estimate, csv_rows, escaped_row, latex_table

if TYPE_CHECKING:
    from widthwise.reports.charts import Style


class Cell(NamedTuple):
    """A value, its interval (or "") and its ratio to the baseline (None for the baseline itself)."""

    value: str
    interval: str = ""
    ratio: float | None = None

    @property
    def detail(self) -> str:
        return self.interval or ratio(self.ratio)

    @property
    def text(self) -> str:
        return f"{self.value}\n{self.detail}" if self.detail else self.value


VERDICT_NOTE = (
    f"Verdict. Better or worse: the interval of the difference excludes 0. Tie: all of it is within {TIE_MARGIN:g} "
    f"nats of 0. Cannot tell: neither. {capital(NO_VERDICT)}."
)
NO_INTERVALS_NOTE = "No intervals are shown: a single seed gives none."
SHARED_NOTE = "*: other processes used the machine, not comparable"
RATIO_NOTE = f"The small number followed by {TIMES} is the ratio to {{baseline}}."
_IN_PAPERS = ("val_loss", "difference", "params", "flops", "kv_bytes")
"""Columns of a LaTeX table, which fit a column of a paper; `--columns` asks for others."""


def has_intervals(outcome: Outcome) -> bool:
    """Return whether any variant has an interval; a single seed gives none."""
    every = [each for variant in outcome.variants for each in (variant.val_loss, variant.difference)]
    return any(each is not None and each.low is not None for each in every)


def with_columns(outcome: Outcome, columns: Sequence[str] | None) -> Outcome:
    """Return the record with these quantities in the main table; None: as it is.

    Raises UserError for a name that is none, and for a quantity that no variant has.
    """
    if columns is None:
        return outcome
    for name in columns:
        if name not in QUANTITY:
            raise UserError(f"--columns: got {name!r}; {nearest_hint(name, QUANTITY)}")
    had = {each.name for each in QUANTITIES for variant in outcome.variants if each.value(variant) is not None}
    for name in columns:
        if name not in had:
            raise UserError(f"--columns: got {name!r}, which no variant has; those known are {', '.join(sorted(had))}")
    return outcome.with_changes(columns=list(columns))


def main_columns(outcome: Outcome) -> list[Quantity]:
    """Return the columns that were asked for, otherwise the main quantities that some variant has."""
    if outcome.columns is not None:
        return [QUANTITY[name] for name in outcome.columns if name in QUANTITY]
    return [each for each in QUANTITIES if each.is_main and _is_known(each, outcome)]


def _is_known(quantity: Quantity, outcome: Outcome) -> bool:
    if quantity.is_judged:
        return outcome.baseline_words is not None
    return any(quantity.of_variant(variant) for variant in outcome.variants)


def notes(outcome: Outcome) -> list[str]:
    """Return the definition of each column, then of the verdict and the ratios."""
    words = {"confidence": percentage(outcome.confidence), "baseline": clean(outcome.baseline_words or "")}
    columns = main_columns(outcome)
    found = [f"{capital(column.title)}. {column.note}" if column.note else "" for column in columns]
    if outcome.baseline_words:
        found += [VERDICT_NOTE, RATIO_NOTE]
    if not has_intervals(outcome):
        found.append(NO_INTERVALS_NOTE)
    return [note.format(**words) for note in found if note]


def doubts(outcome: Outcome) -> list[str]:
    """Return what casts doubt on the last loss of single runs, whose variants are marked."""
    return [f"! {clean(each.name)}, {doubt}." for each in outcome.variants for doubt in each.doubts]


def marked(variant: Variant) -> str:
    """Return a variant's name, with a mark where something casts doubt on one of its losses."""
    return f"{clean(variant.name)}{' !' * bool(variant.doubts)}"


def cell_of(quantity: Quantity, variant: Variant, outcome: Outcome) -> Cell:
    """Return a value with its interval, or with its ratio if it has one; the baseline has no ratio to itself."""
    estimate, baseline = quantity.of_variant(variant), outcome.baseline_of(variant)
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


def main_tables(outcome: Outcome, caption: str, looks: Mapping[str, "Style"]) -> list[Table]:
    """Return columns that were asked for in one table, otherwise a table of losses and one of costs.

    All of the usual columns side by side would be wider than most windows. looks: style of each variant. No tables
    where there is no variant.
    """
    columns = main_columns(outcome)
    losses = [each for each in columns if outcome.columns is not None or not _is_of_cost(each)]
    costs = [each for each in columns if each not in losses]
    named = ((caption, losses), ("Costs", costs))
    tables = [_table(outcome, title, own, looks) for title, own in named if own and outcome.variants]
    if tables:
        tables[-1] = replace(tables[-1], notes=[*notes(outcome), *doubts(outcome)])
    return tables


def _is_of_cost(quantity: Quantity) -> bool:
    return isinstance(quantity, OfModel) or quantity.is_cost or quantity.is_speed


def _table(outcome: Outcome, caption: str, columns: Sequence[Quantity], looks: Mapping[str, "Style"]) -> Table:
    rows = [
        [marked(each), *(text for column in columns for text in _texts(column, each, outcome))]
        for each in outcome.variants
    ]
    titles = [
        title
        for each in columns
        for title in ([capital(each.title), "Verdict"] if each.is_judged else [capital(each.title)])
    ]
    swatches = [looks[each.name].swatch for each in outcome.variants if each.name in looks]
    return Table(
        caption,
        ["Point" if outcome.axes else "Variant", *titles],
        rows,
        swatches=swatches if len(swatches) == len(rows) else (),
    )


def _texts(column: Quantity, variant: Variant, outcome: Outcome) -> list[str]:
    cell = cell_of(column, variant, outcome).text
    return [cell, shown_verdict(variant)] if column.is_judged else [cell]


def shown_verdict(variant: Variant) -> str:
    """Return the verdict; nothing can be told where there is no baseline."""
    return variant.verdict or "cannot tell"


def validated_names(outcome: Outcome) -> list[str]:
    """Return TEXT.loss, TASK.acc and so on, of all variants."""
    return list(dict.fromkeys(name for variant in outcome.variants for name in variant.validated))


def validated_table(outcome: Outcome) -> Table | None:
    """Return one row per variant; differences to the baseline with their intervals stand behind the means."""
    names = validated_names(outcome)
    rows = [[clean(variant.name), *(_validated(variant, name) for name in names)] for variant in outcome.variants]
    caption = f"Further texts and tasks: mean over seeds (difference, its {percentage(outcome.confidence)} interval)"
    return Table(caption, ["Variant", *names], rows) if names else None


def _validated(variant: Variant, name: str) -> str:
    found = variant.validated.get(name)
    if found is None:
        return MISSING
    difference = found.difference
    if difference is None:
        return fixed(found.value.mean, 4)
    ends = interval(difference, 4, True)
    return f"{fixed(found.value.mean, 4)} ({signed(difference.mean, 4)}{f', {ends}' if ends else ''})"


_ON_TERMINALS = (
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


def comparison_table(outcome: Outcome) -> Table:
    """Return the table of a terminal: values, and below each its interval or its ratio to the baseline."""
    columns = [each for each in main_columns(outcome) if each.name in _ON_TERMINALS]
    header = [
        "variant",
        *(title for each in columns for title in ([each.short, "verdict"] if each.is_judged else [each.short])),
    ]
    rows = [_terminal_row(variant, columns, outcome) for variant in outcome.variants]
    n_essential = 1 + header.index("verdict") if "verdict" in header else None
    note = _terminal_note(outcome)
    return Table(clean(outcome.title), header, rows, words={"verdict"}, note=note, n_essential=n_essential)


def _terminal_row(variant: Variant, columns: Sequence[Quantity], outcome: Outcome) -> list[str]:
    row = [shorten(marked(variant), 36)]
    for column in columns:
        cell = cell_of(column, variant, outcome)
        text = ratio(cell.ratio, sign="")
        below = f"({text})" if text else "" if column.has_ratio else _ends(column.of_variant(variant), column.is_signed)
        row.append(f"{cell.value}\n{below}" if below else cell.value)
        if column.is_judged:
            row.append(shown_verdict(variant))
    return row


def _ends(estimate: Estimate | None, is_signed: bool) -> str:
    """Return the ends of an interval with the three decimals a narrow column has room for."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    show = signed if is_signed else fixed
    return f"{show(estimate.low, 3)}…{show(estimate.high, 3)}"


def _terminal_note(outcome: Outcome) -> str:
    level, baseline = percentage(outcome.confidence), shorten(outcome.baseline_words or "", 30)
    shared = any(variant.shares_machine for variant in outcome.variants)
    lines = [f"below: {level} interval, (ratio to {baseline})", "FLOPs: forward, per token; KV B: bytes per token"]
    return "\n".join([*lines, *([SHARED_NOTE] if shared else []), *doubts(outcome)])


def csv_text(outcome: Outcome) -> str:
    """Return one row per variant, full precision, empty where a number is unknown."""
    measured = [
        each
        for each in QUANTITIES
        if not isinstance(each, OfModel) and any(each.of_variant(variant) for variant in outcome.variants)
    ]
    rows = [_csv_row(variant, outcome, measured) for variant in outcome.variants]
    return csv_rows(rows, list(rows[0]))


def _csv_row(variant: Variant, outcome: Outcome, measured: Sequence[Quantity]) -> dict[str, str | float | None]:
    """Return what was measured, with intervals; what was counted; and both over the baseline's."""
    row: dict[str, str | float | None] = {"variant": csv_cell(variant.name), "verdict": shown_verdict(variant)}
    for quantity in measured:
        row |= csv_estimate(quantity.csv_column, quantity.of_variant(variant))
    for name in validated_names(outcome):
        found = variant.validated.get(name)
        row |= csv_estimate(name, found and found.value)
        row |= csv_estimate(f"{name}_difference", found and found.difference)
    row |= {each.csv_column: each.value(variant) for each in QUANTITIES if isinstance(each, OfModel)}
    baseline = outcome.baseline_of(variant)
    ratios = {each.name: each.ratio(variant, baseline) if baseline else None for each in QUANTITIES if each.has_ratio}
    return row | {f"{name}_ratio": ratio for name, ratio in ratios.items()}


def latex_text(outcome: Outcome) -> str:
    r"""Return a `table` environment for a paper; needs \usepackage{booktabs} and T1 font encoding."""
    columns = main_columns(outcome)
    if outcome.columns is None:
        columns = [each for each in columns if each.name in _IN_PAPERS]
    has_verdicts = outcome.baseline_words is not None and any(each.is_judged for each in columns)
    titles = [each.title if outcome.columns else each.brief_title for each in columns]
    header = ["", *map(capital, titles), *(["Verdict"] if has_verdicts else [])]
    body = []
    for variant in outcome.variants:
        row, verdict = [cell_of(each, variant, outcome) for each in columns], [shown_verdict(variant)] * has_verdicts
        body.append(escaped_row([variant.name, *(cell.value for cell in row), *verdict]))
        if any(cell.detail for cell in row):
            body.append(escaped_row(["", *(cell.detail for cell in row), *("" for _ in verdict)]))
    return latex_table(_caption(outcome), "r" * len(columns) + "l" * has_verdicts, [escaped_row(header)], body)


def _caption(outcome: Outcome) -> str:
    seeds = ", ".join(str(seed) for seed in outcome.seeds)
    start = f"{outcome.title}. Means over seeds {seeds}. Second lines: {percentage(outcome.confidence)} intervals of"
    name = outcome.baseline_words
    end = f" {SHARED_NOTE}." if any(variant.shares_machine for variant in outcome.variants) else ""
    if name is None:
        return f"{start} losses.{end}"
    return f"{start} losses and of paired differences to {name}; otherwise the ratio to {name}.{end}"
