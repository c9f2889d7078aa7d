"""The runs of a recipe over seeds, and their summary."""

import math
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.config_io import UserError, checked_copy
from widthwise.experiments.statistics import paired_difference, seed_interval, verdict
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import recorded_identity
from widthwise.runs.other_work import is_shared
from widthwise.shape.breakdown import ratios

ALLOWED_IN_NAMES = frozenset(string.ascii_letters + string.digits + "._+-")
CONFIDENCE = 0.95
METRICS = ("val_loss", "train_loss", "val_bits_per_byte", "tokens_per_second")
"""Numbers of a result that are averaged over seeds."""

Results = Sequence[dict[str, Any]]
"""One result per seed, in the order of the seeds."""


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """One run. The seed sets initial weights and data order: runs of one seed see the same text in one order."""
    return checked_copy(recipe, "recipe", train=checked_copy(recipe.train, "train", seed=seed))


def run_path(name: str, seed: int) -> Path:
    """Path of a run inside the folder of its experiment."""
    return Path("runs") / f"{name}-seed{seed}"


def check_same_data(run: RunDir, first: RunDir) -> None:
    """Raises UserError if two runs saw different data, as after an upgrade of Python."""
    own, expected = recorded_identity(run), recorded_identity(first)
    if own != expected:
        raise UserError(
            f"{run.path}: was trained on other data ({own}) than {first.path} ({expected}); compare in a new folder"
        )


def windows(results: Results) -> np.ndarray:
    """(n_seeds, n_windows) held-out losses."""
    return np.array([result["val_window_losses"] for result in results])


def summary_of_runs(name: str, seeds: Sequence[int], results: Results) -> dict[str, Any]:
    """Summary of the runs of one recipe on its own: the loss and its interval, rate and cost."""
    return {
        "name": name,
        "runs": [str(run_path(name, seed)) for seed in seeds],
        **{metric: vars(seed_interval([result[metric] for result in results], CONFIDENCE)) for metric in METRICS},
        "shares_machine": any(is_shared(result.get("other_cpu_share")) for result in results),
        "difference": None,
        "verdict": None,
        "cost": results[0]["cost"],
        "ratio": {},
    }


def compared(summary: dict[str, Any], results: Results, baseline: Results) -> dict[str, Any]:
    """A summary compared with a baseline: the paired difference of losses, its verdict, and the ratios of costs.

    The baseline itself has no difference, and the verdict "baseline".
    """
    difference = None
    if results is not baseline:
        difference = paired_difference(windows(results), windows(baseline), CONFIDENCE)
    ratio = ratios(results[0]["cost"], baseline[0]["cost"])
    ratio["training_flops"] = results[0]["pflops_days"] / baseline[0]["pflops_days"]
    base_rate = float(np.mean([result["tokens_per_second"] for result in baseline]))
    return summary | {
        "difference": difference and vars(difference),
        "verdict": verdict(difference) if difference else "baseline",
        "ratio": {**ratio, "tokens_per_second": summary["tokens_per_second"]["mean"] / base_rate},
    }


def plain(value: Any) -> Any:
    """The value with nan replaced by None, because JSON has no nan: an interval that does not exist is null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
