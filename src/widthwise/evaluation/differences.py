"""Differences of models on the same texts and questions, block by block and item by item, and their table.

The table has a row for each model and a column for each task, as Table 3 of arXiv:2606.18246. The paper marks an
accuracy that is higher at p < 0.05 in a one-sided test, which it does not describe. Here the test is two-sided and
paired: both models answered the same questions. For a perplexity the loss is tested, its logarithm.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from widthwise.config_io import check_one_of
from widthwise.evaluation.estimate import SampleEstimate, mean, mean_of, ratio
from widthwise.mistakes import UserError
from widthwise.records.evaluation import (
    MEAN_OVER_TEXTS,
    Difference,
    Evaluation,
    EvaluationDifferences,
    EvaluationTable,
    Flips,
    ItemAnswers,
    Score,
    Scores,
    TableCell,
    TableColumn,
    TableRow,
    TextScores,
    harness_name,
)
from widthwise.records.record import finite

LENGTHS = {
    "nats_per_token": ("n_tokens", 1.0),
    "bits_per_byte": ("n_bytes", 1 / math.log(2)),
    "nats_per_character": ("n_characters", 1.0),
}
"""Metric of a text -> its denominator, and its factor from nats."""


def baselines_of(runs: Sequence[str], requested: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from run to baseline: the requested one, else the first run. Runs that are baselines are omitted.

    runs: paths; requested: run -> baseline, by path or folder name. Raises UserError for an unknown run.
    """
    paths = {Path(run).name: run for run in reversed(runs)} | {run: run for run in runs}
    for name in (name for pair in requested.items() for name in pair):
        check_one_of("--baseline", name, paths)
    given = {paths[run]: paths[baseline] for run, baseline in requested.items()}
    if twice := [run for run in given if run in given.values()]:
        raise UserError(
            f"--baseline: got {twice[0]!r} as a baseline, but it has a baseline itself; a baseline must have none"
        )
    first = next(run for run in runs if run not in given)
    return {run: first for run in runs if run != first and run not in given.values()} | given


def all_differences(
    evaluations: Sequence[Evaluation], baselines: Mapping[str, str], by_step: bool
) -> list[EvaluationDifferences]:
    """Return the differences of each evaluation whose run has a baseline.

    baselines: from `baselines_of`; by_step: compare checkpoints of the same step; otherwise each run has one
    evaluation.
    """
    by_run = {(candidate.run, candidate.step if by_step else None): candidate for candidate in evaluations}
    differences = []
    for candidate in evaluations:
        baseline = by_run.get((baselines.get(candidate.run, ""), candidate.step if by_step else None))
        if baseline is not None:
            places = {"run": candidate.run, "step": candidate.step}
            places |= {"baseline": baseline.run, "baseline_step": baseline.step}
            pairs = evaluation_differences(baseline, candidate)
            differences.append(EvaluationDifferences(**places, differences=pairs))
    return differences


def evaluation_differences(baseline: Evaluation, candidate: Evaluation) -> list[Difference]:
    """Return candidate - baseline for all common texts and tasks, block by block and item by item.

    If their contents differ, metric and numbers are None.
    """
    entries = []
    for name, before in baseline.texts.items():
        if name in candidate.texts:
            differences = text_differences(before, candidate.texts[name])
            if differences is None:
                entries.append(_without_pairs(name))
            else:
                entries += [_difference(name, *item) for item in differences.items()]
    before, after = (
        {**model.tasks, **{harness_name(name): items for name, items in model.lm_eval_items.items()}}
        for model in (baseline, candidate)
    )
    for name in (name for name in before if name in after):
        entries += paired_answers(name, before[name], after[name])
    means = mean_differences(baseline, candidate) or {}
    return [*entries, *(_difference(MEAN_OVER_TEXTS, *item) for item in means.items())]


def paired_answers(on: str, baseline: ItemAnswers, candidate: ItemAnswers) -> list[Difference]:
    """Return candidate - baseline for each metric of a task; for different questions one entry without a metric."""
    if baseline.fingerprint != candidate.fingerprint:
        return [_without_pairs(on)]
    entries = []
    for name, values in candidate.items.items():
        estimate = mean(np.array(values) - np.array(baseline.items[name]))
        entries.append(_difference(on, name, estimate, flips(baseline, candidate, name)))
    return entries


