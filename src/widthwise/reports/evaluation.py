"""The page of an evaluation of several models, with CSV and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

from widthwise.records.evaluation import EvaluationTable, TableCell, TableColumn, TableRow
from widthwise.reports.formats import MISSING, capital, clean, fixed, sequence, signed, without_seed
from widthwise.reports.page import Code, Page, Text, note, section
from widthwise.reports.table import Table, csv_cell, csv_rows, escaped_row, latex_escape, latex_row, latex_table

BETTER, WORSE = "*", "†"
PARTS = ("value", "stderr", "difference", "p_better", "p_worse")
"""Those of a cell, in the order of the columns of `table.csv`."""


@dataclass(frozen=True)
class Shown:
    """A cell as text."""

    value: str
    mark: str = ""
    """BETTER, WORSE or nothing."""
    details: str = ""
    """The difference to the baseline, with the p of what it looks like."""


def shown(cell: TableCell, column: TableColumn, significance: float) -> Shown:
    """Shares in percent with one decimal, perplexities with two, as the paper prints them."""
    scale, n_decimals = (100, 1) if column.is_share else (1, 2)
    if cell.value is None:
        return Shown(MISSING)
    p_values = [p for p in (cell.p_better, cell.p_worse) if p is not None]
    is_better, is_worse = (p is not None and p < significance for p in (cell.p_better, cell.p_worse))
    details = [] if cell.difference is None else [signed(scale * cell.difference, n_decimals)]
    details += [f"p {_p(min(p_values))}"] if p_values else []
    mark = BETTER if is_better else WORSE if is_worse else ""
    return Shown(fixed(scale * cell.value, n_decimals), mark, ", ".join(details))


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else fixed(value, 4)


def evaluation_page(table: EvaluationTable) -> Page:
    """Return the page of texts and tasks that several models answered."""
    names = [clean(row.name) for row in table.rows]
    groups = _groups(table.columns)
    arrows = [group.arrow for group in groups for _ in range(group.n_columns)]
    rows = [[clean(row.name), *(_lines(each) for each in _row_shown(row, table))] for row in table.rows]
    titles = [f"{clean(column.name)} {arrow}" for column, arrow in zip(table.columns, arrows)]
    return Page(
        "evaluation",
        table.title,
        answer(table),
        lead=f"What {'does' if len(names) == 1 else 'do'} {sequence(names)} know?",
        sections=(
            section(
                "Results",
                Table(
                    "A row for each model; accuracies in percent; ↑ higher, ↓ lower is better", ["Model", *titles], rows
                ),
                note("answers", tests=_tests(table)) if _has_baselines(table) else None,
                Text([f"{capital(clean(each))}." for each in table.remarks]) if table.remarks else None,
            ),
            section("Questions", _asked(table)),
            section("How to reproduce", Code(table.command), _models(table)),
        ),
        made_from=f"{EvaluationTable.file_name} of {table.created}",
    )


def answer(table: EvaluationTable) -> list[str]:
    """Return, for each model beside its baseline, on how many questions it is better and worse; pooled over seeds.

    Without baselines: which model is best in most columns.
    """
    pooled: dict[tuple[str, str], list[TableCell]] = {}
    for row in table.rows:
        if row.baseline is not None:
            pair = (without_seed(row.name), without_seed(row.baseline))
            pooled.setdefault(pair, []).extend(row.cells)
    if pooled:
        return [_beside(*pair, cells, table.significance) for pair, cells in pooled.items()]
    best: list[str] = []
    for i, column in enumerate(table.columns):
        known = [(cell.value, row.name) for row in table.rows if (cell := row.cells[i]).value is not None]
        if len(known) > 1:
            best.append((max if column.is_share else min)(known)[1])
    if not best:
        return []
    winner = max(dict.fromkeys(best), key=best.count)
    return [f"{clean(winner)} is best in {best.count(winner)} of {len(best)} columns; nothing here was tested."]


def _beside(name: str, baseline: str, cells: Sequence[TableCell], significance: float) -> str:
    tested = [cell for cell in cells if cell.p_better is not None]
    n_better, n_worse = (
        sum(1 for cell in tested if (p := getattr(cell, part)) is not None and p < significance)
        for part in ("p_better", "p_worse")
    )
    return (
        f"{name} is better than {baseline} on {n_better} and worse on {n_worse} of {len(tested)} tested numbers; on "
        f"the "
        "rest the answers cannot tell."
    )


def _lines(cell: Shown) -> str:
    value = f"{cell.value}{cell.mark}"
    return f"{value}\n{cell.details}" if cell.details else value


def _row_shown(row: TableRow, table: EvaluationTable) -> list[Shown]:
    return [shown(*each, table.significance) for each in zip(row.cells, table.columns)]


@dataclass(frozen=True)
class _Group:
    """Neighbouring columns of one kind."""

    name: str
    arrow: str
    """Up where a higher number is better, down where a lower one is."""
    n_columns: int


def _groups(columns: Sequence[TableColumn]) -> list[_Group]:
    """Accuracies stand before losses."""
    shares = [each for each in columns if each.is_share]
    losses = [each for each in columns if not each.is_share]
    name = "Perplexity" if all("perplexity" in each.metric for each in losses) else "Loss, perplexity"
    found = (_Group("Accuracy", "↑", len(shares)), _Group(name, "↓", len(losses)))
    return [group for group in found if group.n_columns]


def _has_baselines(table: EvaluationTable) -> bool:
    return any(row.baseline is not None for row in table.rows)


def _tests(table: EvaluationTable) -> str:
    """Explain the marks; "" where nothing is compared."""
    if not _has_baselines(table):
        return ""
    pairs = "; ".join(f"{clean(row.name)} with {clean(row.baseline)}" for row in table.rows if row.baseline is not None)
    words = (
        f"{BETTER} better and {WORSE} worse than the baseline at p < {table.significance:g}, one-sided, over pairs of "
        "answers to the same questions: McNemar's exact test where they are right or wrong, otherwise Student's t, for "
        f"a perplexity that of the loss. Compared are {pairs}. Every test speaks for its cell alone."
    )
    untested = [
        column.name
        for i, column in enumerate(table.columns)
        if all(row.cells[i].p_better is None for row in table.rows if row.baseline is not None)
    ]
    return words + (f" Not tested, for want of pairs: {clean(', '.join(untested))}." if untested else "")


def _asked(table: EvaluationTable) -> Table:
    """The texts and tasks: Table 5 of the variable-width paper."""
    rows = [
        [clean(each.name), clean(each.metric), _count(each.n_items), _count(each.paper_items), clean(each.source)]
        for each in table.columns
    ]
    header = ["Task", "metric", "questions", "in the paper", "source"]
    return Table("What was asked", header, rows, words={"metric", "source"})


def _count(n: int | None) -> str:
    return MISSING if n is None else f"{n:,}"


def _models(table: EvaluationTable) -> Table:
    rows = [
        [clean(row.name), _count(row.step), clean(row.baseline or "") or MISSING, clean(row.run)] for row in table.rows
    ]
    header = ["Model", "step", "compared with", "run"]
    return Table("The models", header, rows, words={"compared with", "run"})


def csv_text(table: EvaluationTable) -> str:
    """One row for each model, full precision, empty where a number is unknown."""
    titles = [csv_cell(f"{column.name} {column.metric}") for column in table.columns]
    rows = []
    for row in table.rows:
        found: dict[str, object] = {"model": csv_cell(row.name), "baseline": csv_cell(row.baseline or "")}
        for title, cell in zip(titles, row.cells):
            found |= {title if part == "value" else f"{title} {part}": getattr(cell, part) for part in PARTS}
        rows.append(found)
    return csv_rows(rows, list(rows[0]))


def latex_text(table: EvaluationTable) -> str:
    r"""A `table` environment for a paper, what is better in bold; needs \usepackage{booktabs} and T1 font encoding."""
    kinds = [
        rf"\multicolumn{{{group.n_columns}}}{{c}}{{{group.name} $\{'up' if group.arrow == '↑' else 'down'}arrow$}}"
        for group in _groups(table.columns)
    ]
    body = [
        latex_row([latex_escape(row.name), *(_latex_cell(each) for each in _row_shown(row, table))])
        for row in table.rows
    ]
    head = [latex_row(["", *kinds]), escaped_row(["Model", *(column.name for column in table.columns)])]
    return latex_table(_caption(table), "r" * len(table.columns), head, body)


def _caption(table: EvaluationTable) -> str:
    words = [f"{table.title}.", "Accuracies in percent." if any(each.is_share for each in table.columns) else ""]
    if _has_baselines(table):
        words.append(
            f"Bold: better than the baseline at p < {table.significance:g} in a one-sided paired test; {WORSE}: worse."
        )
    return " ".join(filter(None, [*words, *(f"{remark[:1].upper()}{remark[1:]}." for remark in table.remarks)]))


def _latex_cell(cell: Shown) -> str:
    value = latex_escape(cell.value)
    if cell.mark == BETTER:
        return rf"\textbf{{{value}}}"
    return value + (rf"\textsuperscript{{{latex_escape(WORSE)}}}" if cell.mark == WORSE else "")
