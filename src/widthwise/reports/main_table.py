"""The main table of an experiment as text, for page, terminal, CSV and LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from widthwise.config_io import check_one_of
from widthwise.mistakes import UserError
from widthwise.records.estimate import TIE_MARGIN, UNCLEAR
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import MODEL_COSTS, QUANTITIES, QUANTITY, RUN_COSTS, SPEED, ModelCost, Quantity
from widthwise.reports.formats import TIMES, capital, clean, fixed, interval, percentage, plain, ratio, shorten, shown
from widthwise.reports.table import Table, by_row, csv_estimate, csv_rows

if TYPE_CHECKING:
    from widthwise.reports.charts import Looks

JUDGED = "difference"
"""The quantity that the verdict judges; the verdict is the next column."""
VERDICT_NOTE = (
    f"Verdict. Better or worse: the interval of the difference excludes 0. Tie: all of it is within {TIE_MARGIN:g} "
    f"nats of 0. {capital(UNCLEAR)}: neither. No verdict: fewer than three seeds."
)
SHARED_NOTE = "*: other processes used the machine, not comparable"
DIFFERS = "Differs in"
_IN_PAPERS = ("val_loss", "difference", "params", "flops", "kv_bytes")
"""Default columns of a LaTeX table, which fit a column of a paper."""
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
"""Columns of the main table on a terminal."""
_OF_POINTS = ("val_loss", "difference", "params", "training_flops", "kv_bytes")
"""Columns of a sweep on a terminal, with one line for each point."""


def cell(quantity: Quantity, variant: Variant, outcome: Outcome, is_brief: bool = False) -> tuple[str, str]:
    """Return the mean of a quantity, and the text below it: the interval, the ratio to the baseline, or "".

    is_brief: for the narrow columns of a terminal, with intervals of three decimals.
    """
    estimate = quantity.of_variant(variant)
    if estimate is None:
        return shown(None, quantity), ""
    value = shown(estimate.mean, quantity)
    if quantity.name == SPEED and variant.shares_machine:
        value += "*"
    if quantity.has_ratio:
        baseline = outcome.baseline_of(variant)
        if baseline is None or baseline.name == variant.name:
            return value, ""
        return value, ratio(quantity.ratio(variant, baseline), sign="" if is_brief else TIMES)
    if quantity.n_decimals is None:
        return value, ""
    if is_brief:
        return value, interval(estimate, 3, quantity.is_signed).replace(" to ", "…")
    return value, interval(estimate, quantity.n_decimals, quantity.is_signed)


def _table(
    outcome: Outcome, caption: str, columns: Sequence[Quantity], titles: Sequence[str], is_brief: bool = False
) -> Table:
    """Return a row for each variant, with the verdict after the difference, and "!" after a name with a doubtful loss.

    is_brief: for a terminal. Points on axes then have one line, without intervals of losses.
    """
    first = "point" if outcome.axes else "variant"
    verdict = "verdict"
    if not is_brief:
        first = capital(first)
        verdict = capital(verdict)
    is_one_line = is_brief and bool(outcome.axes)
    header = [first]
    rows = [[f"{clean(variant.name)} !" if variant.doubts else clean(variant.name)] for variant in outcome.variants]
    for column, title in zip(columns, titles):
        header += [title, verdict] if column.name == JUDGED else [title]
        for row, variant in zip(rows, outcome.variants):
            value, below = cell(column, variant, outcome, is_brief)
            if below and not is_one_line:
                value += f"\n({below})" if is_brief and column.has_ratio else f"\n{below}"
            elif below and (column.has_ratio or column.name == JUDGED):
                value += f" ({below})"
            row += [value, shown_verdict(variant)] if column.name == JUDGED else [value]
    return Table(caption, header, rows, text_columns={verdict})


def shown_verdict(variant: Variant) -> str:
    """Return the verdict; UNCLEAR without a baseline."""
    return variant.verdict or UNCLEAR


def with_columns(outcome: Outcome, columns: Sequence[str]) -> Outcome:
    """Return the record with these quantities in the main table.

    Raises UserError for an unknown name, and for a quantity that no variant has.
    """
    available = {q.name for q in QUANTITIES if any(q.value(variant) is not None for variant in outcome.variants)}
    for name in columns:
        check_one_of("--columns", name, QUANTITY)
        if name not in available:
            allowed = ", ".join(sorted(available))
            raise UserError(f"--columns: got {name!r}, which no variant has; available are {allowed}")
    return outcome.with_changes(columns=list(columns))


def main_columns(outcome: Outcome) -> list[Quantity]:
    """Return the chosen columns; by default the main quantities that any variant has."""
    if outcome.columns is not None:
        return [QUANTITY[name] for name in outcome.columns if name in QUANTITY]
    return [quantity for quantity in QUANTITIES if quantity.is_main and _is_known(quantity, outcome)]


def _is_known(quantity: Quantity, outcome: Outcome) -> bool:
    if quantity.name == JUDGED:
        return outcome.baseline_words is not None
    return any(map(quantity.of_variant, outcome.variants))


def has_intervals(outcome: Outcome) -> bool:
    """Return whether any variant has an interval, which needs more than one seed."""
    estimates = [estimate for variant in outcome.variants for estimate in (variant.val_loss, variant.difference)]
    return any(estimate is not None and estimate.low is not None for estimate in estimates)


def notes(outcome: Outcome) -> list[str]:
    """Return the definitions of all columns, of the verdict and of ratios."""
    values = {"confidence": percentage(outcome.confidence), "baseline": clean(outcome.baseline_words or "")}
    definitions = yaml.safe_load(Path(__file__).with_name("quantities.yaml").read_text(encoding="utf-8"))
    lines = []
    for column in main_columns(outcome):
        name, _, place = column.name.partition("_next_")
        if place:  # an MTP loss, such as val_loss_next_2
            name += "_next"
            values |= {"place": place, "depth": str(int(place) - 1)}
        if name in definitions:
            lines.append(f"{capital(column.title)}. {definitions[name].format(**values)}")
    if outcome.baseline_words:
        lines += [VERDICT_NOTE, f"The small number followed by {TIMES} is the ratio to {values['baseline']}."]
    if not has_intervals(outcome):
        lines.append("No intervals are shown: a single seed gives none.")
    return lines


def doubts(outcome: Outcome) -> list[str]:
    """Return the reasons to doubt the last loss of runs."""
    return [f"! {clean(variant.name)}, {doubt}." for variant in outcome.variants for doubt in variant.doubts]


def settings_of(variant: Variant) -> list[str]:
    """Return the settings outside the model that differ from the baseline's, with both values."""
    settings = []
    for key, pair in variant.differs_in.items():
        if any(isinstance(value, Mapping) for value in pair):
            settings.append(clean(key))
        else:
            values = ["null" if value is None else plain(value) for value in pair]
            settings.append(f"{clean(key)} {' rather than '.join(values)}")
    return settings


