"""The page of an evaluation of several models, with CSV and LaTeX tables."""

from collections.abc import Sequence

from widthwise.evaluation.estimate import FEWEST_BLOCKS
from widthwise.records.estimate import CONFIDENCE, Estimate
from widthwise.records.evaluation import EvaluationTable, TableCell, TableColumn, TableRow
from widthwise.records.record import finite
from widthwise.reports.charts import Figure
from widthwise.reports.experiment_figures import Effect, forest
from widthwise.reports.formats import MISSING, clean, counted, fixed, joined, percentage, with_interval, without_seed
from widthwise.reports.page import Code, Page, note, section
from widthwise.reports.table import Table, csv_rows

BETTER = "*"
WORSE = "†"
PARTS = ("value", "stderr", "difference", "low", "high", "p_value")
"""Fields of a cell, in the order of the columns of `table.csv`."""


def _unit(column: TableColumn) -> tuple[int, int]:
    """Return the factor and the decimals of the numbers of a column: shares are in percent."""
    return (100, 1) if column.is_share else (1, 2)


def shown(cell: TableCell, column: TableColumn, significance: float) -> tuple[str, str]:
    """Return the value with its mark, and its difference to the baseline with p.

    Shares are in percent with one decimal, losses and perplexities have two.
    """
    scale, n_decimals = _unit(column)
    if cell.value is None:
        return MISSING, ""
    details = [] if cell.difference is None else [fixed(scale * cell.difference, n_decimals, with_sign=True)]
    if cell.p_value is not None:
        details.append("p < 0.0001" if cell.p_value < 1e-4 else f"p {fixed(cell.p_value, 4)}")
    return fixed(scale * cell.value, n_decimals) + _mark(cell, significance), ", ".join(details)


def _mark(cell: TableCell, significance: float) -> str:
    if cell.p_value is None or cell.p_value >= significance:
        return ""
    return BETTER if cell.is_better else WORSE


def _cells(row: TableRow, table: EvaluationTable) -> list[tuple[str, str]]:
    return [shown(cell, column, table.significance) for cell, column in zip(row.cells, table.columns)]


def evaluation_page(table: EvaluationTable) -> Page:
    """Return the page of the scores of several models on texts and tasks."""
    names = [clean(row.name) for row in table.rows]
    rows = [
        [name, *("\n".join(filter(None, texts)) for texts in _cells(row, table))]
        for name, row in zip(names, table.rows)
    ]
    questions = []
    for column in table.columns:
        questions.append([clean(column.name), clean(column.metric), _count(column.n_items), clean(column.source)])
    models = [
        [name, _count(row.step), clean(row.baseline or "") or MISSING, clean(row.run)]
        for name, row in zip(names, table.rows)
    ]
    is_compared = any(row.baseline is not None for row in table.rows)
    caption = "A row for each model; accuracies in percent; ↑ higher, ↓ lower is better"
    return Page(
        "evaluation",
        table.title,
        answer(table),
        lead=f"What {'does' if len(names) == 1 else 'do'} {joined(names)} know?",
        sections=(
            section(
                "Results",
                *_difference_figures(table),
                Table(caption, ["Model", *_titles(table)], rows),
                note("answers", better=BETTER, worse=WORSE, p=f"{table.significance:g}") if is_compared else None,
            ),
            section(
                "Questions",  # as Table 5 of the variable-width paper
                Table("Texts and tasks", ["Task", "metric", "questions", "source"], questions, {"metric", "source"}),
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
    """Return sentences on how many tested numbers of each model, over all seeds, are better or worse than the baseline.

    The last sentence names the columns without a test.
    """
    pooled: dict[tuple[str, str], list[tuple[TableColumn, TableCell]]] = {}
    for row in table.rows:
        if row.baseline is not None:
            pair = (without_seed(row.name), without_seed(row.baseline))
            tested = [item for item in zip(table.columns, row.cells) if item[1].p_value is not None]
            pooled.setdefault(pair, []).extend(tested)
    lines = [_comparison(*pair, tested, table.significance) for pair, tested in pooled.items()]
    untested = []
    for i, column in enumerate(table.columns):
        if pooled and all(row.cells[i].p_value is None for row in table.rows):
            reason = "no pairs of answers"
            if column.n_blocks is not None and column.n_blocks < FEWEST_BLOCKS:
                reason = f"too short: {counted(column.n_blocks, 'block')}, {FEWEST_BLOCKS} needed"
            untested.append(f"{clean(column.name)} ({reason})")
    return lines + ([f"Not tested: {joined(untested)}."] if untested else [])


def _comparison(name: str, baseline: str, tested: Sequence[tuple[TableColumn, TableCell]], significance: float) -> str:
    """Return a sentence on the numbers that were tested, with the difference that has the smallest p."""
    if not tested:
        return f"{name} was not compared with {baseline}."
    marks = [_mark(cell, significance) for _, cell in tested]
    column, cell = min(tested, key=lambda item: finite(item[1].p_value))
    clearest = clean(column.name)
    if cell.difference is not None:
        clearest += f" {with_interval(_difference(cell, column), _unit(column)[1] + 1)}"
    numbers = counted(len(marks), "tested number")
    if any(marks):
        counts = f"better than {baseline} on {marks.count(BETTER)} and worse on {marks.count(WORSE)}"
        start = f"{name} is {counts} of {numbers}"
    else:
        start = f"No clear difference of {name} from {baseline} in {numbers}"
    return f"{start}; smallest p: {clearest}."


def _difference(cell: TableCell, column: TableColumn) -> Estimate:
    """Return the difference to the baseline in the unit of the column."""
    scale, _ = _unit(column)
    mean, low, high = (number and scale * number for number in (cell.difference, cell.low, cell.high))
    return Estimate(mean=mean, low=low, high=high)


def _difference_figures(table: EvaluationTable) -> list[Figure | None]:
    """Return the differences of accuracies, and of losses and perplexities, that have an interval."""
    is_one_model = sum(row.baseline is not None for row in table.rows) == 1
    level = percentage(CONFIDENCE)
    figures = []
    for scores, is_share, quantity, side in (
        ("Accuracies", True, "percentage points", "right"),
        ("Perplexities", False, "perplexity", "left"),
    ):
        effects = []
        for row in table.rows:
            for cell, column in zip(row.cells, table.columns):
                if column.is_share == is_share and cell.low is not None:
                    mark = _mark(cell, table.significance)
                    verdict = {BETTER: "better", WORSE: "worse"}.get(mark, "no clear difference")
                    name = clean(column.name) if is_one_model else f"{clean(row.name)}, {clean(column.name)}"
                    effects.append(Effect(name, _difference(cell, column), verdict))
        caption = f"{scores} minus the baseline's, with {level} intervals"
        x_title = [f"{quantity} above the baseline:", f"{side} of 0 is better"]
        figures.append(forest(scores.lower(), caption, effects, x_title, n_decimals=1 if is_share else 2))
    return figures


def csv_text(table: EvaluationTable) -> str:
    """Return a row for each model at full precision; unknown numbers are empty."""
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
    rows = [[row.name, *(value for value, _ in _cells(row, table))] for row in table.rows]
    return Table("", ["Model", *_titles(table)], rows).latex(" ".join(sentences))


def _titles(table: EvaluationTable) -> list[str]:
    return [f"{clean(column.name)} {'↑' if column.is_share else '↓'}" for column in table.columns]
