"""Results of an evaluation, for the terminal: of runs side by side, or of every checkpoint of a run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from widthwise.evaluation.differences import MEAN_OVER_TEXTS
from widthwise.evaluation.estimate import FEWEST_BLOCKS, Metrics
from widthwise.evaluation.paper_tasks import harness_answers, is_share
from widthwise.evaluation.perplexity import BLOCK_BYTES
from widthwise.records.estimate import CONFIDENCE
from widthwise.reports.formats import MISSING, clean, counted, fixed, percentage, si, signed
from widthwise.reports.table import Table

N_DECIMALS = 4
LARGE = 1e6
"""From here on, numbers are written with an exponent: the perplexity of a whole answer is unbounded."""
NAME_LETTERS = 32
NAMES = ("", "metric")


class _Answers(NamedTuple):
    """A text, a task or a mean, as a table shows it."""

    name: str
    metrics: Metrics
    remarks: Sequence[str] = ()


def evaluation_tables(records: Sequence[dict[str, Any]], differences: Iterable[dict[str, Any]]) -> list[Table]:
    """Return results on texts and tasks of one run, or of several side by side, with the paper's table if asked for.

    differences: of `all_differences`.
    """
    columns, suites = (
        [list(_answers(record)) for record in records],
        [each["suite"] for each in records if each["suite"]],
    )
    if len(records) == 1:
        table = _answers_table(
            _title(records[0]), ["value", "std. error"], columns, lambda metric, of: _shown(metric, of[0])
        )
        return [table, *map(suite_results_table, suites)]
    names = [clean(Path(record["run"]).name) for record in records]
    titles = names if len(set(names)) == len(names) else list(map(_title, records))
    tables = [_answers_table("Side by side", titles, columns, _with_errors)]
    if suites:
        table = _answers_table(suites[0]["name"], titles, list(map(_suite_answers, suites)), _with_errors)
        tables.append(replace(table, note="\n".join(dict.fromkeys(filter(None, map(_suite_note, suites))))))
    return tables + [difference_table(each["run"], each["baseline"], each["differences"]) for each in differences]


def suite_results_table(suite: dict[str, Any]) -> Table:
    """Return a paper's table, from the `suite` of an evaluation."""
    rows = [[row["name"], row["metric"], *_shown(row["metric"], row), row["source"]] for row in suite["rows"]]
    if suite["average"] is not None:
        rows.append([_average_name(suite["average"]), "", *_shown("acc", suite["average"])])
    header, words = [*NAMES, "value", "std. error", "source"], {*NAMES, "source"}
    return Table(suite["name"], header, rows, words=words, note=_suite_note(suite))


def _answers(record: dict[str, Any]) -> Iterator[_Answers]:
    for name, text in record["texts"].items():
        blocks = f"{counted(text['n_blocks'], 'block')} of {BLOCK_BYTES:,} bytes: too few for a standard error"
        remarks = [blocks] if text["n_blocks"] < FEWEST_BLOCKS else []
        yield _Answers(f"{_tail(name)} ({text['n_bytes']:,} bytes)", text["metrics"], remarks)
    if record["text_means"] is not None:
        yield _Answers(f"mean over {len(record['texts'])} texts", record["text_means"]["metrics"])
    for name, task in record["tasks"].items():
        chance = f", chance {fixed(100 * task['chance'], 1)}%" if task["chance"] else ""
        cut = f"{task['n_cut_contexts']:,} contexts cut to {record['max_length']:,} tokens"
        remarks = [cut] if task["n_cut_contexts"] else []
        yield _Answers(f"{_tail(name)} ({task['n_items']:,} items{chance})", task["metrics"], remarks)
    for name, metrics in record["lm_eval"].items():
        yield _Answers(f"lm-eval {clean(name)}", metrics)


def _suite_answers(suite: dict[str, Any]) -> list[_Answers]:
    answers, average = [_Answers(row["name"], {row["metric"]: row}) for row in suite["rows"]], suite["average"]
    return answers if average is None else [*answers, _Answers(_average_name(average), {"acc": average})]


def _title(record: dict[str, Any]) -> str:
    """Return a run and its step, as a heading."""
    return _tail(record["run"]) + ("" if record["step"] is None else f", step {record['step']}")


def _average_name(average: dict[str, Any]) -> str:
    """Say if it is over a part of the tasks, or not the paper's."""
    is_partial = average["n_tasks"] < average["n_tasks_of_suite"]
    remarks = [f"{average['n_tasks']} of {average['n_tasks_of_suite']} tasks"] if is_partial else []
    remarks += [] if average["is_printed"] else ["not in the paper"]
    return "Avg." + (f" ({', '.join(remarks)})" if remarks else "")


def _suite_note(suite: dict[str, Any]) -> str:
    notes = [f"without {part}" for part in suite["missing"]]
    if suite["average"] is not None and suite["average"]["has_unknown_weights"]:
        notes.append("the paper weights its average and does not say how")
    return "\n".join(notes)


Estimates = Sequence[Mapping[str, Any] | None]
"""Value and standard error of a metric for each model; None where it was not asked."""


