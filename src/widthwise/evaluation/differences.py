"""Differences between models on the same texts and questions, paired by block and by item, and their table.

The table has a row for each model and a column for each task, as Table 3 of arXiv:2606.18246. The paper marks an
accuracy that is higher at p < 0.05 in a one-sided test, which it does not describe. Here the test is two-sided and
paired: both models answered the same questions. For a perplexity its logarithm, the loss, is tested.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from widthwise.config_io import check_one_of
from widthwise.evaluation.estimate import SampleEstimate, mean, mean_of_estimates, ratio
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
"""Metric of a text -> the count that divides its nats, and the factor from nats to its unit."""


def baselines_of(runs: Sequence[str], requested: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from run to baseline: the requested one, else the first run that has none requested.

    Runs that are baselines are omitted. runs: paths; requested: run -> baseline, by path or folder name. Raises
    UserError for an unknown run, and for a baseline that has a baseline itself.
    """
    paths = {Path(run).name: run for run in reversed(runs)}  # of equal folder names, the first run
    paths |= {run: run for run in runs}
    baselines: dict[str, str] = {}
    for run, baseline in requested.items():
        check_one_of("--baseline", run, paths)
        check_one_of("--baseline", baseline, paths)
        baselines[paths[run]] = paths[baseline]
    for run in baselines:
        if run in baselines.values():
            raise UserError(
                f"--baseline: got {run!r} as a baseline, but it has a baseline itself; a baseline must have none"
            )
    first = next(run for run in runs if run not in baselines)
    return {run: first for run in runs if run != first and run not in baselines.values()} | baselines


def all_differences(
    evaluations: Sequence[Evaluation], baselines: Mapping[str, str], by_step: bool
) -> list[EvaluationDifferences]:
    """Return the differences of each evaluation whose run has a baseline.

    baselines: from `baselines_of`; by_step: compare checkpoints of the same step; otherwise each run has one
    evaluation.
    """
    by_model = {(evaluation.run, evaluation.step if by_step else None): evaluation for evaluation in evaluations}
    differences = []
    for candidate in evaluations:
        step = candidate.step if by_step else None
        baseline = by_model.get((baselines.get(candidate.run, ""), step))
        if baseline is not None:
            models = {"run": candidate.run, "step": candidate.step}
            models |= {"baseline": baseline.run, "baseline_step": baseline.step}
            differences.append(EvaluationDifferences(**models, differences=evaluation_differences(baseline, candidate)))
    return differences


def evaluation_differences(baseline: Evaluation, candidate: Evaluation) -> list[Difference]:
    """Return candidate - baseline for all texts and tasks that both have, block by block and item by item.

    For a text or a task with different contents, metric and numbers are None.
    """
    entries = []
    for name, text in baseline.texts.items():
        if name in candidate.texts:
            differences = text_differences(text, candidate.texts[name])
            if differences is None:
                entries.append(_unpaired(name))
            else:
                entries += [_difference(name, metric, estimate) for metric, estimate in differences.items()]
    tasks = _all_tasks(candidate)
    for name, task in _all_tasks(baseline).items():
        if name in tasks:
            entries += paired_answers(name, task, tasks[name])
    means = mean_differences(baseline, candidate) or {}
    entries += [_difference(MEAN_OVER_TEXTS, metric, estimate) for metric, estimate in means.items()]
    return entries


def _all_tasks(evaluation: Evaluation) -> dict[str, ItemAnswers]:
    """Return the tasks of files and of lm-evaluation-harness by name."""
    harness = {harness_name(name): items for name, items in evaluation.lm_eval_items.items()}
    return {**evaluation.tasks, **harness}


def paired_answers(on: str, baseline: ItemAnswers, candidate: ItemAnswers) -> list[Difference]:
    """Return candidate - baseline for each metric of a task; for different questions one entry without a metric."""
    if baseline.fingerprint != candidate.fingerprint:
        return [_unpaired(on)]
    entries = []
    for name, values in candidate.items.items():
        estimate = mean(np.array(values) - np.array(baseline.items[name]))
        entries.append(_difference(on, name, estimate, flips(baseline, candidate, name)))
    return entries


def _unpaired(on: str) -> Difference:
    return Difference(on=on, metric=None, value=None, stderr=None, low=None, high=None)


def _difference(on: str, metric: str, estimate: SampleEstimate, flipped: Flips | None = None) -> Difference:
    # If no item differs, the interval is unknown.
    interval = estimate._replace(stderr=estimate.stderr or math.nan).with_interval()
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

    A metric is omitted if the counts that divide it differ in a block, such as numbers of tokens of two tokenizers.
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
        perplexities = [text.metrics["token_perplexity"].value for text in (baseline, candidate)]
        differences["token_perplexity"] = _perplexity_difference(baseline, candidate, *perplexities)
    return differences


