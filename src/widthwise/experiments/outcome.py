"""The finished runs of one recipe over its seeds as one record, compared with a baseline's."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.config_io import UserError, differences
from widthwise.data.identity import VALIDATION_KEY, check_data_of_run, recorded_identity
from widthwise.experiments.equal_loss import LossCurve, LossCurves, equal_losses, gaps, tokens_ratios, validations_of
from widthwise.experiments.statistics import paired_mean, seed_interval, verdict
from widthwise.recipe.inspection import ratios
from widthwise.records.estimate import Estimate, Verdict
from widthwise.records.outcome import ValidationScore, Variant
from widthwise.records.quantities import OF_HELD_OUT, OF_RUNS
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir
from widthwise.runs.environment import is_shared
from widthwise.yaml_io import parse_yaml

ARRIVAL_SECONDS = 60.0
"""Longest time that a result written by another machine may take to appear on a network file system."""
SETTINGS = ("optimizer", "schedule", "train", "data")
"""Sections of a recipe, other than the model, in which a variant may differ from its baseline."""
OF_TASKS = ("acc", "acc_norm", "bits_per_byte")
"""Metrics of a task that are compared, if it has them."""

Results = Sequence[RunResult]
"""One result per seed, in the order of the seeds."""


@dataclass(frozen=True)
class SeedRuns:
    """The finished runs of one recipe, one for each seed."""

    paths: Sequence[str]
    """Inside the folder of the experiment."""
    results: Results
    curves: LossCurves = ()
    """The validations of these runs; empty to leave out statements on equal loss."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The sections SETTINGS of their resolved recipe, as plain data without the seed."""

    @classmethod
    def read(cls, folder: Path, paths: Sequence[str]) -> "SeedRuns":
        """Read finished runs in the folder of their experiment."""
        runs = [RunDir(folder / path) for path in paths]
        recipe = parse_yaml(runs[0].config_yaml(), f"{runs[0].path}/config.yaml")
        settings = {name: recipe[name] for name in SETTINGS} | {"train": {**recipe["train"], "seed": None}}
        curves = [LossCurve.of(run.metrics()) for run in runs]
        return cls(paths, [load_result(run) for run in runs], curves, settings)


def load_result(run: RunDir) -> RunResult:
    """Return the result of a finished run, perhaps of another machine, whose files arrive one by one.

    Raises UserError if it is not whole after ARRIVAL_SECONDS.
    """
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while True:
        try:
            if (result := run.result()) is not None:
                return result
            missing = UserError(f"{run.path}: has finished, but its folder holds no result.json")
        except UserError as error:
            missing = error
        if time.monotonic() > deadline:
            raise missing
        time.sleep(0.5)


def check_same_data(run: RunDir, first: RunDir) -> None:
    """Raises UserError if two runs saw different data, as after an upgrade of Python."""
    check_data_of_run(run, recorded_identity(first), str(first.path), "; compare in a new folder")
    texts = [each.environment().get(VALIDATION_KEY) for each in (run, first)]
    if texts[0] != texts[1]:
        raise UserError(f"{run.path}: was validated on other texts or tasks than {first.path}; compare in a new folder")


def windows(results: Results, loss: str = "val_loss") -> np.ndarray:
    """Return (n_seeds, n_windows) held-out losses; (n_seeds, 0) if a run lacks this one. loss: one of OF_HELD_OUT."""
    found = [OF_HELD_OUT[loss].windows(result) for result in results]
    return np.array(found if all(found) else [[]] * len(found), dtype=np.float64)