def _without_pairs(on: str) -> Difference:
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


def text_differences(baseline: TextScores, candidate: TextScores) -> dict[str, SampleEstimate] | None:
    """Return candidate - baseline by metric; None for different texts.

    Differences per token need the same tokens in every block.
    """
    if baseline.fingerprint != candidate.fingerprint:
        return None
    before = _blocks(baseline)
    after = _blocks(candidate)
    nats = after["nats"] - before["nats"]
    differences = {
        name: ratio(nats, before[length]).scaled(factor)
        for name, (length, factor) in LENGTHS.items()
        if np.array_equal(before[length], after[length])
    }
    if "nats_per_token" in differences:
        ends = [answers.metrics["token_perplexity"].value for answers in (baseline, candidate)]
        differences["token_perplexity"] = _perplexity_difference(baseline, candidate, *ends)
    return differences


def _blocks(answers: TextScores) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in answers.blocks.items()}


def _perplexity_difference(
    baseline: TextScores, candidate: TextScores, before: float | None, after: float | None
) -> SampleEstimate:
    """Return after - before, perplexities of the same tokens, its error by the delta method; NaN if one overflowed."""
    if before is None or after is None:
        return SampleEstimate(math.nan, math.nan)
    blocks = _blocks(baseline)
    linear = ratio(after * _blocks(candidate)["nats"] - before * blocks["nats"], blocks["n_tokens"])
    return linear._replace(value=after - before)


def mean_differences(baseline: Evaluation, candidate: Evaluation) -> dict[str, SampleEstimate] | None:
    """Return candidate - baseline for means over texts; None if one has no means, or their texts differ.

    A mean is omitted if it is missing for a text, as per token with another tokenizer.
    """
    means = [model.text_means for model in (baseline, candidate) if model.text_means is not None]
    if len(means) < 2 or baseline.texts.keys() != candidate.texts.keys():
        return None
    texts = [(text, candidate.texts[name]) for name, text in baseline.texts.items()]
    by_text = [text_differences(*pair) or {} for pair in texts]
    differences = {}
    for metric in ("nats_per_token", "token_perplexity", "bits_per_byte"):
        estimates = [estimate[metric] for estimate in by_text if metric in estimate]
        if len(estimates) == len(texts):
            differences[f"mean_{metric}"] = mean_of(estimates)
    if "mean_nats_per_token" in differences:
        ends = [mean.metrics["exp_mean_nats_per_token"].value for mean in means]
        linear = mean_of([_perplexity_difference(*pair, *ends) for pair in texts])
        differences["exp_mean_nats_per_token"] = linear._replace(value=finite(ends[1]) - finite(ends[0]))
    return differences or None


def flips(baseline: ItemAnswers, candidate: ItemAnswers, metric: str) -> Flips | None:
    """Return the items that only one model answers correctly; None if the metric is not 0 or 1."""
    before, after = (np.array(answers.items[metric]) for answers in (baseline, candidate))
    if not np.isin(np.concatenate([before, after]), (0, 1)).all():
        return None
    gained, lost = ((np.flatnonzero(change) + 1).tolist() for change in (after > before, after < before))
    n = len(gained) + len(lost)
    # Probability that n fair coins show at least as many heads as the larger count.
    one_sided = sum(math.comb(n, i) for i in range(max(len(gained), len(lost)), n + 1)) / 2**n
    return Flips(gained=gained, lost=lost, p_value=min(1.0, 2 * one_sided))


SIGNIFICANCE = 0.05
TESTED = {"perplexity": "nats", "token_perplexity": "nats_per_token", "byte_perplexity": "bits_per_byte"}
"""Shown metric -> the metric that is tested; default: the same."""
SHARES = ("acc", "acc_norm", "exact_match", "f1", "pass@1", "pass_at_1")
"""Metrics from 0 to 1; a filter of lm-evaluation-harness may follow a comma."""
PERPLEXITIES = ("perplexity", "word_perplexity")
HARNESS = "lm-evaluation-harness"


