"""Results of an evaluation, for the terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from widthwise.evaluation.estimate import FEWEST_BLOCKS, Metrics
from widthwise.evaluation.paper_tasks import UNITS
from widthwise.evaluation.perplexity import BLOCK_BYTES
from widthwise.reports.page.formats import clean, counted, fixed, signed
from widthwise.reports.page.table import Table

N_DECIMALS = 4
LARGE = 1e6
"""From here on, numbers are written with an exponent: the perplexity of a whole answer is unbounded."""
NAME_LETTERS = 32
NAMES, ERROR = ("", "metric"), "std. error"


@dataclass(frozen=True)
class _Answers:
    """A text, a task or a mean, as a table shows it."""

    name: str
    metrics: Metrics
    remarks: Sequence[str] = ()


def evaluation_table(record: dict[str, Any]) -> Table:
    """Every metric of every text and task of a run, from `evaluate_run`."""
    rows: list[list[str]] = []
    for answers in _answers(record):
        names = [answers.name, *[""] * len(answers.metrics)]
        rows += [
            [name, metric, *_shown(metric, found)] for name, (metric, found) in zip(names, answers.metrics.items())
        ]
        rows += [[f"  {remark}"] for remark in answers.remarks]
    return Table(_title(record), [*NAMES, "value", ERROR], rows, words=NAMES)


def suite_results_table(suite: dict[str, Any]) -> Table:
    """A paper's table, from the `suite` of an evaluation."""
    rows = [[row["name"], row["metric"], *_shown(row["metric"], row), row["source"]] for row in suite["rows"]]
    if suite["average"] is not None:
        rows.append([_average_name(suite["average"]), "", *_shown("acc", suite["average"])])
    return Table(suite["name"], [*NAMES, "value", ERROR, "source"], rows, {*NAMES, "source"}, _suite_note(suite))


def _answers(record: dict[str, Any]) -> Iterator[_Answers]:
    for name, text in record["texts"].items():
        blocks = f"{counted(text['n_blocks'], 'block')} of {BLOCK_BYTES:,} bytes: too few for a standard error"
        remarks = [blocks] if text["n_blocks"] < FEWEST_BLOCKS else []
        yield _Answers(f"{_tail(name)} ({text['n_bytes']:,} bytes)", text["metrics"], remarks)
    means = record["text_means"]
    if means is not None:
        weights = means["weights"].values()
        weighted = "" if len(set(weights)) == 1 else f", weights {', '.join(f'{each:g}' for each in weights)}"
        yield _Answers(f"mean over {len(weights)} texts{weighted}", means["metrics"])
    for name, task in record["tasks"].items():
        chance = f", chance {fixed(100 * task['chance'], 1)}%" if task["chance"] else ""
        cut = f"{task['n_cut_contexts']:,} contexts cut to {record['max_length']:,} tokens"
        remarks = [cut] if task["n_cut_contexts"] else []
        yield _Answers(f"{_tail(name)} ({task['n_items']:,} items{chance})", task["metrics"], remarks)
    for name, metrics in record["lm_eval"].items():
        yield _Answers(f"lm-eval {clean(name)}", metrics)


def _title(record: dict[str, Any]) -> str:
    return _tail(record["run"]) + ("" if record["step"] is None else f", step {record['step']}")


def _average_name(average: dict[str, Any]) -> str:
    """Says where it is over a part of the tasks, weighted, or not the paper's."""
    is_partial = average["n_tasks"] < average["n_tasks_of_suite"]
    remarks = [f"{average['n_tasks']} of {average['n_tasks_of_suite']} tasks"] if is_partial else []
    remarks += ["weighted"] if len(set(average["weights"].values())) > 1 else []
    remarks += [] if average["is_printed"] else ["not in the paper"]
    return "Avg." + (f" ({', '.join(remarks)})" if remarks else "")


def _suite_note(suite: dict[str, Any]) -> str:
    notes = [f"without {part}" for part in suite["missing"]]
    if suite["average"] is not None and suite["average"]["has_unknown_weights"]:
        notes.append("the paper weights its average and does not say how")
    return "\n".join(notes)


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


def _shown(metric: str, estimate: Mapping[str, Any]) -> list[str]:
    scale, unit = _unit(metric)
    values = (None if estimate[key] is None else scale * estimate[key] for key in ("value", "stderr"))
    return [_number(value, 2 if unit else N_DECIMALS) + (unit if value is not None else "") for value in values]


def _number(value: float | None, n_decimals: int) -> str:
    return fixed(value, n_decimals) if value is None or value < LARGE else f"{value:.3e}"


def _unit(metric: str) -> tuple[float, str]:
    return (100.0, "%") if metric.partition(",")[0] in UNITS else (1.0, "")


def _tail(name: str) -> str:
    """The end of a long name, because the end of a path says more than its beginning."""
    name = clean(name)
    return name if len(name) <= NAME_LETTERS else "…" + name[1 - NAME_LETTERS :]
