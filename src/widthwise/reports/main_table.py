"""The main table of an experiment as text cells, for page, terminal, CSV and LaTeX."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from widthwise.config_io import UserError, check_one_of
from widthwise.records.estimate import NO_VERDICT, TIE_MARGIN, Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import QUANTITIES, QUANTITY, RUN_COSTS, SPEED, OfModel, Quantity
from widthwise.reports.formats import (
    TIMES,
    capital,
    clean,
    fixed,
    interval,
    percentage,
    plain,
    ratio,
    shorten,
    shown,
    signed,
)
from widthwise.reports.table import Table, csv_estimate, csv_rows
from widthwise.reports.tables import by_row

if TYPE_CHECKING:
    from widthwise.reports.charts import Style


class Cell(NamedTuple):
    """The value of a quantity, with its interval, or with its ratio to the baseline if it has one."""

    quantity: Quantity
    estimate: Estimate | None
    ratio: float | None = None
    """None for the baseline itself, and where machines were shared."""
    is_shared: bool = False

    @property
    def value(self) -> str:
        return shown(self.estimate and self.estimate.mean, self.quantity) + "*" * self.is_shared

    def text(self) -> str:
        """Return the value, and below it the rest, as pages and papers show it."""
        below = self._ends(self.quantity.n_decimals) or ratio(self.ratio)
        return f"{self.value}\n{below}" if below else self.value

    def brief(self) -> str:
        """Return the same for a terminal, with the three decimals that a narrow column has room for."""
        times = ratio(self.ratio, sign="")
        below = self._ends(3).replace(" to ", "…") or (f"({times})" if times else "")
        return f"{self.value}\n{below}" if below else self.value

    def in_line(self) -> str:
        """Return the same in one line, without the interval of a loss."""
        value, _, below = self.brief().partition("\n")
        is_short = self.quantity.has_ratio or self.quantity.name == JUDGED
        return f"{value} ({below.strip('()')})" if below and is_short else value

    def _ends(self, n_decimals: int | None) -> str:
        if self.estimate is None or self.quantity.has_ratio or self.quantity.n_decimals is None or n_decimals is None:
            return ""
        return interval(self.estimate, n_decimals, self.quantity.is_signed)


JUDGED = "difference"
"""The quantity that the verdict is about, and is shown next to."""
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
    had = {each.name for each in QUANTITIES for variant in outcome.variants if each.value(variant) is not None}
    for name in columns:
        check_one_of("--columns", name, QUANTITY)
        if name not in had:
            raise UserError(f"--columns: got {name!r}, which no variant has; those known are {', '.join(sorted(had))}")
    return outcome.with_changes(columns=list(columns))


def main_columns(outcome: Outcome) -> list[Quantity]:
    """Return the columns that were asked for, otherwise the main quantities that some variant has."""
    if outcome.columns is not None:
        return [QUANTITY[name] for name in outcome.columns if name in QUANTITY]
    return [each for each in QUANTITIES if each.is_main and _is_known(each, outcome)]


def _is_known(quantity: Quantity, outcome: Outcome) -> bool:
    if quantity.name == JUDGED:
        return outcome.baseline_words is not None
    return any(quantity.of_variant(variant) for variant in outcome.variants)


def notes(outcome: Outcome) -> list[str]:
    """Return the definition of each column, then of the verdict and the ratios."""
    words = {"confidence": percentage(outcome.confidence), "baseline": clean(outcome.baseline_words or "")}
    definitions = yaml.safe_load(Path(__file__).with_name("quantities.yaml").read_text(encoding="utf-8"))
    lines = []
    for column in main_columns(outcome):
        name, _, place = column.name.partition("_next_")
        if place:
            name += "_next"
            words |= {"place": place, "depth": str(int(place) - 1)}
        if name in definitions:
            lines.append(f"{capital(column.title)}. {definitions[name].format(**words)}")
    if outcome.baseline_words:
        lines += [VERDICT_NOTE, RATIO_NOTE.format(**words)]
    if not has_intervals(outcome):
        lines.append(NO_INTERVALS_NOTE)
    return lines


def doubts(outcome: Outcome) -> list[str]:
    """Return what casts doubt on the last loss of single runs, whose variants are marked."""
    return [f"! {clean(each.name)}, {doubt}." for each in outcome.variants for doubt in each.doubts]


def marked(variant: Variant) -> str:
    """Return a variant's name, with a mark where something casts doubt on one of its losses."""
    return f"{clean(variant.name)}{' !' * bool(variant.doubts)}"


