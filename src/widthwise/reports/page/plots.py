"""Metrics of runs as curves, aligned over seeds and thinned to what a figure can show; and how figures are laid out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from numpy.typing import NDArray

from widthwise.records.estimate import Estimate
from widthwise.records.record import finite
from widthwise.records.run import Run
from widthwise.reports.page.formats import shorten, si
from widthwise.reports.page.inline import named
from widthwise.reports.page.svg import CARD, MUTED, Style, draw, line_legend
from widthwise.reports.page.ticks import number_axis

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


INCHES = (4.2, 2.9)
"""Width and height of most figures. All have one width or nearly, so that their letters have one size."""
SEED_WIDTH, SEED_ALPHA = 0.9, 0.65
"""Width and opacity of the thin lines of single seeds: enough of their colour to tell the variants apart."""


@dataclass(frozen=True)
class Bundle:
    """The curves of one variant: a thin line per seed and their mean."""

    name: str
    style: Style
    seeds: Sequence[Curve]
    mean: Curve
    of_seeds: Sequence[str] = ()
    """What the thin lines are called, in their order; by default seeds without their numbers."""
    of_mean: str = ""
    """What the strong line is called; by default their mean."""


def curve_figure(
    key: str,
    bundles: Sequence[Bundle],
    x_label: str,
    y_label: str,
    crop: bool = False,
    growths: Sequence[float] = (),
) -> Markup | None:
    """Curves over what is counted, or None where none has a value. `crop` lets the first steep tenth run off the top.

    growths: where on the x axis models grew, which dashed lines mark.
    """
    drawn = [bundle for bundle in bundles if not all(curve.is_empty for curve in bundle.seeds)]
    if not drawn:
        return None
    last = "; ".join(f"{shorten(bundle.name, 40)} {si(bundle.mean.last)}" for bundle in drawn)

    def paint(axes: Axes) -> None:
        for x in growths:
            axes.axvline(x, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        for bundle in drawn:
            _paint_bundle(axes, bundle)
        if crop:
            _crop_to_the_late_part(axes, [curve for bundle in drawn for curve in bundle.seeds])
        label_axes(axes, x_label, y_label, whole=True)

    label = f"{y_label} over {x_label}. Last mean value of each line: {last}."
    if growths:
        label += f" A model grew at {', '.join(map(si, growths))}."
    legend = line_legend({bundle.name: bundle.style for bundle in drawn})
    return draw(key, label, INCHES, paint, legend)


def _paint_bundle(axes: Axes, bundle: Bundle) -> None:
    style, n_seeds = bundle.style, len(bundle.seeds)
    if n_seeds > 1:
        for curve, name in zip(bundle.seeds, bundle.of_seeds or ["a single seed"] * n_seeds):
            label, shown = named(bundle.name, name, *_thinned(curve)), thin(curve)
            axes.plot(shown.x, shown.y, color=style.colour, linewidth=SEED_WIDTH, alpha=SEED_ALPHA, label=label)
    mean = thin(bundle.mean)
    of_mean = () if n_seeds == 1 else (bundle.of_mean or f"mean of {n_seeds}",)
    n_marks = max(1, math.ceil(len(mean.x) / 8))
    label = named(bundle.name, *of_mean, *_thinned(bundle.mean))
    axes.plot(mean.x, mean.y, markevery=n_marks, label=label, **style.line)


def _thinned(curve: Curve) -> list[str]:
    """A word for numbers that are means of neighbours."""
    n_each = math.ceil(len(curve.x) / N_POINTS)
    return [f"mean of {n_each} neighbouring values"] if n_each > 1 else []


def _crop_to_the_late_part(axes: Axes, curves: Sequence[Curve]) -> None:
    end = max((curve.x[-1] for curve in curves if len(curve.x)), default=0.0)
    late = np.concatenate([curve.y[curve.x >= 0.1 * end] for curve in curves])
    late = late[np.isfinite(late)]
    if len(late) and late.max() > late.min():
        margin = 0.06 * (late.max() - late.min())
        axes.set_ylim(late.min() - margin, late.max() + margin)


def label_axes(axes: Axes, x_label: str, y_label: str, whole: bool = False) -> None:
    """Titles, a few round numbers on either axis, and lines across. whole: what x counts has no fractions."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    number_axis(axes.xaxis, whole=whole)
    number_axis(axes.yaxis, 8)
    axes.grid(axis="y")
    axes.tick_params(length=0)


def limits_of(estimates: Sequence[Estimate], marks: Sequence[float] = ()) -> tuple[float, float]:
    """The ends of an axis of means with intervals, of which long ones run off it so that the means can be told apart.

    marks: what else it must show; one of them or a mean is known.
    """
    means = [each.mean for each in estimates if each.mean is not None]
    low, high = min([*means, *marks]), max([*means, *marks])
    room = (high - low) or 0.01
    lowest = min([low, *(each.low for each in estimates if each.low is not None)])
    highest = max([high, *(each.high for each in estimates if each.high is not None)])
    return max(lowest, low - room) - 0.08 * room, min(highest, high + room) + 0.08 * room


def moved(estimate: Estimate, by: float) -> Estimate:
    """Its mean and its interval, so much higher."""
    mean, low, high = (None if end is None else end + by for end in (estimate.mean, estimate.low, estimate.high))
    return Estimate(mean=mean, low=low, high=high)


def paint_estimate(axes: Axes, x: float, estimate: Estimate, style: Style, label: str) -> None:
    """Paint a mean as a marker, and its interval as an upright line through it."""
    if estimate.low is not None and estimate.high is not None:
        ends = [estimate.low, estimate.high]
        axes.plot([x, x], ends, color=style.colour, linewidth=1.6, alpha=0.55, label=label)
    look = {"color": style.colour, "markersize": 7, "markeredgecolor": CARD, "label": label}
    axes.plot(x, finite(estimate.mean), style.marker, **look)


def layer_ticks(n_layers: int) -> list[int]:
    """Numbers of the layers that an axis names."""
    stride = max(1, math.ceil(n_layers / 8))
    return sorted({1, n_layers, *(layer for layer in range(stride, n_layers - stride // 2, stride) if layer > 1)})