def _blocks(text: TextScores) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in text.blocks.items()}


def _perplexity_difference(
    baseline: TextScores, candidate: TextScores, before: float | None, after: float | None
) -> SampleEstimate:
    """Return after - before, with its error by the delta method; NaN if a perplexity is None, after an overflow.

    before, after: perplexities of baseline and candidate, for the same tokens.
    """
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
    pairs = [(text, candidate.texts[name]) for name, text in baseline.texts.items()]
    by_text = [text_differences(*pair) or {} for pair in pairs]
    differences = {}
    for metric in ("nats_per_token", "token_perplexity", "bits_per_byte"):
        estimates = [estimate[metric] for estimate in by_text if metric in estimate]
        if len(estimates) == len(pairs):
            differences[f"mean_{metric}"] = mean_of_estimates(estimates)
    if "mean_nats_per_token" in differences:
        before, after = (mean.metrics["exp_mean_nats_per_token"].value for mean in means)
        linear = mean_of_estimates([_perplexity_difference(*pair, before, after) for pair in pairs])
        differences["exp_mean_nats_per_token"] = linear._replace(value=finite(after) - finite(before))
    return differences or None


def flips(baseline: ItemAnswers, candidate: ItemAnswers, metric: str) -> Flips | None:
    """Return the numbers, from 1, of items that only one model answers correctly, with the p of a sign test.

    None if a value of the metric is neither 0 nor 1.
    """
    before, after = (np.array(answers.items[metric]) for answers in (baseline, candidate))
    if not np.isin(np.concatenate([before, after]), (0, 1)).all():
        return None
    gained = (np.flatnonzero(after > before) + 1).tolist()
    lost = (np.flatnonzero(after < before) + 1).tolist()
    n = len(gained) + len(lost)
    # Probability that n fair coins show at least as many heads as the larger count.
    one_sided = sum(math.comb(n, i) for i in range(max(len(gained), len(lost)), n + 1)) / 2**n
    return Flips(gained=gained, lost=lost, p_value=min(1.0, 2 * one_sided))


SIGNIFICANCE = 0.05
TESTED = {"perplexity": "nats", "token_perplexity": "nats_per_token", "byte_perplexity": "bits_per_byte"}
"""Shown metric -> the metric that is tested; default: the same."""
SHARES = ("acc", "acc_norm", "exact_match", "f1", "pass@1", "pass_at_1")
"""Metrics from 0 to 1, for which higher is better. lm-evaluation-harness may add a comma and the name of a filter."""
PERPLEXITIES = ("perplexity", "word_perplexity")

Column = tuple[TableColumn, str]
"""A column of the table, and the name of its answers in an evaluation and in `Difference.on`."""


def is_share(metric: str) -> bool:
    """Return True for a metric of SHARES; all other metrics are losses."""
    return metric.partition(",")[0] in SHARES


def models_table(
    evaluations: Sequence[Evaluation], differences: Sequence[EvaluationDifferences], command: str
) -> EvaluationTable:
    """Return the table, shares before losses, with empty cells for missing answers.

    A model has the name of its folder if all names differ, otherwise its path and step. evaluations: one for each row,
    all of the same request; differences: from `all_differences`; command: reproduces the table.
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
    """Return the cell of a column and a model. entries: differences of the model from its baseline."""
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
        yield from _task_columns(name, harness_name(name), metrics, "lm-evaluation-harness", n_items or None)
    files = [Path(name).name for name in first.texts]
    for name, file in zip(first.texts, files):
        title = name if files.count(file) > 1 else file
        n_blocks = first.texts[name].n_blocks
        n_tokens = [evaluation.texts[name].blocks["n_tokens"] for evaluation in evaluations]
        metric = "token_perplexity" if n_tokens.count(n_tokens[0]) == len(n_tokens) else "byte_perplexity"
        yield TableColumn(name=title, metric=metric, is_share=False, source="text", n_blocks=n_blocks), name


def _task_columns(name: str, on: str, metrics: Scores, source: str, n_items: int | None) -> Iterator[Column]:
    """Yield columns for acc_norm, or else the first metric that is a share, and for perplexities."""
    shares = sorted(filter(is_share, metrics), key=lambda metric: metric != "acc_norm")
    for metric in [*shares[:1], *(name for name in PERPLEXITIES if name in metrics)]:
        column = TableColumn(name=name, metric=metric, is_share=is_share(metric), source=source, n_items=n_items)
        yield column, on
