"""The tables and figures of the papers, as they are printed, counted at the paper's size, and measured at a small one.

`list`, the default, names all items. Example: `python benchmarks/paper.py hourglass_table_2 --scale small`
"""

import argparse
import json
import sys
from pathlib import Path

from papers.item import SCALES, Item, item_record, read_item, read_items
from papers.report import all_items, item_notes, item_page, item_table, list_table

from widthwise.cli.experiment import TrainingOptions
from widthwise.cli.progress import training_progress
from widthwise.cli.terminal import say_tables
from widthwise.files import write_atomic
from widthwise.mistakes import RunFailed, UserError
from widthwise.reports.writing import write_report

LIST = "list"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("item", nargs="?", default=LIST, help="an item, such as hourglass_table_2, or `list`")
    parser.add_argument(
        "--scale",
        choices=("paper", *SCALES),
        help="train the item's experiment: small (two CPU cores, minutes to hours) or tiny (seconds); paper counts "
        "only; default: train nothing, show what has been measured",
    )
    parser.add_argument(
        "--results", type=Path, default=Path("runs"), help="folder of the experiments, each in one named after it"
    )
    parser.add_argument(
        "--page", type=Path, help="file to write the item into as an HTML page; with `list`, all items as Markdown"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the work of --scale, and train nothing")
    parser.add_argument(
        "--jobs", default="auto", help="runs trained at the same time; auto: as many as the cores allow"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    show = show_list if arguments.item == LIST else show_item
    try:
        show(arguments)
    except (UserError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


def show_list(arguments: argparse.Namespace) -> None:
    """Print a line for each item. Raises UserError."""
    if arguments.dry_run:
        raise UserError("--dry-run: name an item, and an experiment with --scale")
    if arguments.scale is not None:
        raise UserError(f"--scale: got {arguments.scale}; name an item to train")
    records = [item_record(name, item, arguments.results) for name, item in read_items().items()]
    if arguments.page is not None:
        write_atomic(arguments.page, all_items(records))
    if arguments.json:
        print(json.dumps({"items": [record.to_data() for record in records]}))
        return
    say_tables(list_table(records))
    if arguments.page is not None:
        print(f"wrote {arguments.page}")


def show_item(arguments: argparse.Namespace) -> None:
    """Train the experiment of an item if a scale says so, and print the item. Raises UserError and RunFailed."""
    name, scale, results, page = arguments.item, arguments.scale, arguments.results, arguments.page
    if arguments.dry_run and scale not in SCALES:
        raise UserError(f"--dry-run: shows the work of an experiment; give --scale {' or '.join(SCALES)}")
    item = read_item(name)
    if scale in SCALES and scale not in item.experiments:
        raise UserError(f"--scale: got {scale}; {name} has {', '.join(['paper', *item.experiments])}")
    if arguments.dry_run:
        work = item.experiments[scale]
        print(f"{name}, {scale}: {work.recipe}, {work.workload}")
        return
    files = trained(item, arguments) if scale in SCALES else []
    scales = () if scale == "paper" else SCALES if scale is None else (scale,)
    record = item_record(name, item, results, scales)
    if scale in SCALES:
        record.write(results / name)
        page = page or results / name / "report.html"
    if page is not None:
        write_atomic(page, item_page(record).html())
        files.append(page)
    if arguments.json:
        print(json.dumps(record.to_data()))
        return
    say_tables(item_table(record))
    print(*item_notes(record), *(f"wrote {file}" for file in files), sep="\n")


def trained(item: Item, arguments: argparse.Namespace) -> list[Path]:
    """Train the runs of an experiment that have not finished, and return the files of its reports."""
    work = item.experiments[arguments.scale]
    with training_progress() as observer:
        observer.message(work.workload)
        folders = work.run(arguments.results / work.name, observer, TrainingOptions(jobs=arguments.jobs).n_jobs)
    return [file for folder in folders for file in write_report([folder])]


if __name__ == "__main__":
    raise SystemExit(main())
