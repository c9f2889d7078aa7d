"""The finished runs of one recipe over its seeds as one record, compared with a baseline's."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.config_io import differences
from widthwise.data.identity import VALIDATION_KEY, check_data_of_run, recorded_identity
from widthwise.evaluation.estimate import paired_mean, seed_interval, verdict
from widthwise.experiments.equal_loss import LossCurve, LossCurves, equal_losses, gaps, tokens_ratios, validations_of
from widthwise.mistakes import UserError
from widthwise.recipe.inspection import ratios
from widthwise.records.estimate import UNCLEAR, Estimate, Verdict
from widthwise.records.outcome import ValidationScore, Variant
from widthwise.records.quantities import HELD_OUT_LOSSES, RUN_QUANTITIES
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir
from widthwise.runs.environment import is_shared
from widthwise.yaml_io import parse_yaml

ARRIVAL_SECONDS = 60.0
"""Longest delay until a result of another machine appears on a network file system."""
SETTINGS = ("optimizer", "schedule", "train", "data")
"""Sections of a recipe, apart from the model, in which a variant may differ from its baseline."""

SeedResults = Sequence[RunResult]
"""One result per seed, in the order of the seeds."""


@dataclass(frozen=True)
class SeedRuns:
    """The finished runs of one recipe, one for each seed."""

    paths: Sequence[str]
    """Relative to the folder of the experiment."""
    results: SeedResults
    curves: LossCurves = ()
    """The validations of these runs; empty to leave out statements on equal loss."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The sections SETTINGS of the resolved recipe, as plain data without the seed."""

    @classmethod
    def read(cls, folder: Path, paths: Sequence[str]) -> "SeedRuns":
        """Read finished runs in the folder of their experiment."""
        runs = [RunDir(folder / path) for path in paths]
        recipe = parse_yaml(runs[0].config_yaml(), f"{runs[0].path}/config.yaml")
        settings = {name: recipe[name] for name in SETTINGS} | {"train": {**recipe["train"], "seed": None}}
        curves = [LossCurve.of(run.metrics()) for run in runs]
        return cls(paths, [load_result(run) for run in runs], curves, settings)


def load_result(run: RunDir) -> RunResult:
    """Return the result of a finished run. The files of a run on another machine may arrive one by one.

    Raises UserError if the result is still incomplete after ARRIVAL_SECONDS.
    """
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while True:
        try:
            if (result := run.result()) is not None:
                return result
            missing = UserError(f"{run.path}: has finished, but its folder has no result.json")
        except UserError as error:
            missing = error
        if time.monotonic() > deadline:
            raise missing
        time.sleep(0.5)


def check_same_data(run: RunDir, first: RunDir) -> None:
    """Raise UserError if two runs read different data, for example after an upgrade of Python."""
    check_data_of_run(run, recorded_identity(first), str(first.path), "; compare in a new folder")
    if run.environment().get(VALIDATION_KEY) != first.environment().get(VALIDATION_KEY):
        raise UserError(f"{run.path}: was validated on other texts or tasks than {first.path}; compare in a new folder")


def windows(results: SeedResults, loss: str = "val_loss") -> np.ndarray:
    """Return held-out losses (n_seeds, n_windows), or (n_seeds, 0) without them. loss: one of HELD_OUT_LOSSES."""
    losses = [HELD_OUT_LOSSES[loss].windows(result) for result in results]
    if not all(losses):
        return np.empty((len(results), 0))
    return np.array(losses, dtype=np.float64)


