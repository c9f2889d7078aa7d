"""Differences of two models on the same texts and questions, block by block and item by item, as plain data."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.config_io import UserError, nearest_hint
from widthwise.evaluation.estimate import SampleEstimate, finite_or_none, mean, mean_of, ratio
from widthwise.evaluation.paper_tasks import harness_answers, is_share
from widthwise.records.evaluation import Answers

MEAN_OVER_TEXTS = "mean over texts"
"""Name of the differences of means."""
LENGTHS = {
    "nats_per_token": ("n_tokens", 1.0),
    "bits_per_byte": ("n_bytes", 1 / math.log(2)),
    "nats_per_character": ("n_characters", 1.0),
}
"""Difference of a text -> its denominator and its factor from nats."""
Record = Mapping[str, Any]
"""Plain data of an evaluation, or of one of its texts, tasks or suites."""


def baselines_of(runs: Sequence[str], asked: Mapping[str, str]) -> dict[str, str]:
    """Map each run to its baseline: the requested one, else the first run; baselines of others have none.

    runs: paths; asked: run -> baseline, each by its path or folder name. Raises UserError for an unknown run.
    """
    paths = {Path(run).name: run for run in reversed(runs)} | {run: run for run in runs}
    for name in (name for pair in asked.items() for name in pair):
        if name not in paths:
            raise UserError(f"--baseline: got {name!r}; {nearest_hint(name, list(dict.fromkeys(map(str, runs))))}")
    given = {paths[run]: paths[baseline] for run, baseline in asked.items()}
    if twice := [run for run in given if run in given.values()]:
        raise UserError(f"--baseline: got {twice[0]!r} as a baseline that has one itself; give it none")
    first = next(run for run in runs if run not in given)
    return {run: first for run in runs if run != first and run not in given.values()} | given


def all_differences(
    evaluations: Sequence[dict[str, Any]], beside: Mapping[str, str], by_step: bool
) -> list[dict[str, Any]]:
    """Return `run`, `step`, `baseline`, `baseline_step`, `differences` of each evaluation whose run has a baseline.

    beside: from `baselines_of`; by_step: compare checkpoints of the same step; otherwise each run has one evaluation.
    """

    known = {(each["run"], each["step"] if by_step else None): each for each in evaluations}
    found = []
    for each in evaluations:
        baseline = known.get((beside.get(each["run"], ""), each["step"] if by_step else None))
        if baseline is not None:
            place = {"run": each["run"], "step": each["step"]}
            place |= {"baseline": baseline["run"], "baseline_step": baseline["step"]}
            found.append({**place, "differences": evaluation_differences(baseline, each)})
    return found


def evaluation_differences(baseline: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """Return other - baseline for all texts and tasks of both, block by block and item by item.

    Entries have `on` (text, task, mean or suite), `metric`, `value`, `stderr`, the ends of the interval, `low` and
    `high`, one-sided p, `p_better` and `p_worse` (see `one_sided`), and `flips` of questions that are right or wrong.
    If the questions differ, metric and numbers are null.
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
    better, worse = map(finite_or_none, one_sided(estimate, flipped, is_share(metric)))
    low, high = map(finite_or_none, estimate.interval())
    entry = {"on": on, "metric": metric, **estimate.record(), "low": low, "high": high}
    entry |= {"p_better": better, "p_worse": worse}
    return entry | ({"flips": flipped} if flipped else {})


def without_items(record: dict[str, Any]) -> dict[str, Any]:
    """Return an evaluation without its blocks and items."""
    totals = {
        part: {name: {key: value for key, value in each.items() if key != items} for name, each in record[part].items()}
        for part, items in (("texts", "blocks"), ("tasks", "items"))
    }
    return {**record, **totals, "lm_eval_items": {}}


def text_differences(baseline: Record, other: Record) -> dict[str, SampleEstimate] | None:
    """Return other - baseline, both records of `TextScores`; None for different texts.

    Differences per token need the same tokens in every block.
    """
    if baseline["fingerprint"] != other["fingerprint"]:
        return None
    before, after = _blocks(baseline), _blocks(other)
    nats = after["nats"] - before["nats"]
    found = {
        name: ratio(nats, before[length]).scaled(factor)
        for name, (length, factor) in LENGTHS.items()
        if np.array_equal(before[length], after[length])
    }
    if "nats_per_token" in found:
        ends = [record["metrics"]["token_perplexity"]["value"] for record in (baseline, other)]
        found["token_perplexity"] = _perplexity_difference(baseline, other, *ends)
    return found


def _blocks(record: Record) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in record["blocks"].items()}


