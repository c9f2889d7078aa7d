"""The tables and figures of the papers, as they are printed, counted and measured.

Items are tables for the terminal, pages, and all together a Markdown page of the documentation.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from papers.record import PaperItem, PaperLine
from widthwise.records.quantities import QUANTITY
from widthwise.reports.formats import MISSING, clean, counted, duration, fixed, interval, minus, shown, si, signed
from widthwise.reports.page import Code, Page, Text, section
from widthwise.reports.table import Table

HEADER = ("row", "quantity", "printed", "counted", "agrees", "measured")
NOTE = (
    "Printed: in the paper. Counted: from the recipe at the paper's size. Agrees: the count rounds to the printed "
    "number, or the measurement shows what the paper states without a number (higher, lower, unchanged). Measured: "
    "{size}, with the 95% interval over seeds. A difference is a loss minus that of the baseline, of printed losses as "
    "of measured ones; a small model need not show what a large one does."
)


def item_table(item: PaperItem) -> Table:
    """One row per printed number, and per difference of printed losses."""
    rows: list[list[str]] = []
    for before, line in zip([None, *item.lines], item.lines):
        name = clean(line.row) if before is None or line.row != before.row else ""
        printed = minus(line.printed) if line.printed is not None else _number(line, line.printed_value)
        agrees = (line.reproduces or "") if line.agrees is None else "yes" if line.agrees else "no"
        rows.append([name, clean(line.title), printed, _number(line, line.counted), agrees, _measured(line)])
    caption = f"{item.paper.split(',')[0]}, {item.where}: {item.title}"
    note = "" if item.experiment is None else f"measured: {size(item)}; below: 95% interval over seeds"
    return Table(clean(caption), HEADER, rows, text_columns={"quantity", "agrees"}, sortable=False, note=note)


def _number(line: PaperLine, value: float | None) -> str:
    if value is None:
        return ""
    if line.quantity in QUANTITY:
        return shown(value, QUANTITY[line.quantity])
    if line.is_share:
        return f"{fixed(100 * value, 2)}%"
    return f"{value:.0f}" if value == line.counted and value % 1 == 0 else _short(value, 4)


def _short(value: float, n_decimals: int) -> str:
    """With a power of ten where the decimals would not show it."""
    is_tiny = 0 < abs(value) < 0.5 * 10**-n_decimals
    return minus(f"{value:.1e}") if is_tiny else fixed(value, n_decimals)


def _measured(line: PaperLine) -> str:
    """A mean, and below it its interval."""
    found = line.measured
    if found is None or found.mean is None:
        return ""
    if line.is_share:
        mean, low, high = (
            MISSING if each is None else f"{100 * each:.1f}%" for each in (found.mean, found.low, found.high)
        )
        return f"{mean}\n{low} to {high}"
    if line.is_difference or (line.quantity in QUANTITY and QUANTITY[line.quantity].is_signed):
        mean, ends = signed(found.mean, 4), interval(found, 4 if line.is_difference else 3, with_sign=True)
    else:
        mean = _number(line, found.mean)
        ends = " to ".join(_short(end, 3) for end in (found.low, found.high) if end is not None)
    return f"{mean}\n{ends}" if ends else mean


def size(item: PaperItem) -> str:
    """The experiment behind the measured numbers, in words."""
    found = item.experiment
    if found is None:
        return "nothing has been measured"
    words = [found.scale, found.recipe]
    if found.fewest_params is not None and found.most_params is not None:
        low, high = si(found.fewest_params), si(found.most_params)
        words.append(f"{low} parameters" if low == high else f"{low} to {high} parameters")
    if found.n_seeds is not None:
        words.append(counted(found.n_seeds, "seed"))
    return ", ".join(words)


def item_notes(item: PaperItem) -> list[str]:
    """Return the lines below the table: the paper's conclusion, differences, commands to train."""
    missing = [] if item.experiment else ["Nothing has been measured in this folder of results."]
    return [
        f"The paper: {item.finds}",
        *item.remarks,
        *missing,
        *(f"To train it: {each}" for each in item.other_scales),
    ]


def list_table(items: Sequence[PaperItem]) -> Table:
    """One row per item."""
    rows = []
    for item in items:
        agreeing = f"{item.n_agreeing} of {item.n_judged}" if item.n_judged else MISSING
        hours = None if item.small_core_minutes is None else item.small_core_minutes / 60
        names = (clean(item.name), clean(item.title))
        rows.append([*names, str(item.n_printed), agreeing, str(item.n_measured), duration(hours)])
    note = (
        "agree: counted numbers that equal the printed ones, and what was measured of what is printed in words; needs: "
        "time of a CPU core for --scale small"
    )
    header = ["item", "shows", "printed", "agree", "measured", "needs"]
    return Table("Tables and figures of the papers", header, rows, text_columns={"shows"}, note=note)


HEAD = """# Every table and figure of the papers

Made by `python benchmarks/paper.py list --results benchmarks/results --page FILE`.

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
    table = item_table(item)
    command = f"python benchmarks/paper.py {item.name}"
    lines = [f"### {item.where}: {item.title}\n", f"`{command}`. The paper: {item.finds}\n"]
    for row in ([each.capitalize() for each in table.header], ["---"] * len(table.header), *table.rows):
        lines.append(f"| {' | '.join(cell.replace(chr(10), '<br>').replace('|', chr(92) + '|') for cell in row)} |")
    lines += ["", *(f"{remark}\n" for remark in item.remarks)]
    if item.experiment is None:
        lines.append("Not measured.\n")
    else:
        lines.append(f"Measured: {size(item)} (`benchmarks/results/{item.experiment.folder}`).\n")
    if item.other_scales:
        lines.append(f"To train: {'; '.join(f'`{each}`' for each in item.other_scales)}.\n")
    return "\n".join(lines)


def item_page(item: PaperItem) -> Page:
    """Return the page of a table or figure of a paper."""
    command = Code(item.experiment.command) if item.experiment else None
    scales = (Text([each], is_quiet=False) for each in item.other_scales)
    remarks = Text(list(item.remarks), is_quiet=False) if item.remarks else None
    return Page(
        "paper",
        f"{clean(item.where)}: {clean(item.title)}",
        [f"The paper: {item.finds}"],
        lead=item.paper,
        sections=(
            section("Printed, counted, measured", item_table(item), Text([NOTE.format(size=size(item))])),
            section("Differences and their reasons", remarks),
            section("How to reproduce", command, *scales),
        ),
        made_from="the item's recipes and results",
    )
