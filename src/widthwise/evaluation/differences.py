"""What differs between two evaluations, as plain data."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, nearest_hint
from widthwise.evaluation.estimate import SampleEstimate
from widthwise.evaluation.pairing import (
    average_difference,
    flips,
    mean_differences,
    one_sided,
    task_differences,
    text_differences,
)
from widthwise.evaluation.paper_tasks import harness_answers, is_share

MEAN_OVER_TEXTS = "mean over texts"
"""What differences of means are on."""


def baselines_of(runs: Sequence[str], asked: Mapping[str, str]) -> dict[str, str]:
    """Run -> the run that it is compared with: as asked for, otherwise the first; one that another is said to be
    compared with has none.

    runs: paths; asked: run -> baseline, each by its path or the name of its folder. Raises UserError for what is none
    of them.
    """
    paths = {Path(run).name: run for run in reversed(runs)} | {run: run for run in runs}
    for name in (name for pair in asked.items() for name in pair):
        if name not in paths:
            raise UserError(f"--baseline: got {name!r}; {nearest_hint(name, list(dict.fromkeys(map(str, runs))))}")
    told = {paths[run]: paths[baseline] for run, baseline in asked.items()}
    if twice := [run for run in told if run in told.values()]:
        raise UserError(f"--baseline: got {twice[0]!r} as a baseline that has one itself; give it none")
    first = next(run for run in runs if run not in told)
    return {run: first for run in runs if run != first and run not in told.values()} | told


def all_differences(
    evaluations: Sequence[dict[str, Any]], beside: Mapping[str, str], by_step: bool
) -> list[dict[str, Any]]:
    """For each evaluation whose run has a baseline `run`, `step`, `baseline`, `baseline_step` and `differences`.

    beside: of `baselines_of`; by_step: whether checkpoints of one step are compared, as far as both have it; otherwise
    there is one evaluation of each run.
    """

    def key(run: str, step: int | None) -> tuple[str, int | None]:
        return run, step if by_step else None

    known = {key(each["run"], each["step"]): each for each in evaluations}
    found = []
    for each in evaluations:
        baseline = known.get(key(beside.get(each["run"], ""), each["step"]))
        if baseline is not None:
            found.append(
                {
                    "run": each["run"],
                    "step": each["step"],
                    "baseline": baseline["run"],
                    "baseline_step": baseline["step"],
                    "differences": evaluation_differences(baseline, each),
                }
            )
    return found


def evaluation_differences(baseline: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """other - baseline of what both read and answered, block by block and item by item.

    Entries have `on` (text, task, mean or suite), `metric`, `value`, `stderr`, the ends of the interval, `low` and
    `high`, and one-sided p, `p_better` and `p_worse` (see `one_sided`); of questions that are right or wrong also
    `flips`. Where the questions differ, metric and numbers are null.
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
                entries.append(_difference(on(name), metric, each, flipped))
    for metric, each in (mean_differences(baseline, other) or {}).items():
        entries.append(_difference(MEAN_OVER_TEXTS, metric, each))
    suites = baseline["suite"], other["suite"]
    if None not in suites and suites[0]["name"] == suites[1]["name"]:
        average = average_difference(*suites, paired)
        if average is not None:
            entries.append(_difference(suites[0]["name"], "average", average))
    return entries


def _difference(
    on: str, metric: str, estimate: SampleEstimate, flipped: dict[str, Any] | None = None
) -> dict[str, Any]:
    better, worse = (None if math.isnan(p) else p for p in one_sided(estimate, flipped, is_share(metric)))
    entry = {"on": on, "metric": metric, **estimate.record_with_interval(), "p_better": better, "p_worse": worse}
    return entry | ({"flips": flipped} if flipped else {})


def without_items(record: dict[str, Any]) -> dict[str, Any]:
    """An evaluation without its blocks and items: only the totals."""
    totals = {
        part: {name: {key: value for key, value in each.items() if key != items} for name, each in record[part].items()}
        for part, items in (("texts", "blocks"), ("tasks", "items"))
    }
    return {**record, **totals, "lm_eval_items": {}}