DIFFERS = "Differs in"


def settings_of(variant: Variant) -> list[str]:
    """Return the settings beside the model in which a variant differs from its baseline, with both values."""
    return [
        clean(key)
        if any(isinstance(value, Mapping) for value in pair)
        else f"{clean(key)} {' rather than '.join('null' if value is None else plain(value) for value in pair)}"
        for key, pair in variant.differs_in.items()
    ]


def _with_settings(table: Table, outcome: Outcome) -> Table:
    """Return the table with a column of the settings in which variants differ, if any does."""
    cells = ["\n".join(settings_of(each)) for each in outcome.variants]
    if not any(cells):
        return table
    rows = [[*row, cell] for row, cell in zip(table.rows, cells)]
    return replace(table, header=[*table.header, DIFFERS], rows=rows, words={*table.words, DIFFERS})


def cell_of(quantity: Quantity, variant: Variant, outcome: Outcome) -> Cell:
    """Return a value with its interval, or with its ratio if it has one; the baseline has no ratio to itself."""
    estimate, baseline = quantity.of_variant(variant), outcome.baseline_of(variant)
    is_compared = estimate is not None and quantity.has_ratio
    times = quantity.ratio(variant, baseline) if is_compared and baseline and baseline.name != variant.name else None
    return Cell(quantity, estimate, times, quantity.name == SPEED and variant.shares_machine and estimate is not None)


def main_tables(outcome: Outcome, caption: str, looks: Mapping[str, "Style"]) -> list[Table]:
    """Return columns that were asked for in one table, otherwise a table of losses and one of costs.

    All of the usual columns side by side would be wider than most windows. looks: style of each variant. No tables
    where there is no variant.
    """
    columns = main_columns(outcome)
    losses = [each for each in columns if outcome.columns is not None or not _is_of_cost(each)]
    costs = [each for each in columns if each not in losses]
    named = ((caption, losses), ("Costs", costs))
    swatches = [looks[each.name].swatch for each in outcome.variants]
    tables = [replace(_table(outcome, title, own), swatches=swatches) for title, own in named if own and swatches]
    tables[:1] = [_with_settings(first, outcome) for first in tables[:1]]
    return [*tables[:-1], *(replace(last, notes=[*notes(outcome), *doubts(outcome)]) for last in tables[-1:])]


def _is_of_cost(quantity: Quantity) -> bool:
    return isinstance(quantity, OfModel) or quantity.name in (SPEED, *RUN_COSTS)


def _table(
    outcome: Outcome,
    caption: str,
    columns: Sequence[Quantity],
    layout: Callable[[Cell], str] = Cell.text,
    title_of: Callable[[Quantity], str] = lambda each: capital(each.title),
    of_names: tuple[str, str] = ("Variant", "Verdict"),
) -> Table:
    """Return a row for each variant, the verdict after the difference. of_names: titles of the words."""
    first, verdict = of_names
    header, rows = (
        ["Point" if outcome.axes and first == "Variant" else first],
        [[marked(each)] for each in outcome.variants],
    )
    for column in columns:
        header.append(title_of(column))
        for row, variant in zip(rows, outcome.variants):
            row.append(layout(cell_of(column, variant, outcome)))
        if column.name == JUDGED:
            header.append(verdict)
            for row, variant in zip(rows, outcome.variants):
                row.append(shown_verdict(variant))
    return Table(caption, header, rows, words={verdict})


def shown_verdict(variant: Variant) -> str:
    """Return the verdict; nothing can be told where there is no baseline."""
    return variant.verdict or "cannot tell"


def validated_names(outcome: Outcome) -> list[str]:
    """Return TEXT.loss, TASK.acc and so on, of all variants."""
    return list(dict.fromkeys(name for variant in outcome.variants for name in variant.validated))


