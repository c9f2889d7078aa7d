"""Evaluations of every checkpoint of a run, for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from widthwise.cli.eval_table import LARGE, N_DECIMALS
from widthwise.evaluation.differences import MEAN_OVER_TEXTS
from widthwise.evaluation.paper_tasks import harness_answers
from widthwise.reports.page.formats import MISSING, clean, fixed, si
from widthwise.reports.page.table import Table

Row = tuple[int, int | None, Mapping[str, float | None]]
"""Step and tokens of a checkpoint, and its values by metric."""


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
    cells = [[str(step), si(tokens), *(_number(values.get(each)) for each in metrics)] for step, tokens, values in rows]
    return Table(clean(caption), ["step", "tokens", *metrics], cells)


def _number(value: float | None) -> str:
    if value is None:
        return MISSING
    return fixed(value, N_DECIMALS) if value < LARGE else f"{value:.3e}"
