"""Matched recipes x seeds -> one comparison."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from widthwise.experiments.plan import ComparisonPlan
from widthwise.experiments.runs import CONFIDENCE, Results, check_same_data, variant_of, windows
from widthwise.experiments.sentences import difference_sentence, interval, seeds
from widthwise.experiments.trend import fit_trend
from widthwise.records.comparison import Comparison, Trend
from widthwise.records.estimate import NO_VERDICT, TIE_MARGIN
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir
from widthwise.runs.train import train_or_resume
from widthwise.training.observer import Observer
from widthwise.training.stopping import interruption_adds


def run_plan(plan: ComparisonPlan, folder: Path, command: str, observer: Observer | None = None) -> Comparison:
    """Runs what is not finished, seed by seed so that every variant has a first result early; writes comparison.json.

    Returns the comparison. A run that fails stops the comparison; finished runs are kept and not repeated.
    Raises UserError if finished runs saw different data from the present, as after an upgrade of Python.
    """
    first = RunDir(folder / plan.run_path(plan.baseline, plan.seeds[0]))
    results: dict[str, list[RunResult]] = {name: [] for name in plan.recipes}
    for seed in plan.seeds:
        for name in plan.recipes:
            run = RunDir(folder / plan.run_path(name, seed))
            with interruption_adds("the same compare command goes on with the comparison"):
                results[name].append(train_or_resume(plan.run_recipe(name, seed), run.path, observer))
            check_same_data(run, first)
    comparison = summarise(plan, results, first.environment(), command)
    comparison.write(folder)
    return comparison


def summarise(
    plan: ComparisonPlan, results: Mapping[str, Results], environment: dict[str, Any], command: str
) -> Comparison:
    """The comparison as a record. results: variant -> one result per seed, in the order of plan.seeds."""
    baseline = results[plan.baseline]
    variants = [variant_of(name, plan.seeds, results[name], baseline) for name in plan.recipes]
    trend = _trend(plan, results)
    sentences = [
        difference_sentence(variant, variant.difference, plan.baseline) for variant in variants if variant.difference
    ]
    return Comparison(
        title=plan.title,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        metric="val_loss",
        confidence=CONFIDENCE,
        seeds=list(plan.seeds),
        baseline=plan.baseline,
        matched=plan.match,
        sentence="\n".join(sentences + ([_trend_sentence(trend)] if trend else [])),
        environment=environment,
        variants=variants,
        trend=trend,
    )


def _trend(plan: ComparisonPlan, results: Mapping[str, Results]) -> Trend | None:
    if plan.trend is None:
        return None
    values = plan.trend_values()
    return fit_trend(plan.trend.over, values, {name: windows(results[name]) for name in values}, CONFIDENCE)


TREND_PHRASES = {
    "better": "lowers the held-out loss by {size:.4f} nats",
    "worse": "raises the held-out loss by {size:.4f} nats",
    "tie": "changes the held-out loss by {mean:+.4f} nats, and the whole range surely by less than {margin}",
    "cannot tell": "changes the held-out loss by {mean:+.4f} nats, but {n} cannot tell that from luck",
    "no verdict": f"changes the held-out loss by {{mean:+.4f}} nats: {NO_VERDICT}",
}


def _trend_sentence(trend: Trend) -> str:
    slope, values = finite(trend.slope.mean), [point.value for point in trend.points]
    phrase = TREND_PHRASES[trend.verdict].format(
        size=abs(slope), mean=slope, margin=TIE_MARGIN, n=seeds(len(trend.slope.per_seed))
    )
    farthest = max(trend.points, key=lambda point: abs(finite(point.residual)))
    fit = "all means are equal"
    if trend.r_squared is not None:
        fit = f"R² is {trend.r_squared:.4f}, and {farthest.variant} lies {farthest.residual:+.4f} nats off the line"
    return (
        f"Each doubling of {trend.over}, from {min(values):,.7g} to {max(values):,.7g}, {phrase} "
        f"({interval(trend.slope)}); {fit}."
    )
