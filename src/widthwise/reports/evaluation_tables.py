"""Results of an evaluation, for the terminal: of runs side by side, or of every checkpoint of a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
NAMES, ERROR = ("", "metric"), "std. error"
FLIPPED = ("gained", "lost", "p")


Row = tuple[int, int | None, Mapping[str, float | None]]
"""Step and tokens of a checkpoint, and its values by metric."""


@dataclass(frozen=True)
class _Answers:
    """A text, a task or a mean, as a table shows it."""

    name: str
    metrics: Metrics
    remarks: Sequence[str] = ()


def evaluation_tables(records: Sequence[dict[str, Any]], differences: Iterable[dict[str, Any]]) -> list[Table]:
    """Return results on texts and tasks of one run, or of several side by side, with the paper's table if asked for.

    differences: of `all_differences`.
    """
    first, *others = records
    if not others:
        return [evaluation_table(first), *([suite_results_table(first["suite"])] if first["suite"] else [])]
    suites = [record["suite"] for record in records if record["suite"]]
    tables = [side_by_side(records), *([suites_side_by_side(_titles(records), suites)] if suites else [])]
    return tables + [difference_table(each["run"], each["baseline"], each["differences"]) for each in differences]


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
    return Table(
        suite["name"], [*NAMES, "value", ERROR, "source"], rows, words={*NAMES, "source"}, note=_suite_note(suite)
    )


def _answers(record: dict[str, Any]) -> Iterator[_Answers]:
    for name, text in record["texts"].items():
        blocks = f"{counted(text['n_blocks'], 'block')} of {BLOCK_BYTES:,} bytes: too few for a standard error"
        remarks = [blocks] if text["n_blocks"] < FEWEST_BLOCKS else []
        yield _Answers(f"{_tail(name)} ({text['n_bytes']:,} bytes)", text["metrics"], remarks)
    means = record["text_means"]
    if means is not None:
        yield _Answers(f"mean over {len(record['texts'])} texts", means["metrics"])
    for name, task in record["tasks"].items():
        chance = f", chance {fixed(100 * task['chance'], 1)}%" if task["chance"] else ""
        cut = f"{task['n_cut_contexts']:,} contexts cut to {record['max_length']:,} tokens"
        remarks = [cut] if task["n_cut_contexts"] else []
        yield _Answers(f"{_tail(name)} ({task['n_items']:,} items{chance})", task["metrics"], remarks)
    for name, metrics in record["lm_eval"].items():
        yield _Answers(f"lm-eval {clean(name)}", metrics)


def _title(record: dict[str, Any]) -> str:
    """A run and its step, as a heading."""
    return _tail(record["run"]) + ("" if record["step"] is None else f", step {record['step']}")


def _titles(records: Sequence[dict[str, Any]]) -> list[str]:
    """Headings of columns: the names of the runs' folders, where those tell them apart."""
    names = [clean(Path(record["run"]).name) for record in records]
    return names if len(set(names)) == len(names) else [_title(record) for record in records]


def _average_name(average: dict[str, Any]) -> str:
    """Says where it is over a part of the tasks, or not the paper's."""
    is_partial = average["n_tasks"] < average["n_tasks_of_suite"]
    remarks = [f"{average['n_tasks']} of {average['n_tasks_of_suite']} tasks"] if is_partial else []
    remarks += [] if average["is_printed"] else ["not in the paper"]
    return "Avg." + (f" ({', '.join(remarks)})" if remarks else "")


def _suite_note(suite: dict[str, Any]) -> str:
    notes = [f"without {part}" for part in suite["missing"]]
    if suite["average"] is not None and suite["average"]["has_unknown_weights"]:
        notes.append("the paper weights its average and does not say how")
    return "\n".join(notes)


def side_by_side(records: Sequence[dict[str, Any]]) -> Table:
    """Every metric of several runs, a column each, with standard errors below."""
    return _side_by_side("Side by side", _titles(records), [[*_answers(record)] for record in records])


def suites_side_by_side(titles: Sequence[str], suites: Sequence[dict[str, Any]]) -> Table:
    """A paper's table of several runs, a column each, under the titles."""
    columns = []
    for suite in suites:
        answers = [_Answers(row["name"], {row["metric"]: row}) for row in suite["rows"]]
        average = suite["average"]
        columns.append(answers + ([] if average is None else [_Answers(_average_name(average), {"acc": average})]))
    table = _side_by_side(suites[0]["name"], titles, columns)
    return replace(table, note="\n".join(dict.fromkeys(filter(None, map(_suite_note, suites)))))


