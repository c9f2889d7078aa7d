"""Results of an evaluation, for the terminal."""

from collections.abc import Iterable
from typing import Any

from widthwise.evaluation.estimate import FEWEST_BLOCKS
from widthwise.evaluation.perplexity import BLOCK_BYTES
from widthwise.reports.page.formats import clean, counted, fixed, signed
from widthwise.reports.page.table import Table

N_DECIMALS = 4
LARGE = 1e6
"""From here on, numbers are written with an exponent: the perplexity of a whole answer is unbounded."""
NAME_LETTERS = 32
PERCENT = ("acc", "acc_norm")
NAMES, ERROR = ("", "metric"), "std. error"


def evaluation_table(record: dict[str, Any]) -> Table:
    """Every metric of every text and task of a run, from `evaluate_run`."""
    rows: list[list[str]] = []
    for name, text in record["texts"].items():
        rows += _estimates(f"{_tail(name)} ({text['n_bytes']:,} bytes)", text["metrics"])
        if text["n_blocks"] < FEWEST_BLOCKS:
            blocks = counted(text["n_blocks"], "block")
            rows.append([f"  {blocks} of {BLOCK_BYTES:,} bytes: too few for a standard error"])
    for name, task in record["tasks"].items():
        chance = f", chance {fixed(100 * task['chance'], 1)}%" if task["chance"] else ""
        rows += _estimates(f"{_tail(name)} ({task['n_items']:,} items{chance})", task["metrics"])
        if task["n_cut_contexts"]:
            rows.append([f"  {task['n_cut_contexts']:,} contexts cut to {record['max_length']:,} tokens"])
    for name, metrics in record["lm_eval"].items():
        rows += _estimates(f"lm-eval {clean(name)}", metrics)
    step = "" if record["step"] is None else f", step {record['step']}"
    return Table(f"{_tail(record['run'])}{step}", [*NAMES, "value", ERROR], rows, words=NAMES)


def suite_results_table(suite: dict[str, Any]) -> Table:
    """A paper's table, from the `suite` of an evaluation."""
    rows = [[row["name"], row["metric"], *_shown(row["metric"], row), row["source"]] for row in suite["rows"]]
    rows.append(["Avg.", "accuracy", *_shown("acc", {"value": suite["average_accuracy"], "stderr": None})])
    return Table(suite["name"], [*NAMES, "value", ERROR, "source"], rows, words={*NAMES, "source"})


def difference_table(run: str, baseline: str, entries: Iterable[dict[str, Any]]) -> Table:
    """Differences of one run to the baseline, from `evaluation_differences`."""
    rows, previous = [], None
    for entry in entries:
        name = "" if entry["on"] == previous else _tail(entry["on"])
        previous = entry["on"]
        if entry["metric"] is None:
            rows.append([name, "other text or questions"])
            continue
        scale, unit = _unit(entry["metric"])
        value, error = (None if entry[key] is None else scale * entry[key] for key in ("value", "stderr"))
        n_decimals = 2 if unit else N_DECIMALS
        shown_error = fixed(error, n_decimals) + (unit if error is not None else "")
        rows.append([name, entry["metric"], signed(value, n_decimals) + unit, shown_error])
    title = f"{_tail(run)} minus {_tail(baseline)}, item by item"
    return Table(title, [*NAMES, "difference", ERROR], rows, words=NAMES)


def _estimates(name: str, metrics: dict[str, dict[str, float | None]]) -> list[list[str]]:
    """A row for each metric of a text or a task."""
    return [
        [name if i == 0 else "", metric, *_shown(metric, found)] for i, (metric, found) in enumerate(metrics.items())
    ]


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