Column = tuple[TableColumn, str]
"""A column of the table, and the name of its answers in an evaluation and among differences."""


def is_share(metric: str) -> bool:
    """Return True for one of SHARES, for which higher is better; all other metrics are losses."""
    return metric.partition(",")[0] in SHARES


def models_table(
    evaluations: Sequence[Evaluation], differences: Sequence[EvaluationDifferences], command: str
) -> EvaluationTable:
    """Return the table, shares before losses, with empty cells for missing answers.

    Models have the names of their folders if these are unique, otherwise paths with steps. evaluations: one for each
    row, all of the same request; differences: from `all_differences`; command: reproduces the table.
    """
    columns = sorted(_columns(evaluations), key=lambda column: not column[0].is_share)
    names = {(evaluation.run, evaluation.step): Path(evaluation.run).name for evaluation in evaluations}
    if len(set(names.values())) < len(evaluations):
        names = {(run, step): run if step is None else f"{run}, step {step}" for run, step in names}
    by_model = {(pair.run, pair.step): pair for pair in differences}
    rows = []
    for evaluation in evaluations:
        model = (evaluation.run, evaluation.step)
        pair = by_model.get(model)
        entries = {} if pair is None else {(entry.on, entry.metric): entry for entry in pair.differences}
        rows.append(
            TableRow(
                name=names[model],
                run=evaluation.run,
                step=evaluation.step,
                baseline=None if pair is None else names[pair.baseline, pair.baseline_step],
                cells=[_cell(*column, evaluation, entries) for column in columns],
            )
        )
    return EvaluationTable(
        title="Evaluation",
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        significance=SIGNIFICANCE,
        columns=[column for column, _ in columns],
        rows=rows,
    )


def _cell(
    column: TableColumn, on: str, evaluation: Evaluation, entries: Mapping[tuple[str, str | None], Difference]
) -> TableCell:
    metric = column.metric
    score = evaluation.scores.get(on, {}).get(metric, Score(value=None))
    difference = entries.get((on, metric))
    tested = entries.get((on, TESTED.get(metric, metric)))
    is_better = None
    if tested is not None and tested.p_value is not None:
        is_better = (finite(tested.value) > 0) == column.is_share
    return TableCell(
        value=score.value,
        stderr=score.stderr,
        difference=difference and difference.value,
        low=difference and difference.low,
        high=difference and difference.high,
        p_value=tested and tested.p_value,
        is_better=is_better,
    )


def _columns(evaluations: Sequence[Evaluation]) -> Iterator[Column]:
    """Yield the columns of tasks, then of texts."""
    first = evaluations[0]
    for name, task in first.tasks.items():
        yield from _task_columns(name, name, task.metrics, "file", task.n_items)
    for name, metrics in first.lm_eval.items():
        pairs = first.lm_eval_items.get(name)
        n_items = len(next(iter(pairs.items.values()), ())) if pairs else 0
        yield from _task_columns(name, harness_name(name), metrics, HARNESS, n_items or None)
    tokenizers = {evaluation.tokenizer for evaluation in evaluations}
    metric = "token_perplexity" if len(tokenizers) == 1 else "byte_perplexity"
    files = [Path(name).name for name in first.texts]
    for name, file in zip(first.texts, files):
        shown = name if files.count(file) > 1 else file
        n_blocks = first.texts[name].n_blocks
        yield TableColumn(name=shown, metric=metric, is_share=False, source="text", n_blocks=n_blocks), name


def _task_columns(name: str, on: str, metrics: Scores, source: str, n_items: int | None) -> Iterator[Column]:
    """Yield columns for the normalised accuracy, or else the first share, and for perplexities."""
    shares = sorted(filter(is_share, metrics), key=lambda metric: metric != "acc_norm")
    for metric in [*shares[:1], *(name for name in PERPLEXITIES if name in metrics)]:
        shown = TableColumn(name=name, metric=metric, is_share=is_share(metric), source=source, n_items=n_items)
        yield shown, on