def validated_table(outcome: Outcome) -> Table | None:
    """Return one row per variant; differences to the baseline with their intervals stand behind the means."""
    cells: dict[str, dict[str, str]] = {each.name: {} for each in outcome.variants}
    for variant in outcome.variants:
        for name, found in variant.validated.items():
            value, difference = fixed(found.value.mean, 4), found.difference
            ends = f", {interval(difference, 4, True)}" if difference and interval(difference, 4) else ""
            beside = f" ({signed(difference.mean, 4)}{ends})" if difference else ""
            cells[variant.name][name] = value + beside
    caption = f"Further texts and tasks: mean over seeds (difference, its {percentage(outcome.confidence)} interval)"
    return by_row(caption, "Variant", cells) if validated_names(outcome) else None


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
_OF_SWEEPS = ("val_loss", "difference", "params", "training_flops", "kv_bytes")
"""Those of a sweep, whose many points have a line each."""


def comparison_table(outcome: Outcome) -> Table:
    """Return the table of a terminal: values, and with each its interval or its ratio to the baseline.

    Of a sweep, points that have not finished stand below the others.
    """
    level, baseline = percentage(outcome.confidence), shorten(outcome.baseline_words or "", 30)
    if outcome.axes:
        columns = [QUANTITY[name] for name in _OF_SWEEPS if _is_known(QUANTITY[name], outcome)]
        layout, first = Cell.in_line, "point"
        where = f"in parentheses: {level} interval of the difference, ratio to {baseline}" if baseline else ""
    else:
        columns = [each for each in main_columns(outcome) if each.name in _ON_TERMINALS]
        layout, first = Cell.brief, "variant"
        where = f"below: {level} interval, (ratio to {baseline})"
    titles = attrgetter("brief_title")
    table = _table(outcome, clean(outcome.title), columns, layout, titles, (first, "verdict"))
    rows = [[shorten(name, 36), *row] for name, *row in table.rows]
    rows += [[clean(each.name), each.state] for each in outcome.open_points]
    n_essential = 1 + table.header.index("verdict") if "verdict" in table.header else None
    shared = any(variant.shares_machine for variant in outcome.variants)
    column_notes = [
        {first: where},
        {} if outcome.axes else {"FLOPs": "FLOPs: forward, per token", "KV B": "KV B: bytes per token"},
        {"tok/s": SHARED_NOTE} if shared else {},
        *({first: doubt} for doubt in doubts(outcome)),
    ]
    return replace(table, rows=rows, column_notes=column_notes, n_essential=n_essential)


def csv_text(outcome: Outcome) -> str:
    """Return one row per variant, full precision, empty where a number is unknown."""
    measured = [
        each
        for each in QUANTITIES
        if not isinstance(each, OfModel) and any(each.of_variant(variant) for variant in outcome.variants)
    ]
    rows = [_csv_row(variant, outcome, measured) for variant in outcome.variants]
    return csv_rows(rows[0], (row.values() for row in rows))


def _csv_row(variant: Variant, outcome: Outcome, measured: Sequence[Quantity]) -> dict[str, str | float | None]:
    """Return what was measured, with intervals; what was counted; and both over the baseline's."""
    row: dict[str, str | float | None] = {"variant": variant.name, "verdict": shown_verdict(variant)}
    if any(each.differs_in for each in outcome.variants):
        row["differs_in"] = "; ".join(settings_of(variant))
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
    """Return the table of a paper."""
    columns, title = main_columns(outcome), "title"
    if outcome.columns is None:
        columns, title = [each for each in columns if each.name in _IN_PAPERS], "brief_title"
    table = _table(outcome, "", columns, title_of=lambda each: capital(getattr(each, title)))
    return _with_settings(table, outcome).latex(_caption(outcome))


def _caption(outcome: Outcome) -> str:
    seeds = ", ".join(str(seed) for seed in outcome.seeds)
    start = f"{outcome.title}. Means over seeds {seeds}. Second lines: {percentage(outcome.confidence)} intervals of"
    name = outcome.baseline_words
    shared = [f"{SHARED_NOTE}."] if any(variant.shares_machine for variant in outcome.variants) else []
    end = "".join(f" {line}" for line in (*shared, *doubts(outcome)))
    if name is None:
        return f"{start} losses.{end}"
    return f"{start} losses and of paired differences to {name}; otherwise the ratio to {name}.{end}"
