"""All items as a Markdown page, which documentation keeps."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from widthwise.records.paper import PaperItem
from widthwise.reports.page.table import Table
from widthwise.reports.paper.tables import item_table, size

HEAD = """# Every table and figure of the papers

Made by `widthwise paper list --results benchmarks/results --page docs/papers.md`; a test keeps it so.

For each number: what the paper prints; what the recipe at the paper's size counts, and whether it agrees when rounded
to the printed digits; what a small experiment measured, with its 95% interval over seeds. A difference is a loss minus
the baseline's. "higher", "lower" and "unchanged" are what a paper shows or says without a number; there "agrees" is
about what was measured. Models of a few million parameters need not show what large ones do.
"""


def all_items(items: Iterable[PaperItem]) -> str:
    """The page, paper by paper."""
    parts = [HEAD]
    for paper, own in groupby(items, key=lambda item: item.paper):
        parts += [f"## {paper}\n", *map(_section, own)]
    return "\n".join(parts)


def _section(item: PaperItem) -> str:
    lines = [f"### {item.where}: {item.title}\n", f"`widthwise paper {item.name}`. The paper: {item.finds}\n"]
    lines += [*_table(item_table(item)), ""]
    lines += [f"{remark}\n" for remark in item.remarks]
    if item.experiment is not None:
        lines.append(f"Measured: {size(item)} (`benchmarks/results/{item.experiment.folder}`).\n")
    else:
        lines.append("Not measured.\n")
    if item.other_scales:
        lines.append(f"To train: {'; '.join(f'`{each}`' for each in item.other_scales)}.\n")
    return "\n".join(lines)


def _table(table: Table) -> list[str]:
    header = [each.capitalize() for each in table.header]
    return [_line(header), _line(["---"] * len(header)), *(_line(row) for row in table.rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace(chr(10), '<br>').replace('|', chr(92) + '|') for cell in cells)} |"
