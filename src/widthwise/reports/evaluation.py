"""The page of an evaluation of several models, with CSV and LaTeX."""

from typing import NamedTuple

from widthwise.records.evaluation import EvaluationTable, TableCell, TableColumn, TableRow
from widthwise.reports.formats import MISSING, clean, fixed, sequence, signed, without_seed
from widthwise.reports.page import Code, Page, note, section
from widthwise.reports.table import Table, csv_rows

BETTER, WORSE = "*", "†"
PARTS = ("value", "stderr", "difference", "p_value")
"""Parts of a cell, in the order of the columns of `table.csv`."""


class Shown(NamedTuple):
    """A cell as text."""

    value: str
    mark: str = ""
    """BETTER, WORSE or nothing."""
    details: str = ""
    """The difference to the baseline, with its p."""


def shown(cell: TableCell, column: TableColumn, significance: float) -> Shown:
    """Return shares in percent with one decimal, perplexities with two, as the paper prints them."""
    scale, n_decimals = (100, 1) if column.is_share else (1, 2)
    if cell.value is None:
        return Shown(MISSING)
    details = [] if cell.difference is None else [signed(scale * cell.difference, n_decimals)]
    if cell.p_value is not None:
        details.append("p < 0.0001" if cell.p_value < 1e-4 else f"p {fixed(cell.p_value, 4)}")
    return Shown(fixed(scale * cell.value, n_decimals), _mark(cell, significance), ", ".join(details))


def _mark(cell: TableCell, significance: float) -> str:
    if cell.p_value is None or cell.p_value >= significance:
        return ""
    return BETTER if cell.is_better else WORSE


def _cells(row: TableRow, table: EvaluationTable) -> list[Shown]:
    return [shown(*each, table.significance) for each in zip(row.cells, table.columns)]


def evaluation_page(table: EvaluationTable) -> Page:
    """Return the page of texts and tasks that several models answered."""
    names = [clean(row.name) for row in table.rows]
    rows = [
        [name, *(f"{cell.value}{cell.mark}\n{cell.details}".rstrip() for cell in _cells(row, table))]
        for name, row in zip(names, table.rows)
    ]
    asked = [[clean(each.name), clean(each.metric), _count(each.n_items), clean(each.source)] for each in table.columns]
    models = [
        [name, _count(row.step), clean(row.baseline or "") or MISSING, clean(row.run)]
        for name, row in zip(names, table.rows)
    ]
    return Page(
        "evaluation",
        table.title,
        answer(table),
        lead=f"What {'does' if len(names) == 1 else 'do'} {sequence(names)} know?",
        sections=(
            section(
                "Results",
                Table(
                    "A row for each model; accuracies in percent; ↑ higher, ↓ lower is better",
                    ["Model", *_titles(table)],
                    rows,
                ),
                note("answers", tests=_tests(table)) if any(row.baseline for row in table.rows) else None,
            ),
            section(
                "Questions",  # as Table 5 of the variable-width paper
                Table(
                    "What was asked",
                    ["Task", "metric", "questions", "source"],
                    asked,
                    {"metric", "source"},
                ),
            ),
            section(
                "How to reproduce",
                Code(table.command),
                Table("The models", ["Model", "step", "compared with", "run"], models, {"compared with", "run"}),
            ),
        ),
        made_from=f"{EvaluationTable.file_name} of {table.created}",
        files={"table.csv": csv_text(table), "table.tex": latex_text(table)},
    )


def _count(n: int | None) -> str:
    return MISSING if n is None else f"{n:,}"


def answer(table: EvaluationTable) -> list[str]:
    """Return on how many questions each model is better and worse than its baseline; pooled over seeds.

    Without baselines: which model is best in most columns.
    """
    pooled: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        if row.baseline is not None:
            pair = (without_seed(row.name), without_seed(row.baseline))
            tested = (cell for cell in row.cells if cell.p_value is not None)
            pooled.setdefault(pair, []).extend(_mark(cell, table.significance) for cell in tested)
    if pooled:
        return [
            f"{name} is better than {baseline} on {marks.count(BETTER)} and worse on {marks.count(WORSE)} "
            f"of {len(marks)} tested numbers; the others do not differ significantly."
            for (name, baseline), marks in pooled.items()
        ]
    best: list[str] = []
    for i, column in enumerate(table.columns):
        known = [(cell.value, row.name) for row in table.rows if (cell := row.cells[i]).value is not None]
        if len(known) > 1:
            best.append((max if column.is_share else min)(known)[1])
    if not best:
        return []
    winner = max(dict.fromkeys(best), key=best.count)
    return [f"{clean(winner)} is best in {best.count(winner)} of {len(best)} columns; nothing here was tested."]


def _tests(table: EvaluationTable) -> str:
    """Explain the marks of models that are compared."""
    compared = [row for row in table.rows if row.baseline is not None]
    pairs = "; ".join(f"{clean(row.name)} with {clean(row.baseline or '')}" for row in compared)
    words = (
        f"{BETTER} better and {WORSE} worse than the baseline at p < {table.significance:g}, two-sided, over pairs of "
        "answers to the same questions: McNemar's exact test where they are right or wrong, otherwise Student's t, for "
        f"a perplexity of the loss. Compared are {pairs}. p-values are not corrected for the number of tests."
    )
    untested = [
        clean(column.name)
        for i, column in enumerate(table.columns)
        if all(row.cells[i].p_value is None for row in compared)
    ]
    return words + (f" Not tested, for want of pairs: {', '.join(untested)}." if untested else "")


def csv_text(table: EvaluationTable) -> str:
    """Return one row for each model, full precision, empty where a number is unknown."""
    titles = [f"{column.name} {column.metric}" for column in table.columns]
    parts = [title if part == "value" else f"{title} {part}" for title in titles for part in PARTS]
    rows = ([row.name, row.baseline, *(cell[part] for cell in row.cells for part in PARTS)] for row in table.rows)
    return csv_rows(["model", "baseline", *parts], rows)


def latex_text(table: EvaluationTable) -> str:
    r"""Return a `table` environment; needs \usepackage{booktabs} and T1 font encoding."""
    sentences = [f"{table.title}."]
    if any(column.is_share for column in table.columns):
        sentences.append("Accuracies in percent.")
    if any(row.baseline is not None for row in table.rows):
        test = f"at p < {table.significance:g} in a two-sided paired test"
        sentences.append(f"{BETTER}: better than the baseline {test}; {WORSE}: worse.")
    rows = [[row.name, *(cell.value + cell.mark for cell in _cells(row, table))] for row in table.rows]
    return Table("", ["Model", *_titles(table)], rows).latex(" ".join(sentences))


def _titles(table: EvaluationTable) -> list[str]:
    return [f"{clean(column.name)} {'↑' if column.is_share else '↓'}" for column in table.columns]
