"""`widthwise paper`: the tables and figures of the papers, as they are printed, counted and measured."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from widthwise.cli.experiment import WORKERS, TrainingOptions
from widthwise.cli.options import JsonOption
from widthwise.cli.progress import training_progress
from widthwise.cli.terminal import say, say_json, say_tables
from widthwise.config_io import Config, UserError
from widthwise.files import write_atomic

LIST = "list"


class PaperOptions(Config):
    """The experiment of an item, and where its numbers are written."""

    scale: Literal["paper", "small", "tiny"] | None = None
    """Train the item's experiment: small (two CPU cores, minutes to hours) or tiny (seconds); paper counts only.
    Default: train nothing, show what has been measured."""
    results: Path = Path("runs")
    """Folder of the experiments, each in one named after it."""
    page: Path | None = None
    """File to write the item into as an HTML page; with `list`, all items as Markdown."""
    dry_run: bool = False
    """Show the work of --scale, and train nothing."""


def paper(
    options: PaperOptions,
    training: Annotated[TrainingOptions, WORKERS],
    item: Annotated[str, typer.Argument(help="An item, such as hourglass_table_2, or `list`.")] = LIST,
    as_json: JsonOption = False,
) -> None:
    """Show a table or figure of a paper: what it prints, what the recipes count, what was measured at a small size.

    Example: `widthwise paper list`, `widthwise paper hourglass_table_2 --scale small`
    """
    scale, results, page = options.scale, options.results, options.page
    if item == LIST:
        if options.dry_run:
            raise UserError("--dry-run: name an item, and an experiment with --scale")
        if scale is not None:
            raise UserError(f"--scale: got {scale}; name an item to train")
        _list(results, page, as_json)
        return
    from widthwise.experiments.papers.item import SCALES, item_record, read_item
    from widthwise.reports.paper import item_notes, item_page, item_table
    from widthwise.reports.writing import write_report

    if options.dry_run and scale not in SCALES:
        raise UserError(f"--dry-run: shows the work of an experiment; give --scale {' or '.join(SCALES)}")
    found, written = read_item(item), []
    if scale in SCALES and scale not in found.experiments:
        raise UserError(f"--scale: got {scale}; {item} has {', '.join(['paper', *found.experiments])}")
    work = found.experiments.get(scale or "")
    if work is not None:
        if options.dry_run:
            say(f"{item}, {scale}: {work.recipe}, {work.workload}")
            return
        with training_progress(training.track) as observer:
            observer.message(work.workload)
            folders = work.run(results / work.name, observer, training.n_jobs)
        written += [file for folder in folders for file in write_report([folder])]
    scales = () if scale == "paper" else SCALES if scale is None else (scale,)
    record = item_record(item, found, results, scales)
    if work is not None:
        record.write(results / item)
        page = page or results / item / "report.html"
    if page is not None:
        write_atomic(page, item_page(record).html())
        written.append(page)
    if as_json:
        say_json(record)
        return
    say_tables(item_table(record))
    say(*item_notes(record), *(f"wrote {file}" for file in written))


def _list(results: Path, page: Path | None, as_json: bool) -> None:
    from widthwise.experiments.papers.item import item_record, read_items
    from widthwise.reports.paper import all_items, list_table

    records = [item_record(name, item, results) for name, item in read_items().items()]
    if page is not None:
        write_atomic(page, all_items(records))
    if as_json:
        say_json({"items": [record.to_data() for record in records]})
        return
    say_tables(list_table(records))
    if page is not None:
        say(f"wrote {page}")