def _side_by_side(caption: str, titles: Sequence[str], columns: Sequence[Sequence[_Answers]]) -> Table:
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    remarks: dict[str, dict[str, None]] = {}
    for i, column in enumerate(columns):
        for answers in column:
            remarks.setdefault(answers.name, {}).update(dict.fromkeys(answers.remarks))
            for metric, estimate in answers.metrics.items():
                found.setdefault((answers.name, metric), {})[i] = estimate
    rows, before = [], None
    for (name, metric), estimates in found.items():
        if name != before:
            rows += [[f"  {remark}"] for remark in remarks.get(before or "", ())]
        cells = [_with_error(metric, estimates.get(i)) for i in range(len(columns))]
        rows.append(["" if name == before else name, metric, *cells])
        before = name
    rows += [[f"  {remark}"] for remark in remarks.get(before or "", ())]
    return Table(caption, [*NAMES, *titles], rows, words=NAMES)


def _with_error(metric: str, estimate: Mapping[str, Any] | None) -> str:
    if estimate is None:
        return MISSING
    value, error = _shown(metric, estimate)
    return value if estimate["stderr"] is None else f"{value}\n± {error}"


def difference_table(run: str, baseline: str, entries: Iterable[dict[str, Any]]) -> Table:
    """Differences of one run to the baseline, from `evaluation_differences`."""
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
        if entry.get("flips"):
            is_flipped = True
            gained, lost = (len(entry["flips"][key]) for key in ("gained", "lost"))
            rows[-1] += [f"{gained:,}", f"{lost:,}", fixed(entry["flips"]["p_value"], 3)]
    header = [*NAMES, "difference", f"{percentage(CONFIDENCE)} interval", *(FLIPPED if is_flipped else ())]
    note = "gained, lost: items that only this run or only the baseline has right; p: exact test of McNemar"
    title = f"{_tail(run)} minus {_tail(baseline)}, item by item"
    return Table(title, header, rows, words=NAMES, note=note if is_flipped else "")


def _shown(metric: str, estimate: Mapping[str, Any]) -> list[str]:
    scale, unit = _unit(metric)
    values = (None if estimate[key] is None else scale * estimate[key] for key in ("value", "stderr"))
    return [_number(value, 2 if unit else N_DECIMALS) + (unit if value is not None else "") for value in values]


def _number(value: float | None, n_decimals: int) -> str:
    return fixed(value, n_decimals) if value is None or value < LARGE else f"{value:.3e}"


def _unit(metric: str) -> tuple[float, str]:
    return (100.0, "%") if is_share(metric) else (1.0, "")


def _tail(name: str) -> str:
    """The end of a long name, because the end of a path says more than its beginning."""
    name = clean(name)
    return name if len(name) <= NAME_LETTERS else "…" + name[1 - NAME_LETTERS :]


def tables_by_checkpoint(records: Sequence[dict[str, Any]], differences: Sequence[dict[str, Any]]) -> list[Table]:
    """A table for each text and task of each run, with a row for each checkpoint, and such tables of differences.

    records: from `evaluate_run`; differences: of `all_differences`.
    """
    rows: dict[str, list[Row]] = {}
    tokens = {(record["run"], record["step"]): record["tokens"] for record in records}
    for record in records:
        for name, values in _values(record).items():
            row = (record["step"], record["tokens"], values)
            rows.setdefault(f"{record['run']}: {name}", []).append(row)
    for each in differences:
        for name, values in _differing(each["differences"]).items():
            row = (each["step"], tokens[each["run"], each["step"]], values)
            rows.setdefault(f"{each['run']} minus {each['baseline']}: {name}", []).append(row)
    return [_table(caption, own) for caption, own in rows.items()]


def _values(record: dict[str, Any]) -> Mapping[str, Mapping[str, float | None]]:
    """Text or task -> metric -> value."""
    found = {name: each["metrics"] for part in ("texts", "tasks") for name, each in record[part].items()}
    found |= {harness_answers(name): metrics for name, metrics in record["lm_eval"].items()}
    if record["text_means"] is not None:
        found[MEAN_OVER_TEXTS] = record["text_means"]["metrics"]
    if record["suite"] is not None and record["suite"]["average"] is not None:
        found[record["suite"]["name"]] = {"average": record["suite"]["average"]}
    return {name: {metric: score["value"] for metric, score in metrics.items()} for name, metrics in found.items()}


def _differing(entries: Iterable[dict[str, Any]]) -> Mapping[str, Mapping[str, float | None]]:
    """Text or task -> metric -> difference; without metrics where the questions differ."""
    found: dict[str, dict[str, float | None]] = {}
    for entry in entries:
        found.setdefault(entry["on"], {})
        if entry["metric"] is not None:
            found[entry["on"]][entry["metric"]] = entry["value"]
    return found


def _table(caption: str, rows: Sequence[Row]) -> Table:
    metrics = list(dict.fromkeys(metric for *_, values in rows for metric in values))
    cells = [
        [str(step), si(tokens), *(_number(values.get(each), N_DECIMALS) for each in metrics)]
        for step, tokens, values in rows
    ]
    return Table(clean(caption), ["step", "tokens", *metrics], cells)