def _with_settings(table: Table, outcome: Outcome) -> Table:
    """Return the table with a column of the settings that differ from the baseline, if any do."""
    cells = ["\n".join(settings_of(variant)) for variant in outcome.variants]
    if not any(cells):
        return table
    rows = [[*row, text] for row, text in zip(table.rows, cells)]
    return replace(table, header=[*table.header, DIFFERS], rows=rows, text_columns={*table.text_columns, DIFFERS})


def main_tables(outcome: Outcome, caption: str, looks: "Looks") -> list[Table]:
    """Return the chosen columns in one table; by default a table of losses and a table of costs.

    All default columns in one table would be wider than most windows. looks: style of each variant.
    """
    columns = main_columns(outcome)
    losses = columns
    if outcome.columns is None:
        losses = [q for q in columns if not isinstance(q, ModelCost) and q.name not in (SPEED, *RUN_COSTS)]
        losses.sort(key=lambda quantity: quantity.name != JUDGED)  # a narrow screen shows the first columns
    costs = [quantity for quantity in columns if quantity not in losses]
    swatches = [looks[variant.name].swatch for variant in outcome.variants]
    tables = []
    for title, quantities in ((caption, losses), ("Costs", costs)):
        if quantities:
            titles = [capital(quantity.title) for quantity in quantities]
            tables.append(replace(_table(outcome, title, quantities, titles), swatches=swatches))
    if tables:
        tables[0] = _with_settings(tables[0], outcome)
        tables[-1] = replace(tables[-1], notes=[*notes(outcome), *doubts(outcome)])
    return tables