def variant_of(name: str, own: SeedRuns, baseline: SeedRuns | None) -> Variant:
    """Return the runs of one recipe over its seeds as one record, compared with a baseline's if there is one.

    The comparison consists of the paired differences of the losses, the verdict on the held-out loss, the
    ratios of the costs and, from the loss curves, the tokens and FLOPs to equal loss. The baseline itself has no
    differences, and the verdict "baseline".
    """
    results, other = own.results, None if baseline is None else baseline.results
    estimates = {name: seed_interval(each.over_seeds(results)) for name, each in OF_RUNS.items()}
    fields: dict[str, Any] = {name: each for name, each in estimates.items() if name in Variant.model_fields}
    of_losses = {} if other is None or own is baseline else _differences(results, other)
    difference = of_losses.pop("val_loss", None)
    unlike = () if baseline is None else differences(baseline.settings, own.settings)
    pair = (own.curves, () if baseline is None else baseline.curves)
    suffice = bool(own.curves) and validations_of([*pair[0], *pair[1]]).suffice
    judged: Verdict | None = "baseline"
    if own is not baseline:
        judged = verdict(difference) if difference else "cannot tell" if baseline else None
    return Variant(
        name=name,
        state="finished",
        runs=own.paths,
        **fields,
        shares_machine=any(is_shared(result.other_cpu_share) for result in results),
        doubts=[f"seed {result.seed}: {doubt}" for result in results for doubt in result.doubts],
        difference=difference,
        differences=of_losses,
        differs_in={key: [value, expected] for key, expected, value in unlike},
        gap=gaps(*pair) if difference else {},
        tokens_ratio=tokens_ratios(*pair) if difference and suffice else {},
        at_equal_loss=equal_losses(*pair) if difference and suffice else {},
        validated=_validated(results, None if own is baseline else other),
        verdict=judged,
        cost=results[0].cost,
        ratio={} if other is None else _ratios(results, other),
        measured={name: each for name, each in estimates.items() if name not in fields and each.mean is not None},
    )


def _differences(results: Results, baseline: Results) -> dict[str, Estimate]:
    """Return name of a loss that both have -> its paired difference; the training loss has no windows, only seeds."""
    pairs = {name: (windows(results, name), windows(baseline, name)) for name in OF_HELD_OUT}
    found = {name: paired_mean(own - other) for name, (own, other) in pairs.items() if own.size and other.size}
    own, other = (np.array(OF_RUNS["train_loss"].over_seeds(each)) for each in (results, baseline))
    by_seed = (own - other).tolist()
    return found | ({"train_loss": seed_interval(by_seed)} if np.isfinite(by_seed).all() else {})


def _ratios(results: Results, baseline: Results) -> dict[str, float | None]:
    """Return costs and measured quantities, each divided by the baseline's."""
    ratio: dict[str, float | None] = dict(ratios(results[0].cost, baseline[0].cost))
    for quantity in OF_RUNS.values():
        own, other = (float(np.mean(quantity.over_seeds(each))) for each in (results, baseline))
        if quantity.has_ratio and math.isfinite(own / other):
            ratio[quantity.name] = own / other
    return ratio


def _validated(results: Results, baseline: Results | None) -> dict[str, ValidationScore]:
    """Return TEXT.loss and TASK.METRIC -> mean over seeds and difference to the baseline, of what every run has.

    Losses are paired by seed and window, scores by seed alone. baseline: None of the baseline itself.
    """
    found, both, is_baseline = {}, (results, baseline or ()), baseline is None
    for name in _common_names([result.val_texts or {} for each in both for result in each]):
        own, other = (
            np.array([(result.val_texts or {})[name].window_losses for result in each], dtype=np.float64)
            for each in both
        )  # (n_seeds, n_windows)
        if own.size and (is_baseline or other.size):  # files that another program wrote may lack the windows
            difference = None if is_baseline else paired_mean(own - other)
            value = seed_interval(own.mean(axis=1).tolist())
            found[f"{name}.loss"] = ValidationScore(value=value, difference=difference)
    for name in _common_names([result.val_tasks or {} for each in both for result in each]):
        for metric in OF_TASKS:
            scores = [[(result.val_tasks or {})[name].metrics.get(metric) for result in each] for each in both]
            own, other = ([finite(score and score.value) for score in each] for each in scores)
            if np.isfinite([*own, *other]).all():
                by_seed = [] if is_baseline else [a - b for a, b in zip(own, other, strict=True)]
                difference = seed_interval(by_seed) if by_seed else None
                found[f"{name}.{metric}"] = ValidationScore(value=seed_interval(own), difference=difference)
    return found


def _common_names(found: Sequence[Mapping[str, object]]) -> list[str]:
    first, *others = found
    return [name for name in first if all(name in other for other in others)]
