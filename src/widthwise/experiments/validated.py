"""Losses on further texts, and scores on tasks, over the seeds of a comparison and beside its baseline."""

from collections.abc import Mapping, Sequence

import numpy as np

from widthwise.experiments.statistics import paired_difference, seed_interval
from widthwise.records.comparison import Validated
from widthwise.records.record import finite
from widthwise.records.run import RunResult

OF_TASKS = ("acc", "acc_norm", "bits_per_byte")
"""The metrics of a task that are compared, as far as it has them."""


def validated(
    results: Sequence[RunResult], baseline: Sequence[RunResult] | None, confidence: float
) -> dict[str, Validated]:
    """TEXT.loss and TASK.METRIC -> mean over seeds and difference to the baseline, of what every run has.

    Losses are paired by seed and window, scores by seed alone. baseline: None of the baseline itself.
    """
    return _of_texts(results, baseline, confidence) | _of_tasks(results, baseline, confidence)


def _of_texts(
    results: Sequence[RunResult], baseline: Sequence[RunResult] | None, confidence: float
) -> dict[str, Validated]:
    found = {}
    for name in _names([result.val_texts or {} for result in (*results, *(baseline or ()))]):
        own, other = (_windows(each, name) for each in (results, baseline or ()))
        if not own.size or (baseline is not None and not other.size):
            continue  # files that another program wrote may lack the windows
        difference = None if baseline is None else paired_difference(own, other, confidence)
        value = seed_interval(own.mean(axis=1).tolist(), confidence)
        found[f"{name}.loss"] = Validated(value=value, difference=difference)
    return found


def _windows(results: Sequence[RunResult], name: str) -> np.ndarray:
    """(n_seeds, n_windows): the losses on a text."""
    return np.array([(result.val_texts or {})[name].window_losses for result in results], dtype=np.float64)


def _of_tasks(
    results: Sequence[RunResult], baseline: Sequence[RunResult] | None, confidence: float
) -> dict[str, Validated]:
    found = {}
    for name in _names([result.val_tasks or {} for result in (*results, *(baseline or ()))]):
        for metric in OF_TASKS:
            own, other = ([_score(result, name, metric) for result in each] for each in (results, baseline or ()))
            if not np.isfinite([*own, *other]).all():
                continue
            by_seed = None if baseline is None else (np.array(own) - np.array(other)).tolist()
            difference = None if by_seed is None else seed_interval(by_seed, confidence)
            found[f"{name}.{metric}"] = Validated(value=seed_interval(own, confidence), difference=difference)
    return found


def _score(result: RunResult, name: str, metric: str) -> float:
    score = (result.val_tasks or {})[name].metrics.get(metric)
    return finite(None if score is None else score.value)


def _names(found: Sequence[Mapping[str, object]]) -> list[str]:
    """Those that are in all."""
    first, *others = found
    return [name for name in first if all(name in other for other in others)]
