"""Results of an evaluation, for the terminal."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

from widthwise.evaluation.estimate import FEWEST_BLOCKS
from widthwise.evaluation.perplexity import BLOCK_BYTES
from widthwise.reports.page.formats import clean, counted, fixed, signed

N_DECIMALS = 4
LARGE = 1e6
"""From here on, numbers are written with an exponent: the perplexity of a whole answer is unbounded."""
NAME_LETTERS = 32
PERCENT = ("acc", "acc_norm")


def evaluation_table(record: dict[str, Any]) -> Table:
    """Every metric of every text and task of a run, from `evaluate_run`."""
    table = _table(f"{_tail(record['run'])}, step {record['step']}", ("value", "std. error"))
    for name, text in record["texts"].items():
        _add(table, f"{_tail(name)} ({text['n_bytes']:,} bytes)", text["metrics"])
        if text["n_blocks"] < FEWEST_BLOCKS:
            blocks = counted(text["n_blocks"], "block")
            table.add_row(f"  {blocks} of {BLOCK_BYTES:,} bytes: too few for a standard error", "", "", "")
    for name, task in record["tasks"].items():
        chance = f", chance {fixed(100 * task['chance'], 1)}%" if task["chance"] else ""
        _add(table, f"{_tail(name)} ({task['n_items']:,} items{chance})", task["metrics"])
        if task["n_cut_contexts"]:
            table.add_row(f"  {task['n_cut_contexts']:,} contexts cut to {record['max_length']:,} tokens", "", "", "")
    for name, metrics in record["lm_eval"].items():
        _add(table, f"lm-eval {name}", metrics)
    return table


def suite_results_table(suite: dict[str, Any]) -> Table:
    """A paper's table, from the `suite` of an evaluation."""
    table = _table(suite["name"], ("value", "std. error"), ("source",))
    for row in suite["rows"]:
        cells = _shown(row["metric"], row)
        table.add_row(row["name"], row["metric"], *cells, row["source"])
    average = suite["average_accuracy"]
    table.add_row("Avg.", "accuracy", *_shown("acc", {"value": average, "stderr": None}), "")
    return table


def difference_table(run: str, baseline: str, entries: Iterable[dict[str, Any]]) -> Table:
    """Differences of one run to the baseline, from `evaluation_differences`."""
    table = _table(f"{_tail(run)} minus {_tail(baseline)}, item by item", ("difference", "std. error"))
    previous = None
    for entry in entries:
        shown = "" if entry["on"] == previous else _tail(entry["on"])
        previous = entry["on"]
        if entry["metric"] is None:
            table.add_row(shown, "other text or questions", "", "")
            continue
        scale, unit = _unit(entry["metric"])
        value, error = (None if entry[key] is None else scale * entry[key] for key in ("value", "stderr"))
        n_decimals = 2 if unit else N_DECIMALS
        shown_error = fixed(error, n_decimals) + (unit if error is not None else "")
        table.add_row(shown, entry["metric"], signed(value, n_decimals) + unit, shown_error)
    return table


def _table(title: str, numbers: tuple[str, ...], further: tuple[str, ...] = ()) -> Table:
    # Rich breaks a title that is wider than its table.
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, min_width=len(title))
    for name in ("", "metric"):
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=10)
    for name in further:
        table.add_column(name, no_wrap=True)
    return table


def _add(table: Table, name: str, metrics: dict[str, dict[str, float | None]]) -> None:
    for index, (metric, estimate) in enumerate(metrics.items()):
        table.add_row("" if index else clean(name), metric, *_shown(metric, estimate))


def _shown(metric: str, estimate: dict[str, Any]) -> list[str]:
    scale, unit = _unit(metric)
    values = (None if estimate[key] is None else scale * estimate[key] for key in ("value", "stderr"))
    return [_number(value, 2 if unit else N_DECIMALS) + (unit if value is not None else "") for value in values]


def _number(value: float | None, n_decimals: int) -> str:
    return fixed(value, n_decimals) if value is None or value < LARGE else f"{value:.3e}"


def _unit(metric: str) -> tuple[float, str]:
    return (100.0, "%") if metric in PERCENT else (1.0, "")


def _tail(name: str) -> str:
    """The end of a long name, because the end of a path says more than its beginning."""
    name = clean(name)
    return name if len(name) <= NAME_LETTERS else "…" + name[1 - NAME_LETTERS :]
