"""What differs between two evaluations, as plain data."""

from typing import Any

from widthwise.evaluation.estimate import SampleEstimate
from widthwise.evaluation.pairing import (
    average_difference,
    flips,
    mean_differences,
    task_differences,
    text_differences,
)
from widthwise.evaluation.paper_tasks import harness_answers

MEAN_OVER_TEXTS = "mean over texts"
"""What differences of means are on."""


def evaluation_differences(baseline: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """other - baseline of what both read and answered, block by block and item by item.

    Entries have `on` (text, task, mean or suite), `metric`, `value`, `stderr` and the ends of the interval, `low` and
    `high`; of questions that are right or wrong also `flips`. Where the questions differ, metric and numbers are null.
    """
    entries, paired = [], {}
    for part, on, differences in (
        ("texts", str, text_differences),
        ("tasks", str, task_differences),
        ("lm_eval_items", harness_answers, task_differences),
    ):
        for name in (name for name in baseline[part] if name in other[part]):
            pair = baseline[part][name], other[part][name]
            found = differences(*pair)
            if found is None:
                entries.append({"on": on(name), "metric": None, **dict.fromkeys(("value", "stderr", "low", "high"))})
                continue
            paired |= {(on(name), metric): each for metric, each in found.items()}
            for metric, each in found.items():
                flipped = None if part == "texts" else flips(*pair, metric)
                entries.append(_difference(on(name), metric, each) | ({"flips": flipped} if flipped else {}))
    for metric, each in (mean_differences(baseline, other) or {}).items():
        entries.append(_difference(MEAN_OVER_TEXTS, metric, each))
    suites = baseline["suite"], other["suite"]
    if None not in suites and suites[0]["name"] == suites[1]["name"]:
        average = average_difference(*suites, paired)
        if average is not None:
            entries.append(_difference(suites[0]["name"], "average", average))
    return entries


def _difference(on: str, metric: str, estimate: SampleEstimate) -> dict[str, Any]:
    return {"on": on, "metric": metric, **estimate.record_with_interval()}


def without_items(record: dict[str, Any]) -> dict[str, Any]:
    """An evaluation without its blocks and items: only the totals."""
    totals = {
        part: {name: {key: value for key, value in each.items() if key != items} for name, each in record[part].items()}
        for part, items in (("texts", "blocks"), ("tasks", "items"))
    }
    return {**record, **totals, "lm_eval_items": {}}