def variant_of(name: str, runs: SeedRuns, baseline: SeedRuns | None) -> Variant:
    """Return the runs of one recipe over its seeds as one record, compared with a baseline if there is one.

    The comparison consists of the paired differences of the losses, the verdict on the held-out loss, the
    ratios of the costs and, from the loss curves, the tokens and FLOPs to equal loss. The baseline itself has no
    differences, and the verdict "baseline".
    """
    results = runs.results
    estimates = {quantity.name: seed_interval(quantity.over_seeds(results)) for quantity in RUN_QUANTITIES.values()}
    fields: dict[str, Any] = {key: estimate for key, estimate in estimates.items() if key in Variant.model_fields}
    compared_results = None if baseline is None or runs is baseline else baseline.results
    loss_differences = dict[str, Estimate]()
    difference = None
    judged: Verdict | None = None if baseline is None else "baseline"
    fields["ratio"] = {}
    if baseline is not None:
        fields["ratio"] = _ratios(results, baseline.results)
        unequal = differences(baseline.settings, runs.settings)
        fields["differs_in"] = {key: [value, expected] for key, expected, value in unequal}
    if compared_results is not None:
        loss_differences = _differences(results, compared_results)
        difference = loss_differences.pop("val_loss", None)
        judged = UNCLEAR if difference is None else verdict(difference)
    if baseline is not None and difference is not None:
        fields["gap"] = gaps(runs.curves, baseline.curves)
        if runs.curves and validations_of([*runs.curves, *baseline.curves]).suffice:
            fields["tokens_ratio"] = tokens_ratios(runs.curves, baseline.curves)
            fields["at_equal_loss"] = equal_losses(runs.curves, baseline.curves)
    return Variant(
        name=name,
        state="finished",
        runs=runs.paths,
        shares_machine=any(is_shared(result.other_cpu_share) for result in results),
        doubts=[f"seed {result.seed}: {doubt}" for result in results for doubt in result.doubts],
        difference=difference,
        differences=loss_differences,
        validated=_validated(results, compared_results),
        verdict=judged,
        cost=results[0].cost,
        measured={key: value for key, value in estimates.items() if key not in fields and value.mean is not None},
        **fields,
    )


def _differences(results: SeedResults, baseline: SeedResults) -> dict[str, Estimate]:
    """Return a dict from loss to its paired difference. The training loss has no windows and is paired by seed."""
    by_loss = dict[str, Estimate]()
    for name in HELD_OUT_LOSSES:
        losses = windows(results, name)
        baseline_losses = windows(baseline, name)
        if losses.size and baseline_losses.size:
            by_loss[name] = paired_mean(losses - baseline_losses)
    train_loss = RUN_QUANTITIES["train_loss"]
    by_seed = (np.array(train_loss.over_seeds(results)) - np.array(train_loss.over_seeds(baseline))).tolist()
    if np.isfinite(by_seed).all():
        by_loss["train_loss"] = seed_interval(by_seed)
    return by_loss


def _ratios(results: SeedResults, baseline: SeedResults) -> dict[str, float | None]:
    """Return a dict from quantity to its value divided by the baseline's, for costs and measured quantities."""
    by_quantity: dict[str, float | None] = dict(ratios(results[0].cost, baseline[0].cost))
    for quantity in RUN_QUANTITIES.values():
        ratio = float(np.mean(quantity.over_seeds(results))) / float(np.mean(quantity.over_seeds(baseline)))
        if quantity.has_ratio and math.isfinite(ratio):
            by_quantity[quantity.name] = ratio
    return by_quantity


def _validated(results: SeedResults, baseline: SeedResults | None) -> dict[str, ValidationScore]:
    """Return a dict from TEXT.loss and TASK.METRIC to the mean over seeds and the difference to the baseline.

    Only texts and tasks of all runs are included. Losses are paired by seed and window, scores by seed. baseline: None
    for the baseline itself.
    """
    scores = dict[str, ValidationScore]()
    pair = (results, baseline or ())
    for name in _common_names([result.val_texts or {} for seeds in pair for result in seeds]):
        losses, baseline_losses = (
            np.array([(result.val_texts or {})[name].window_losses for result in seeds], dtype=np.float64)
            for seeds in pair
        )  # (n_seeds, n_windows)
        if losses.size and (baseline is None or baseline_losses.size):  # files of other programs may lack windows
            difference = None if baseline is None else paired_mean(losses - baseline_losses)
            value = seed_interval(losses.mean(axis=1).tolist())
            scores[f"{name}.loss"] = ValidationScore(value=value, difference=difference)
    for name in _common_names([result.val_tasks or {} for seeds in pair for result in seeds]):
        for metric in ("acc", "acc_norm", "bits_per_byte"):  # if the task has them
            metrics = [[(result.val_tasks or {})[name].metrics.get(metric) for result in seeds] for seeds in pair]
            values, baseline_values = ([finite(score and score.value) for score in seeds] for seeds in metrics)
            if np.isfinite([*values, *baseline_values]).all():
                difference = None
                if baseline is not None:
                    difference = seed_interval([a - b for a, b in zip(values, baseline_values, strict=True)])
                scores[f"{name}.{metric}"] = ValidationScore(value=seed_interval(values), difference=difference)
    return scores


def _common_names(scores: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names that all runs have. scores: by name, of each run."""
    return [name for name in scores[0] if all(name in run_scores for run_scores in scores[1:])]
