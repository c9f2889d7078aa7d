"""Matched recipes x seeds -> one comparison."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from widthwise.experiments.plan import Plan
from widthwise.experiments.runs import CONFIDENCE, check_same_data, compared, plain, summary_of_runs, windows
from widthwise.experiments.sentences import difference_sentence, interval, seeds
from widthwise.experiments.statistics import TIE_MARGIN, Estimate
from widthwise.experiments.trend import trend_summary
from widthwise.files import write_atomic
from widthwise.run_dir import RunDir
from widthwise.runs.train import train_or_resume
from widthwise.training.observer import Observer
from widthwise.training.stopping import interruption_adds


def run_plan(plan: Plan, folder: Path, command: str, observer: Observer | None = None) -> dict[str, Any]:
    """Runs what is not finished, seed by seed so that every variant has a first result early; writes comparison.json.

    Returns the comparison. A run that fails stops the comparison; finished runs are kept and not repeated.
    Raises UserError if finished runs saw different data from the present, as after an upgrade of Python.
    """
    first = RunDir(folder / plan.run_path(plan.baseline, plan.seeds[0]))
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in plan.recipes}
    for seed in plan.seeds:
        for name in plan.recipes:
            run = RunDir(folder / plan.run_path(name, seed))
            with interruption_adds("the same compare command goes on with the comparison"):
                results[name].append(train_or_resume(plan.run_recipe(name, seed), run.path, observer))
            check_same_data(run, first)
    environment = first.environment()
    comparison = plain(summarise(plan, results, environment, command))
    write_atomic(folder / "comparison.json", json.dumps(comparison, indent=2) + "\n")
    return comparison


def summarise(
    plan: Plan, results: dict[str, list[dict[str, Any]]], environment: dict[str, Any], command: str
) -> dict[str, Any]:
    """The comparison as data. results: variant -> one result per seed, in the order of plan.seeds."""
    baseline = results[plan.baseline]
    variants = [
        compared(summary_of_runs(name, plan.seeds, results[name]), results[name], baseline) for name in plan.recipes
    ]
    trend = _trend(plan, results)
    sentences = [difference_sentence(variant, plan.baseline) for variant in variants if variant["difference"]]
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


def _trend(plan: Plan, results: dict[str, list[dict[str, Any]]]) -> dict[str, Any] | None:
    if plan.trend is None:
        return None
    values = plan.trend_values()
    return trend_summary(plan.trend.over, values, {name: windows(results[name]) for name in values}, CONFIDENCE)


TREND_PHRASES = {
    "better": "lowers the held-out loss by {size:.4f} nats",
    "worse": "raises the held-out loss by {size:.4f} nats",
    "tie": "changes the held-out loss by {mean:+.4f} nats, and the whole range surely by less than {margin}",
    "cannot tell": "changes the held-out loss by {mean:+.4f} nats, but {n} cannot tell that from luck",
    "no verdict": "changes the held-out loss by {mean:+.4f} nats: fewer than three seeds, so no verdict",
}


def _trend_sentence(trend: dict[str, Any]) -> str:
    slope, points = Estimate(**trend["slope"]), trend["points"]
    values = [point["value"] for point in points]
    phrase = TREND_PHRASES[trend["verdict"]].format(
        size=abs(slope.mean), mean=slope.mean, margin=TIE_MARGIN, n=seeds(len(slope.per_seed))
    )
    farthest = max(points, key=lambda point: abs(point["residual"]))
    fit = (
        f"R² is {trend['r_squared']:.4f}, and {farthest['variant']} lies {farthest['residual']:+.4f} nats off the line"
    )
    if math.isnan(trend["r_squared"]):
        fit = "all means are equal"
    return (
        f"Each doubling of {trend['over']}, from {min(values):,.7g} to {max(values):,.7g}, {phrase} "
        f"({interval(slope)}); {fit}."
    )