def _answers_table(
    caption: str,
    titles: Sequence[str],
    columns: Sequence[Sequence[_Answers]],
    cells: Callable[[str, Estimates], list[str]],
) -> Table:
    """Return a row for each metric of each text and task. columns: answers of each model."""
    found: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
    remarks: dict[str, dict[str, None]] = {}
    for i, column in enumerate(columns):
        for answers in column:
            remarks.setdefault(answers.name, {}).update(dict.fromkeys(answers.remarks))
            for metric, estimate in answers.metrics.items():
                found.setdefault(answers.name, {}).setdefault(metric, {})[i] = estimate
    rows = []
    for name, metrics in found.items():
        names = [name, *[""] * len(metrics)]
        rows += [
            [name, metric, *cells(metric, [of.get(i) for i in range(len(columns))])]
            for name, (metric, of) in zip(names, metrics.items())
        ]
        rows += [[f"  {remark}"] for remark in remarks[name]]
    return Table(caption, [*NAMES, *titles], rows, words=NAMES)


def _with_errors(metric: str, estimates: Estimates) -> list[str]:
    """Return values with their standard errors below."""
    shown = [(MISSING, MISSING) if each is None else _shown(metric, each) for each in estimates]
    return [value if error == MISSING else f"{value}\n± {error}" for value, error in shown]


def difference_table(run: str, baseline: str, entries: Iterable[dict[str, Any]]) -> Table:
    """Return differences of one run to the baseline, from `evaluation_differences`."""
    rows, previous, is_flipped = [], None, False
    for entry in entries:
        name = "" if entry["on"] == previous else _tail(entry["on"])
        previous = entry["on"]
        if entry["metric"] is None:
            rows.append([name, "other text or questions"])
            continue
        scale, unit = _unit(entry["metric"])
        n_decimals = 2 if unit else N_DECIMALS
        value, low, high = (
            MISSING if entry[key] is None else signed(scale * entry[key], n_decimals) + unit
            for key in ("value", "low", "high")
        )
        is_known = bool(entry["stderr"])  # where nothing differs, nothing is known of how much it could
        rows.append([name, entry["metric"], value, f"{low} to {high}" if is_known else ""])
        if flips := entry.get("flips"):
            is_flipped = True
            rows[-1] += [f"{len(flips['gained']):,}", f"{len(flips['lost']):,}", fixed(flips["p_value"], 3)]
    header = [*NAMES, "difference", f"{percentage(CONFIDENCE)} interval", *["gained", "lost", "p"][: 3 * is_flipped]]
    note = "gained, lost: items that only this run or only the baseline has right; p: exact test of McNemar"
    title = f"{_tail(run)} minus {_tail(baseline)}, item by item"
    return Table(title, header, rows, words=NAMES, note=note if is_flipped else "")


def _shown(metric: str, estimate: Mapping[str, Any] | None) -> list[str]:
    """Return its value and its standard error."""
    scale, unit = _unit(metric)
    values = (None if estimate is None else estimate[key] for key in ("value", "stderr"))
    n_decimals = 2 if unit else N_DECIMALS
    return [MISSING if value is None else _number(scale * value, n_decimals) + unit for value in values]


def _number(value: float | None, n_decimals: int = N_DECIMALS) -> str:
    return fixed(value, n_decimals) if value is None or value < LARGE else f"{value:.3e}"


def _unit(metric: str) -> tuple[float, str]:
    return (100.0, "%") if is_share(metric) else (1.0, "")


def _tail(name: str) -> str:
    """Return the end of a long name, because the end of a path says more than its beginning."""
    name = clean(name)
    return name if len(name) <= NAME_LETTERS else "…" + name[1 - NAME_LETTERS :]


def tables_by_checkpoint(records: Sequence[dict[str, Any]], differences: Sequence[dict[str, Any]]) -> list[Table]:
    """Return a table for each text and task of each run, with a row for each checkpoint, and such ones of differences.

    records: from `evaluate_run`; differences: of `all_differences`.
    """
    rows: dict[str, list[tuple[int, int | None, Mapping[str, float | None]]]] = {}
    tokens = {(record["run"], record["step"]): record["tokens"] for record in records}
    for record in records:
        for name, values in _values(record).items():
            rows.setdefault(f"{record['run']}: {name}", []).append((record["step"], record["tokens"], values))
    for each in differences:
        found: dict[str, dict[str, float | None]] = {}
        for entry in each["differences"]:
            values = found.setdefault(entry["on"], {})
            if entry["metric"] is not None:  # the questions differ
                values[entry["metric"]] = entry["value"]
        for name, values in found.items():
            row = (each["step"], tokens[each["run"], each["step"]], values)
            rows.setdefault(f"{each['run']} minus {each['baseline']}: {name}", []).append(row)
    tables = []
    for caption, own in rows.items():
        metrics = list(dict.fromkeys(metric for *_, values in own for metric in values))
        cells = [[str(step), si(n), *(_number(values.get(each)) for each in metrics)] for step, n, values in own]
        tables.append(Table(clean(caption), ["step", "tokens", *metrics], cells))
    return tables


def _values(record: dict[str, Any]) -> Mapping[str, Mapping[str, float | None]]:
    """Return text or task -> metric -> value."""
    found = {name: each["metrics"] for part in ("texts", "tasks") for name, each in record[part].items()}
    found |= {harness_answers(name): metrics for name, metrics in record["lm_eval"].items()}
    if record["text_means"] is not None:
        found[MEAN_OVER_TEXTS] = record["text_means"]["metrics"]
    if record["suite"] is not None and record["suite"]["average"] is not None:
        found[record["suite"]["name"]] = {"average": record["suite"]["average"]}
    return {name: {metric: score["value"] for metric, score in metrics.items()} for name, metrics in found.items()}
