"""The runs of a recipe over seeds, and their summary."""

import math
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError, checked_copy
from widthwise.experiments.equal_loss import Courses, equal_losses, gaps, tokens_ratios, validations_of
from widthwise.experiments.statistics import paired_difference, seed_interval, verdict
from widthwise.experiments.validated import validated
from widthwise.recipe.recipe import Recipe
from widthwise.records.comparison import Variant
from widthwise.records.estimate import CONFIDENCE, Estimate, Verdict
from widthwise.records.quantities import OF_HELD_OUT, OF_RUNS
from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import VALIDATION_KEY, recorded_identity
from widthwise.runs.environment import is_shared
from widthwise.shape.breakdown import ratios

ALLOWED_IN_NAMES = frozenset(string.ascii_letters + string.digits + "._+-")
ARRIVAL_SECONDS = 60.0
"""How long a result written by another machine may take to appear on a network file system."""

Results = Sequence[RunResult]
"""One result per seed, in the order of the seeds."""


@dataclass(frozen=True)
class Trained:
    """The finished runs of one recipe, one for each seed."""

    paths: Sequence[str]
    """Inside the folder of the experiment."""
    results: Results
    courses: Courses = ()
    """The validations of these runs; empty if nothing is to be said of equal losses."""


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """One run. The seed sets initial weights and data order: runs of one seed see the same text in one order."""
    return checked_copy(recipe, "recipe", train=checked_copy(recipe.train, "train", seed=seed))


def run_path(name: str, seed: int) -> Path:
    """Path of a run inside the folder of its experiment."""
    return Path("runs") / f"{name}-seed{seed}"


def run_paths(name: str, seeds: Sequence[int]) -> list[str]:
    """The same for each seed, as records have it."""
    return [str(run_path(name, seed)) for seed in seeds]


def arrived(run: RunDir) -> RunResult:
    """The result of a run that has finished, perhaps on another machine, whose files arrive one by one.

    Raises UserError if it is not whole after ARRIVAL_SECONDS.
    """
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while True:
        try:
            if (result := run.result()) is not None:
                return result
            missing = UserError(f"{run.path}: the study says that it has finished, but it holds no result.json")
        except UserError as error:
            missing = error
        if time.monotonic() > deadline:
            raise missing
        time.sleep(0.5)


def check_same_data(run: RunDir, first: RunDir) -> None:
    """Raises UserError if two runs saw different data, as after an upgrade of Python."""
    own, expected = recorded_identity(run), recorded_identity(first)
    if own != expected:
        found, other = own.compared(expected)
        raise UserError(
            f"{run.path}: was trained on other data ({found}) than {first.path} ({other}); compare in a new folder"
        )
    texts = [each.environment().get(VALIDATION_KEY) for each in (run, first)]
    if texts[0] != texts[1]:
        raise UserError(f"{run.path}: was validated on other texts or tasks than {first.path}; compare in a new folder")


def windows(results: Results, loss: str = "val_loss") -> np.ndarray:
    """(n_seeds, n_windows) losses on held-out text; (n_seeds, 0) if a run lacks this one. loss: one of OF_HELD_OUT."""
    found = [OF_HELD_OUT[loss].windows(result) for result in results]
    return np.array(found if all(found) else [[]] * len(found), dtype=np.float64)


def variant_of(name: str, own: Trained, baseline: Trained | None) -> Variant:
    """The runs of one recipe over its seeds as one record, compared with those of a baseline if there is one.

    The comparison consists of the paired differences of the losses, the verdict on that of the held-out loss, the
    ratios of the costs and, from the courses of the runs, what both need for the same loss. The baseline itself has no
    differences, and the verdict "baseline".
    """
    results, other = own.results, None if baseline is None else baseline.results
    estimates = {name: seed_interval(each.over_seeds(results), CONFIDENCE) for name, each in OF_RUNS.items()}
    fields = estimates.keys() & Variant.model_fields
    differences = {} if other is None or own is baseline else _differences(results, other)
    difference = differences.pop("val_loss", None)
    pair = (own.courses, () if baseline is None else baseline.courses, CONFIDENCE)
    suffice = bool(own.courses) and validations_of([*pair[0], *pair[1]]).suffice
    return Variant(
        name=name,
        runs=own.paths,
        **{name: estimates[name] for name in fields},
        shares_machine=any(is_shared(result.other_cpu_share) for result in results),
        doubts=[f"seed {result.seed}: {doubt}" for result in results for doubt in result.doubts],
        difference=difference,
        differences=differences,
        gap=gaps(*pair) if difference else {},
        tokens_ratio=tokens_ratios(*pair) if difference and suffice else {},
        at_equal_loss=equal_losses(*pair) if difference and suffice else {},
        validated=validated(results, None if own is baseline else other, CONFIDENCE),
        verdict="baseline" if own is baseline else _verdict(difference, baseline is not None),
        cost=results[0].cost,
        ratio={} if other is None else _ratios(results, other),
        measured={name: each for name, each in estimates.items() if name not in fields and each.mean is not None},
    )


def _verdict(difference: Estimate | None, has_baseline: bool) -> Verdict | None:
    return verdict(difference) if difference else "cannot tell" if has_baseline else None


def _differences(results: Results, baseline: Results) -> dict[str, Estimate]:
    """Name of a loss that both have -> its paired difference; the training loss has no windows, only seeds."""
    pairs = {name: (windows(results, name), windows(baseline, name)) for name in OF_HELD_OUT}
    found = {
        name: paired_difference(own, other, CONFIDENCE)
        for name, (own, other) in pairs.items()
        if own.size and other.size
    }
    own, other = (np.array(OF_RUNS["train_loss"].over_seeds(each)) for each in (results, baseline))
    by_seed = (own - other).tolist()
    return found | ({"train_loss": seed_interval(by_seed, CONFIDENCE)} if np.isfinite(by_seed).all() else {})


def _ratios(results: Results, baseline: Results) -> dict[str, float | None]:
    """Costs and measured quantities, each divided by the baseline's."""
    ratio: dict[str, float | None] = dict(ratios(results[0].cost, baseline[0].cost))
    for quantity in OF_RUNS.values():
        own, other = (float(np.mean(quantity.over_seeds(each))) for each in (results, baseline))
        if quantity.has_ratio and math.isfinite(own / other):
            ratio[quantity.name] = own / other
    return ratio
