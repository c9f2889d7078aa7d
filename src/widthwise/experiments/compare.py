"""Matched recipes x seeds -> one comparison."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.config_io import UserError
from widthwise.experiments.plan import Plan
from widthwise.experiments.statistics import TIE_MARGIN, Estimate, paired_difference, seed_interval, verdict
from widthwise.experiments.trend import trend_summary
from widthwise.files import write_atomic
from widthwise.run_dir import RunDir
from widthwise.shape.breakdown import ratios
from widthwise.training.data_identity import recorded_identity
from widthwise.training.observer import Observer
from widthwise.training.stopping import Interrupted
from widthwise.training.trainer import train_or_resume

CONFIDENCE = 0.95
METRICS = ("val_loss", "train_loss", "val_bits_per_byte", "tokens_per_second")
"""Numbers of a result that are averaged over seeds."""


def run_plan(plan: Plan, folder: Path, command: str, observer: Observer | None = None) -> dict[str, Any]:
    """Runs what has not finished, seed by seed so that every variant has its first early; writes comparison.json.

    Returns the comparison. A run that fails stops the comparison; what has finished is kept and is not run again.
    Raises UserError where finished runs saw other data than there are now, as after an upgrade of Python.
    """
    first = RunDir(folder / plan.run_path(plan.baseline, plan.seeds[0]))
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in plan.recipes}
    for seed in plan.seeds:
        for name in plan.recipes:
            run = RunDir(folder / plan.run_path(name, seed))
            try:
                results[name].append(train_or_resume(plan.run_recipe(name, seed), run.path, observer))
            except Interrupted as stopped:
                more = f"{stopped}, and the same compare command with the whole comparison"
                raise Interrupted(more, stopped.signal_number) from None
            _check_same_data(run, first)
    environment = first.environment()
    comparison = _plain(summarise(plan, results, environment, command))
    write_atomic(folder / "comparison.json", json.dumps(comparison, indent=2) + "\n")
    return comparison


def _check_same_data(run: RunDir, first: RunDir) -> None:
    own, expected = recorded_identity(run), recorded_identity(first)
    if own != expected:
        raise UserError(
            f"{run.path}: was trained on other data ({own}) than {first.path} ({expected}); compare in a new folder"
        )


def summarise(
    plan: Plan, results: dict[str, list[dict[str, Any]]], environment: dict[str, Any], command: str
) -> dict[str, Any]:
    """The comparison as data. results: variant -> one result a seed, in the order of plan.seeds."""
    baseline = results[plan.baseline]
    variants = [_variant(plan, name, results[name], baseline) for name in plan.recipes]
    trend = _trend(plan, results)
    sentences = [_sentence(variant, plan) for variant in variants if variant["difference"]]
    return {
        "title": plan.title,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "metric": "val_loss",
        "confidence": CONFIDENCE,
        "seeds": list(plan.seeds),
        "baseline": plan.baseline,
        "matched": plan.match,
        "sentence": "\n".join(sentences + ([_trend_sentence(trend)] if trend else [])),
        "environment": environment,
        "variants": variants,
        "trend": trend,
    }


def _variant(plan: Plan, name: str, results: list[dict[str, Any]], baseline: list[dict[str, Any]]) -> dict[str, Any]:
    estimates = {metric: seed_interval([result[metric] for result in results], CONFIDENCE) for metric in METRICS}
    is_baseline = name == plan.baseline
    difference = None if is_baseline else paired_difference(_windows(results), _windows(baseline), CONFIDENCE)
    ratio = ratios(results[0]["cost"], baseline[0]["cost"])
    ratio["training_flops"] = results[0]["pflops_days"] / baseline[0]["pflops_days"]
    base_rate = float(np.mean([result["tokens_per_second"] for result in baseline]))
    return {
        "name": name,
        "runs": [str(plan.run_path(name, seed)) for seed in plan.seeds],
        **{metric: vars(estimate) for metric, estimate in estimates.items()},
        "difference": difference and vars(difference),
        "verdict": verdict(difference) if difference else "baseline",
        "cost": results[0]["cost"],
        "ratio": {**ratio, "tokens_per_second": estimates["tokens_per_second"].mean / base_rate},
    }


def _windows(results: list[dict[str, Any]]) -> np.ndarray:
    """(n_seeds, n_windows) held-out losses."""
    return np.array([result["val_window_losses"] for result in results])


def _trend(plan: Plan, results: dict[str, list[dict[str, Any]]]) -> dict[str, Any] | None:
    if plan.trend is None:
        return None
    values = plan.trend_values()
    return trend_summary(plan.trend.over, values, {name: _windows(results[name]) for name in values}, CONFIDENCE)


PHRASES = {
    "better": "reaches a held-out loss {size:.4f} nats below {baseline}",
    "worse": "ends at a held-out loss {size:.4f} nats above {baseline}",
    "tie": "ties with {baseline}: its held-out loss differs by {mean:+.4f} nats",
    "cannot tell": "differs from {baseline} by {mean:+.4f} nats of held-out loss, but {n} cannot tell that from luck",
}


def _sentence(variant: dict[str, Any], plan: Plan) -> str:
    difference = Estimate(**variant["difference"])
    phrase = PHRASES[variant["verdict"]].format(
        size=abs(difference.mean), mean=difference.mean, baseline=plan.baseline, n=_seeds(len(difference.per_seed))
    )
    ratio = variant["ratio"]
    return (
        f"{variant['name']} {phrase} ({_interval(difference)}), at {ratio['params']:.3f} of the parameters, "
        f"{ratio['training_flops']:.3f} of the training FLOPs and {ratio['kv_bytes']:.3f} of the KV cache."
    )


TREND_PHRASES = {
    "better": "lowers the held-out loss by {size:.4f} nats",
    "worse": "raises the held-out loss by {size:.4f} nats",
    "tie": "changes the held-out loss by {mean:+.4f} nats, and the whole range surely by less than {margin}",
    "cannot tell": "changes the held-out loss by {mean:+.4f} nats, but {n} cannot tell that from luck",
}


def _trend_sentence(trend: dict[str, Any]) -> str:
    slope, points = Estimate(**trend["slope"]), trend["points"]
    values = [point["value"] for point in points]
    phrase = TREND_PHRASES[trend["verdict"]].format(
        size=abs(slope.mean), mean=slope.mean, margin=TIE_MARGIN, n=_seeds(len(slope.per_seed))
    )
    farthest = max(points, key=lambda point: abs(point["residual"]))
    fit = (
        f"R² is {trend['r_squared']:.4f}, and {farthest['variant']} lies {farthest['residual']:+.4f} nats off the line"
    )
    if math.isnan(trend["r_squared"]):
        fit = "all means are equal"
    return (
        f"Each doubling of {trend['over']}, from {min(values):,.7g} to {max(values):,.7g}, {phrase} "
        f"({_interval(slope)}); {fit}."
    )


def _interval(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return "one seed gives no interval"
    return f"{CONFIDENCE:.0%} interval {estimate.low:+.4f} to {estimate.high:+.4f}"


def _seeds(n: int) -> str:
    return {1: "one seed", 2: "two seeds"}.get(n, f"{n} seeds")


def _plain(value: Any) -> Any:
    """JSON has no nan: an interval that does not exist is null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
