"""Differences of two models on the same texts and questions, block by block and item by item."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError, check_one_of
from widthwise.evaluation.estimate import SampleEstimate, mean, mean_of, ratio
from widthwise.records.evaluation import (
    MEAN_OVER_TEXTS,
    Difference,
    Evaluation,
    EvaluationDifferences,
    Flips,
    ItemAnswers,
    TextAnswers,
    harness_answers,
)
from widthwise.records.record import finite

LENGTHS = {
    "nats_per_token": ("n_tokens", 1.0),
    "bits_per_byte": ("n_bytes", 1 / math.log(2)),
    "nats_per_character": ("n_characters", 1.0),
}
"""Difference of a text -> its denominator and its factor from nats."""


def baselines_of(runs: Sequence[str], asked: Mapping[str, str]) -> dict[str, str]:
    """Map each run to its baseline: the requested one, else the first run; baselines of others have none.

    runs: paths; asked: run -> baseline, each by its path or folder name. Raises UserError for an unknown run.
    """
    paths = {Path(run).name: run for run in reversed(runs)} | {run: run for run in runs}
    for name in (name for pair in asked.items() for name in pair):
        check_one_of("--baseline", name, paths)
    given = {paths[run]: paths[baseline] for run, baseline in asked.items()}
    if twice := [run for run in given if run in given.values()]:
        raise UserError(
            f"--baseline: got {twice[0]!r} as a baseline, but it has a baseline itself; a baseline must have none"
        )
    first = next(run for run in runs if run not in given)
    return {run: first for run in runs if run != first and run not in given.values()} | given


def all_differences(
    evaluations: Sequence[Evaluation], beside: Mapping[str, str], by_step: bool
) -> list[EvaluationDifferences]:
    """Return the differences of each evaluation whose run has a baseline.

    beside: from `baselines_of`; by_step: compare checkpoints of the same step; otherwise each run has one evaluation.
    """
    known = {(each.run, each.step if by_step else None): each for each in evaluations}
    found = []
    for each in evaluations:
        baseline = known.get((beside.get(each.run, ""), each.step if by_step else None))
        if baseline is not None:
            place = {"run": each.run, "step": each.step, "baseline": baseline.run, "baseline_step": baseline.step}
            found.append(EvaluationDifferences(**place, differences=evaluation_differences(baseline, each)))
    return found


def evaluation_differences(baseline: Evaluation, other: Evaluation) -> list[Difference]:
    """Return other - baseline for all texts and tasks of both, block by block and item by item.

    Where the texts or questions differ, metric and numbers are None.
    """
    entries = []
    for name, before in baseline.texts.items():
        if name in other.texts:
            found = text_differences(before, other.texts[name])
            entries += (
                [_other_questions(name)] if found is None else [_difference(name, *each) for each in found.items()]
            )
    before, after = (
        {**each.tasks, **{harness_answers(name): items for name, items in each.lm_eval_items.items()}}
        for each in (baseline, other)
    )
    for name in (name for name in before if name in after):
        entries += paired_answers(name, before[name], after[name])
    entries += [_difference(MEAN_OVER_TEXTS, *each) for each in (mean_differences(baseline, other) or {}).items()]
    return entries


def paired_answers(on: str, baseline: ItemAnswers, other: ItemAnswers) -> list[Difference]:
    """Return other - baseline for each metric of a task; one entry without a metric for other questions."""
    found = task_differences(baseline, other)
    if found is None:
        return [_other_questions(on)]
    return [_difference(on, metric, each, flips(baseline, other, metric)) for metric, each in found.items()]


def _other_questions(on: str) -> Difference:
    return Difference(on=on, metric=None, value=None, stderr=None, low=None, high=None)


def _difference(on: str, metric: str, estimate: SampleEstimate, flipped: Flips | None = None) -> Difference:
    interval = estimate.with_interval()
    return Difference(
        on=on,
        metric=metric,
        value=estimate.value,
        stderr=estimate.stderr,
        low=interval.low,
        high=interval.high,
        p_value=estimate.p_value() if flipped is None else flipped.p_value,
        flips=flipped,
    )


def text_differences(baseline: TextAnswers, other: TextAnswers) -> dict[str, SampleEstimate] | None:
    """Return other - baseline; None for different texts.

    Differences per token need the same tokens in every block.
    """
    if baseline.fingerprint != other.fingerprint:
        return None
    before, after = _blocks(baseline), _blocks(other)
    nats = after["nats"] - before["nats"]
    found = {
        name: ratio(nats, before[length]).scaled(factor)
        for name, (length, factor) in LENGTHS.items()
        if np.array_equal(before[length], after[length])
    }
    if "nats_per_token" in found:
        ends = [answers.metrics["token_perplexity"].value for answers in (baseline, other)]
        found["token_perplexity"] = _perplexity_difference(baseline, other, *ends)
    return found


def _blocks(answers: TextAnswers) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in answers.blocks.items()}


def _perplexity_difference(
    baseline: TextAnswers, other: TextAnswers, before: float | None, after: float | None
) -> SampleEstimate:
    """Return after - before, perplexities of the same tokens, its error by the delta method; NaN beyond floats."""
    if before is None or after is None:
        return SampleEstimate(math.nan, math.nan)
    one, two = _blocks(baseline), _blocks(other)
    linear = ratio(after * two["nats"] - before * one["nats"], one["n_tokens"])
    return linear._replace(value=after - before)


def mean_differences(baseline: Evaluation, other: Evaluation) -> dict[str, SampleEstimate] | None:
    """Return other - baseline of the means over texts; None if one has none, or they are over different texts.

    Omits a mean if a text has no such difference, as per token with another tokenizer.
    """
    means = [each.text_means for each in (baseline, other) if each.text_means is not None]
    if len(means) < 2 or baseline.texts.keys() != other.texts.keys():
        return None
    texts = [(text, other.texts[name]) for name, text in baseline.texts.items()]
    differences = [text_differences(*pair) for pair in texts]
    found = {}
    for metric in ("nats_per_token", "token_perplexity", "bits_per_byte"):
        estimates = [each[metric] for each in differences if each is not None and metric in each]
        if len(estimates) == len(texts):
            found[f"mean_{metric}"] = mean_of(estimates)
    if "mean_nats_per_token" in found:
        ends = [each.metrics["exp_mean_nats_per_token"].value for each in means]
        linear = mean_of([_perplexity_difference(*pair, *ends) for pair in texts])
        found["exp_mean_nats_per_token"] = linear._replace(value=finite(ends[1]) - finite(ends[0]))
    return found or None


def task_differences(baseline: ItemAnswers, other: ItemAnswers) -> dict[str, SampleEstimate] | None:
    """Return other - baseline for each metric, item by item; None for other questions."""
    if baseline.fingerprint != other.fingerprint:
        return None
    return {name: mean(np.array(values) - np.array(baseline.items[name])) for name, values in other.items.items()}


def flips(baseline: ItemAnswers, other: ItemAnswers, metric: str) -> Flips | None:
    """Return the items that only one model has right; None for metrics that are not right or wrong."""
    before, after = (np.array(answers.items[metric]) for answers in (baseline, other))
    if not np.isin(np.concatenate([before, after]), (0, 1)).all():
        return None
    gained, lost = ((np.flatnonzero(change) + 1).tolist() for change in (after > before, after < before))
    n = len(gained) + len(lost)
    # The probability that n fair coins show as many heads as the larger of the two, or more.
    one_sided = sum(math.comb(n, i) for i in range(max(len(gained), len(lost)), n + 1)) / 2**n
    return Flips(gained=gained, lost=lost, p_value=min(1.0, 2 * one_sided))
