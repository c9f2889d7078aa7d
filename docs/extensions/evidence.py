"""A page for each result in benchmarks/results: what it found, by which command, on which machine, at which commit.

The pages are written into `evidence/` of the source folder before it is read, one for each file or folder that holds a
record, an index of them, and one of the tables and figures of the papers. The results themselves are copied beside the
built pages, with the reports that `widthwise report` makes of them.
"""

import csv
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from papers.item import item_record, read_items
from papers.record import PaperItem
from papers.report import all_items, item_page
from sphinx.application import Sphinx

from widthwise.records.outcome import Outcome
from widthwise.reports.writing import PAGES, answer, write_report

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
WITHOUT_REPORT = ("discovery.json", "consensus.json")
"""Records of searches that the package no longer reads; their pages show how they were made."""
RECORDS = (*PAGES, "demonstration.json", PaperItem.file_name, *WITHOUT_REPORT)
MADE_BY = {
    "command": "Command",
    "created": "Date",
    "date": "Date",
    "commit": "Commit",
    "cpu": "CPU",
    "n_cpus": "Cores",
    "n_threads": "Threads",
    "gpu": "GPU",
    "platform": "System",
    "python": "Python",
    "torch": "PyTorch",
    "cuda": "CUDA",
    "widthwise": "widthwise",
}
"""What a page says about the making of its result, in this order, as far as the record has it."""
COLUMNS = {
    "variant": "variant",
    "comparison": "comparison",
    "verdict": "verdict",
    "val_loss": "held-out loss",
    "difference": "difference",
    "params_ratio": "parameters",
    "flops_ratio": "FLOPs",
    "kv_bytes_ratio": "KV cache",
}
"""Columns of the table of a comparison or sweep; losses have an interval, ratios are to the baseline."""


def results(root: Path = RESULTS) -> dict[str, Path]:
    """Name of a page -> its record: each file of the root, and of each folder the first of RECORDS that it holds.

    The page of a folder is called after it, that of `a/b` `a_b`.
    """
    folders = {path.parent for name in RECORDS for path in root.rglob(name)}
    records = [next(folder / name for name in RECORDS if (folder / name).is_file()) for folder in folders]
    return {_name(path.relative_to(root)): path for path in sorted([*root.glob("*.json"), *records])}


def _name(path: Path) -> str:
    return "_".join(path.parent.parts) or path.stem


def page(name: str, record: Path) -> str:
    """The page of one result, as Markdown."""
    data = json.loads(record.read_text())
    parts = [f"# {name}", *_answer(record, data), *_reports(record), "## How it was made", _made_by(data)]
    for title, header, rows in _tables(record, data):
        parts += [f"## {title}", table(header, rows)]
    return "\n\n".join(parts) + "\n"


def _answer(record: Path, data: Mapping[str, Any]) -> list[str]:
    """The sentences that say what was found."""
    lines = str(data.get("sentence", "")).splitlines()
    if record.name == Outcome.file_name:
        lines = answer(Outcome.read(record.parent))
    return ["\n".join(f"> {line}\n>" for line in lines)] if lines else []


def _reports(record: Path) -> list[str]:
    """Links to the report and to the files, which lie beside the built pages."""
    folder = record.parent
    files = sorted(folder.glob("*.*")) if folder != RESULTS else [record]
    if folder != RESULTS and record.name not in WITHOUT_REPORT:
        files.insert(0, folder / "report.html")
    links = [
        f'<a href="../results/{path.relative_to(RESULTS).as_posix()}">'
        + ("the whole report</a>" if path.name == "report.html" else f"{path.name}</a>")
        for path in files
    ]
    return ["Files: " + ", ".join(links) + "."]


def _made_by(data: Mapping[str, Any]) -> str:
    known = {**data.get("environment", {}), **{key: data[key] for key in ("command", "created") if key in data}}
    rows = [(title, f"`{known[key]}`") for key, title in MADE_BY.items() if known.get(key) is not None]
    if not rows:
        return "The record names no machine: it was computed from runs whose own records do."
    if data.get("seeds"):
        rows.append(("Seeds", ", ".join(map(str, data["seeds"]))))
    return table(("", ""), rows)


def _tables(record: Path, data: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, header and rows of each table that a record or the files beside it hold."""
    if parts := data.get("parts"):
        yield "What was found", ["part", "result"], [[f"`{key}`", _found(part)] for key, part in parts.items()]
    if rows := data.get("rows"):
        yield "What was found", list(rows[0]), [[_number(value) for value in row.values()] for row in rows]
    if record.parent == RESULTS:
        return
    for path in sorted(record.parent.glob("*.csv")):
        rows = list(csv.DictReader(path.open()))
        if path.name == "table.csv":
            keys = [key for key in COLUMNS if key in rows[0] or f"{key}_mean" in rows[0]]
            yield "Results", [COLUMNS[key] for key in keys], [[_cell(row, key) for key in keys] for row in rows]
        else:
            yield path.stem.capitalize(), list(rows[0]), [[_number(value) for value in row.values()] for row in rows]


def _found(part: Mapping[str, Any]) -> str:
    target = {True: " Meets its target.", False: " Misses its target."}.get(part.get("meets_target"), "")
    return part.get("failed") or str(part.get("summary", "")) + "." + target


def _cell(row: Mapping[str, str], key: str) -> str:
    """The value of a column: of one that was measured, its mean and 95% interval."""
    if key in row:
        return _number(row[key])
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    interval = f" ({_number(low)} to {_number(high)})" if low else ""
    return _number(row[f"{key}_mean"]) + interval


def _number(value: Any) -> str:
    """A number to four digits behind the point, or to four in all where it is tiny or huge; other text as it is."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "" if value is None else str(value)
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}"
    return f"{number:.4f}" if 1e-3 <= abs(number) < 1e6 else f"{number:.4g}"


def table(header: tuple[str, ...] | list[str], rows: list[Any]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def index(found: Mapping[str, Path]) -> str:
    """The page that lists all results."""
    return (
        "# Evidence\n\nEvery number in the documents comes from a file below. Each page names the command, the machine "
        "and the commit that made it, so that it can be repeated. [Results](/results.md) sums them up; those that "
        "contradict the papers are reported like those that agree.\n\n"
        "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(found) + "\n```\n"
    )


def write_pages(app: Sphinx) -> None:
    """Writes what has changed, so that an unchanged page need not be read again, and removes what is no result."""
    folder = Path(app.srcdir) / "evidence"
    folder.mkdir(exist_ok=True)
    found = results()
    papers = [item_record(name, item, RESULTS) for name, item in read_items().items()]
    pages = {"index": index(found), "papers": all_items(papers)}
    pages |= {name: page(name, record) for name, record in found.items()}
    for path in folder.glob("*.md"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def copy_results(app: Sphinx, failure: Exception | None) -> None:
    """Puts the results beside the pages, each with its report."""
    if failure is not None or app.builder.format != "html":
        return
    built = Path(app.outdir) / "results"
    shutil.copytree(RESULTS, built, dirs_exist_ok=True)
    for record in results(built).values():
        if record.name in PAGES:
            write_report([record.parent])
        elif record.parent != built and record.name not in WITHOUT_REPORT:
            item_page(PaperItem.read(record.parent)).write(record.parent)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    app.connect("build-finished", copy_results)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