def validated_table(outcome: Outcome) -> Table | None:
    """Return a row for each variant, with means, differences to the baseline and their intervals; None without any."""
    cells: dict[str, dict[str, str]] = {}
    for variant in outcome.variants:
        row = cells[variant.name] = {}
        for name, score in variant.validated.items():
            row[name] = fixed(score.value.mean, 4)
            if difference := score.difference:
                details = [fixed(difference.mean, 4, with_sign=True), interval(difference, 4, with_sign=True)]
                row[name] += f" ({', '.join(filter(None, details))})"
    caption = f"Further texts and tasks: mean over seeds (difference, its {percentage(outcome.confidence)} interval)"
    return by_row(caption, "Variant", cells) if any(cells.values()) else None


def comparison_table(outcome: Outcome) -> Table:
    """Return the table for a terminal: values with their interval or their ratio to the baseline.

    Points of a sweep have one line each. Unfinished points come last.
    """
    level = percentage(outcome.confidence)
    baseline = shorten(outcome.baseline_words or "", 30)
    if outcome.axes:
        first = "point"
        columns = [QUANTITY[name] for name in _OF_POINTS if _is_known(QUANTITY[name], outcome)]
        below = f"in parentheses: {level} interval of the difference, ratio to {baseline}" if baseline else ""
        lines = [{first: below}]
    else:
        first = "variant"
        columns = [quantity for quantity in main_columns(outcome) if quantity.name in _ON_TERMINALS]
        units = {"FLOPs": "FLOPs: forward, per token", "KV B": "KV B: bytes per token"}
        lines = [{first: f"below: {level} interval, (ratio to {baseline})"}, units]
    table = _table(outcome, clean(outcome.title), columns, [column.brief_title for column in columns], is_brief=True)
    rows = [[shorten(name, 36), *row] for name, *row in table.rows]
    rows += [[clean(point.name), point.state] for point in outcome.unfinished_points]
    if any(variant.shares_machine for variant in outcome.variants):
        lines.append({"tok/s": SHARED_NOTE})
    lines += [{first: doubt} for doubt in doubts(outcome)]
    n_essential = 1 + list(table.header).index("verdict") if "verdict" in table.header else None
    return replace(table, rows=rows, column_notes=lines, n_essential=n_essential)


def csv_text(outcome: Outcome) -> str:
    """Return measured and counted quantities and their ratios to the baseline, a row for each variant.

    Numbers have full precision; unknown numbers are empty.
    """
    measured = [q for q in QUANTITIES if not isinstance(q, ModelCost) and any(map(q.of_variant, outcome.variants))]
    validated = dict.fromkeys(name for variant in outcome.variants for name in variant.validated)
    rows: list[dict[str, str | float | None]] = []
    for variant in outcome.variants:
        row: dict[str, str | float | None] = {"variant": variant.name, "verdict": shown_verdict(variant)}
        if any(point.differs_in for point in outcome.variants):
            row["differs_in"] = "; ".join(settings_of(variant))
        for quantity in measured:
            row |= csv_estimate(quantity.csv_column, quantity.of_variant(variant))
        for name in validated:
            score = variant.validated.get(name)
            row |= csv_estimate(name, score and score.value)
            row |= csv_estimate(f"{name}_difference", score and score.difference)
        row |= {cost.csv_column: cost.value(variant) for cost in MODEL_COSTS.values()}
        baseline = outcome.baseline_of(variant)
        for quantity in QUANTITIES:
            if quantity.has_ratio:
                row[f"{quantity.name}_ratio"] = quantity.ratio(variant, baseline) if baseline else None
        rows.append(row)
    return csv_rows(rows[0], (row.values() for row in rows))


def latex_text(outcome: Outcome) -> str:
    """Return the table for a paper."""
    columns = main_columns(outcome)
    titles = [capital(quantity.title) for quantity in columns]
    if outcome.columns is None:
        columns = [quantity for quantity in columns if quantity.name in _IN_PAPERS]
        titles = [capital(quantity.brief_title) for quantity in columns]
    seeds = ", ".join(str(seed) for seed in outcome.seeds)
    caption = f"{outcome.title}. Means over seeds {seeds}. Second lines: {percentage(outcome.confidence)} intervals"
    if outcome.baseline_words is not None:
        baseline = outcome.baseline_words
        caption += f", or with {TIMES} the ratio to {baseline}. Differences are paired, from {baseline}"
    caption += "."
    if any(variant.shares_machine for variant in outcome.variants):
        caption += f" {SHARED_NOTE}."
    caption += "".join(f" {doubt}" for doubt in doubts(outcome))
    return _with_settings(_table(outcome, "", columns, titles), outcome).latex(caption)