def _perplexity_difference(
    baseline: Record, other: Record, before: float | None, after: float | None
) -> SampleEstimate:
    """Return after - before, perplexities of the same tokens, its error by the delta method; NaN beyond floats."""
    if before is None or after is None:
        return SampleEstimate(math.nan, math.nan)
    one, two = _blocks(baseline), _blocks(other)
    linear = ratio(after * two["nats"] - before * one["nats"], one["n_tokens"])
    return linear._replace(value=after - before)


def mean_differences(baseline: Record, other: Record) -> dict[str, SampleEstimate] | None:
    """Return other - baseline of the means over texts; None if one has none, or they are over different texts.

    Omits a mean if a text has no such difference, as per token with another tokenizer.
    """
    means = baseline["text_means"], other["text_means"]
    if None in means or baseline["texts"].keys() != other["texts"].keys():
        return None
    texts = [(text, other["texts"][name]) for name, text in baseline["texts"].items()]
    differences = [text_differences(*pair) for pair in texts]
    found = {}
    for metric in ("nats_per_token", "token_perplexity", "bits_per_byte"):
        estimates = [each[metric] for each in differences if each is not None and metric in each]
        if len(estimates) == len(texts):
            found[f"mean_{metric}"] = mean_of(estimates)
    if "mean_nats_per_token" in found:
        ends = [each["metrics"]["exp_mean_nats_per_token"]["value"] for each in means]
        linear = mean_of([_perplexity_difference(*pair, *ends) for pair in texts])
        value = math.nan if None in ends else ends[1] - ends[0]
        found["exp_mean_nats_per_token"] = linear._replace(value=value)
    return found or None


def task_differences(baseline: Record | Answers, other: Record | Answers) -> dict[str, SampleEstimate] | None:
    """Return other - baseline, records with the `items` and `fingerprint` of `TaskScores`; None for other questions."""
    if baseline["fingerprint"] != other["fingerprint"]:
        return None
    return {name: mean(np.array(values) - np.array(baseline["items"][name])) for name, values in other["items"].items()}


def flips(baseline: Record | Answers, other: Record | Answers, metric: str) -> dict[str, Any] | None:
    """Return the items that only one model has right, both records of the same questions; None for other metrics.

    `gained`, `lost`: numbers, from 1, of the items that only the other, or only the baseline, has right. `p_value`:
    two-sided, of McNemar's exact test that both are equally frequent (1947, Psychometrika 12).
    """
    before, after = (np.array(record["items"][metric]) for record in (baseline, other))
    if not np.isin(np.concatenate([before, after]), (0, 1)).all():
        return None
    gained, lost = ((np.flatnonzero(change) + 1).tolist() for change in (after > before, after < before))
    n, more = len(gained) + len(lost), max(len(gained), len(lost))
    return {"gained": gained, "lost": lost, "p_value": min(1.0, 2 * _at_least(more, n))}


def _at_least(k: int, n: int) -> float:
    """Return the probability of k or more heads of n fair coins."""
    return sum(math.comb(n, i) for i in range(k, n + 1)) / 2**n


def one_sided(
    difference: SampleEstimate, flipped: Mapping[str, Any] | None, higher_is_better: bool
) -> tuple[float, float]:
    """Return p that the other is no better than the baseline, and p that it is no worse; NaN if undefined.

    From McNemar's exact test for `flipped` items, otherwise from Student's t of the paired difference.
    """
    if flipped is not None:
        gained, lost = (len(flipped[key]) for key in ("gained", "lost"))
        above, below = (_at_least(k, gained + lost) for k in (gained, lost))
    else:
        above, below = difference.p_above(), difference.scaled(-1).p_above()
    return (above, below) if higher_is_better else (below, above)


def average_difference(
    baseline: Record, other: Record, paired: Mapping[tuple[str, str], SampleEstimate]
) -> SampleEstimate | None:
    """Return other - baseline of the averages of a suite; None if one has none, or they are over different tasks.

    baseline, other: from `suite_table`; paired: the difference of each task and metric. The result has no standard
    error if one of these is missing.
    """
    averages = baseline["average"], other["average"]
    if None in averages or averages[0]["tasks"] != averages[1]["tasks"]:
        return None
    rows = [row for row in other["rows"] if row["name"] in averages[0]["tasks"]]
    estimates = [paired.get((row["answers"], row["metric"])) for row in rows]
    value = averages[1]["value"] - averages[0]["value"]
    if None in estimates:
        return SampleEstimate(value, math.nan)
    return mean_of([each for each in estimates if each is not None])._replace(value=value)
