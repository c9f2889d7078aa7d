"""Metrics of runs as curves: aligned over seeds, thinned to what a figure can show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from widthwise.records.record import finite
from widthwise.records.run import Run

N_POINTS = 240
"""A curve with more points is averaged in groups: a screen shows no more, and the file stays small."""


@dataclass(frozen=True)
class Curve:
    """y over x, both (n_points,), x ascending; y is NaN where a value was not finite."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]

    @property
    def is_empty(self) -> bool:
        return not np.isfinite(self.y).any()

    @property
    def last(self) -> float:
        """The last finite value; NaN for an empty curve."""
        values = self.y[np.isfinite(self.y)]
        return float(values[-1]) if len(values) else float("nan")


def by_step(run: Run, event: str, key: str) -> Curve:
    """One metric of one run over the step. Records without the key are left out; the last record of a step counts."""
    return _curve(run, event, lambda record: record.get(key))


def by_name(run: Run, key: str, entry: str) -> dict[str, Curve]:
    """Text or task -> one of its numbers, over the step of validations. key: of a record, where they stand by name."""
    names = dict.fromkeys(name for record in run.metrics for name in record.get(key) or ())
    curves = {
        name: _curve(run, "validation", lambda record, name=name: ((record.get(key) or {}).get(name) or {}).get(entry))
        for name in names
    }
    return {name: curve for name, curve in curves.items() if not curve.is_empty}


def further_heads(run: Run) -> list[Curve]:
    """Held-out loss over the step of each further head of multi-token prediction, nearest first."""
    counts = [len(record.get("mtp_losses") or ()) for record in run.metrics if record.get("event") == "validation"]

    def loss_of(depth: int) -> Callable[[Mapping[str, Any]], Any]:
        return lambda record: next(iter((record.get("mtp_losses") or [])[depth : depth + 1]), None)

    return [_curve(run, "validation", loss_of(depth)) for depth in range(max(counts, default=0))]


def of_layer(run: Run, event: str, key: str, layer: int) -> Curve:
    """One entry of a list with one per layer, over the step. layer: from 1."""
    return _curve(run, event, lambda record: next(iter((record.get(key) or [])[layer - 1 : layer]), None))


def _curve(run: Run, event: str, value_of: Callable[[Mapping[str, Any]], Any]) -> Curve:
    """value_of: takes the value from a record; None leaves the record out."""
    found = [(record["step"], value_of(record)) for record in run.metrics if record.get("event") == event]
    values = {step: finite(value) for step, value in found if value is not None}
    steps = sorted(values)
    return Curve(np.array(steps, dtype=float), np.array([values[step] for step in steps], dtype=float))


def mean_over_seeds(curves: Sequence[Curve]) -> Curve:
    """The mean at the steps that every non-empty curve has; NaN where one of them is not finite."""
    filled = [curve for curve in curves if len(curve.x)]
    if not filled:
        return Curve(np.array([]), np.array([]))
    steps = set(filled[0].x).intersection(*(curve.x for curve in filled[1:]))
    common = np.array(sorted(steps))
    values = np.array([curve.y[np.isin(curve.x, common)] for curve in filled])
    return Curve(common, values.mean(axis=0))


def of_seeds(runs: Sequence[Run]) -> list[str]:
    """What the curves of single runs are called."""
    return ["an unfinished run" if run.result is None else f"seed {run.result.seed}" for run in runs]


def against_flops(curve: Curve, run: Run, flops_per_token: float) -> Curve:
    """Steps become training FLOPs. Tokens between two records are interpolated; steps beyond the last are left out.

    flops_per_token: of a run whose model stays the same; where it grew, the result says what the run had cost by then.
    """
    tokens = by_step(run, "train", "tokens")
    steps, counts = [0.0, *tokens.x], [0.0, *tokens.y]
    if run.result and run.result.steps and run.result.tokens and run.result.steps > steps[-1]:
        steps, counts = [*steps, float(run.result.steps)], [*counts, float(run.result.tokens)]
    known = curve.x <= steps[-1]
    return Curve(_training_flops(np.interp(curve.x[known], steps, counts), run, flops_per_token), curve.y[known])


def _training_flops(tokens: NDArray[np.float64], run: Run, flops_per_token: float) -> NDArray[np.float64]:
    """Training FLOPs of a run up to each of these token counts."""
    result = run.result
    if result is None:
        return tokens * flops_per_token
    ends = [(float(growth.tokens), finite(growth.training_flops)) for growth in result.growth]
    # A run that began where another one stood has a record of what that had cost.
    said = [record for record in run.metrics if record.get("training_flops") is not None]
    ends += [(finite(record["tokens"]), finite(record["training_flops"])) for record in said]
    if not ends:
        return tokens * flops_per_token
    n_tokens, flops = zip((0.0, 0.0), *sorted(ends), (finite(result.tokens), finite(result.training_flops)))
    return np.interp(tokens, n_tokens, flops)


def thin(curve: Curve, n_points: int = N_POINTS) -> Curve:
    """Averages neighbours so that at most `n_points` remain; a group with a value that is not finite becomes NaN."""
    if len(curve.x) <= n_points:
        return curve
    groups = np.array_split(np.arange(len(curve.x)), n_points)
    return Curve(
        np.array([curve.x[group].mean() for group in groups]), np.array([curve.y[group].mean() for group in groups])
    )
