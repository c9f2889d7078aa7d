"""Curves of metrics over steps, tokens or FLOPs: means over seeds, thinning and figures."""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from widthwise.records.record import finite
from widthwise.records.run import Run
from widthwise.reports import charts
from widthwise.reports.charts import Figure, Looks, Plot
from widthwise.reports.formats import clean, fixed, si

N_POINTS = 160
"""Curves with more points are averaged in groups, because a screen shows no more points."""
FEW_POINTS = 10
"""Curves with at most this many points have markers."""
MARGIN = 0.06
"""Room at each end of the y axis, as a share of its range."""
MOST_LABELS = 10
"""Largest number of lines with names at their ends."""


@dataclass(frozen=True)
class Curve:
    """y over x, both (n_points,). x is ascending; y is NaN for values that were not finite."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    ends: NDArray[np.float64] | None = None
    """Low and high ends of a band, (2, n_points); None without a band."""
    progress: Mapping[str, "Curve"] = field(default_factory=dict)
    """Quantity, such as tokens -> its value by x. Readers of a figure choose among them for the x axis."""
    growths: Sequence[float] = ()
    """Steps after which the model grew."""

    def rows(self, name: str, **further: object) -> list[dict[str, Any]]:
        """Return the points as rows of a chart. further: constant columns."""
        rows = [{"name": clean(name), **further, "x": float(x), "y": float(y)} for x, y in zip(self.x, self.y)]
        if self.ends is not None:
            for row, (low, high) in zip(rows, self.ends.T.tolist()):
                row |= {"low": low, "high": high}
        return rows

    @property
    def is_empty(self) -> bool:
        return not np.isfinite(self.y).any()

    @property
    def last(self) -> float:
        """The last finite value; NaN for an empty curve."""
        values = self.y[np.isfinite(self.y)]
        return float(values[-1]) if len(values) else float("nan")


EMPTY = Curve(np.array([]), np.array([]))


def by_step(run: Run, event: str, key: str) -> Curve:
    """Return a metric of a run by step. Records without the key are skipped; the last record of a step counts."""
    return _curves(run, event, lambda record: [(key, record.get(key))]).get(key, EMPTY)


def by_name(run: Run, key: str, entry: str) -> dict[str, Curve]:
    """Return text or task -> curve of one of its numbers over validations. key: field with a dict of texts or tasks."""

    def values(record: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        return ((name, (numbers or {}).get(entry)) for name, numbers in (record.get(key) or {}).items())

    return {name: curve for name, curve in _curves(run, "validation", values).items() if not curve.is_empty}


def by_index(run: Run, event: str, key: str) -> list[Curve]:
    """Return a curve for each entry of a list, such as one for each layer or MTP head. key: field with the list."""
    return list(_curves(run, event, lambda record: enumerate(record.get(key) or ())).values())


def _curves(
    run: Run, event: str, values: Callable[[Mapping[str, Any]], Iterable[tuple[Hashable, Any]]]
) -> dict[Any, Curve]:
    """Return curves by step. values: returns name and value of each curve at a record; values of None are skipped."""
    points: dict[Hashable, dict[int, float]] = {}
    for record in run.metrics:
        if record.get("event") == event:
            for name, value in values(record):
                points.setdefault(name, {})
                if value is not None:
                    points[name][record["step"]] = finite(value)
    growths = sorted({float(growth.step) for growth in run.growths})
    curves = {}
    for name, value_of_step in points.items():
        x, y = np.array(sorted(value_of_step.items()), dtype=float).reshape(-1, 2).T
        curves[name] = Curve(x, y, growths=growths)
    return curves


def progress(run: Run) -> dict[str, Curve]:
    """Return tokens, training FLOPs and hours by step; without those that the run does not record.

    FLOPs are interpolated between validations, which also count the FLOPs of a run that this run continues.
    """
    trained = by_step(run, "train", "tokens")
    seconds = by_step(run, "train", "step_seconds")
    hours = np.cumsum(seconds.y * np.diff(seconds.x, prepend=0.0)) / 3600
    spent = [
        (record.get("tokens") or 0, record["training_flops"]) for record in run.metrics if record.get("training_flops")
    ]
    tokens, flops = np.array([(0, 0), *sorted(spent)], dtype=float).T
    flops_by_step = np.interp(trained.y, tokens, flops) if spent else np.full_like(trained.x, np.nan)
    curves = {"tokens": trained, "training FLOPs": Curve(trained.x, flops_by_step), "hours": Curve(seconds.x, hours)}
    return {name: curve for name, curve in curves.items() if not curve.is_empty}


def thin(curve: Curve, n_points: int = N_POINTS) -> Curve:
    """Average neighbours so that at most `n_points` remain. Groups with a value that is not finite become NaN."""
    if len(curve.x) <= n_points:
        return curve
    ends = () if curve.ends is None else curve.ends
    groups = np.array_split(np.vstack([curve.x, curve.y, *ends]), n_points, axis=1)
    x, y, *ends = np.array([group.mean(axis=1) for group in groups]).T
    return Curve(x, y, np.array(ends) if ends else None)


@dataclass(frozen=True)
class Bundle:
    """The curves of one variant: a thin line for each of several curves, and one strong line."""

    curves: Mapping[str, Curve]
    main: str | None = None
    """Name of the curve with the strong line; None: the mean has it."""

    @property
    def main_curve(self) -> Curve:
        """The curve `main`, or the mean at the steps shared by all non-empty curves; NaN if any value is not finite.

        The progress of the mean is the first curve's.
        """
        if self.main is not None:
            return self.curves[self.main]
        curves = [curve for curve in self.curves.values() if len(curve.x)]
        if not curves:
            return EMPTY
        steps = np.array(sorted(set(curves[0].x).intersection(*(curve.x for curve in curves[1:]))))
        values = np.array([curve.y[np.isin(curve.x, steps)] for curve in curves])
        return Curve(steps, values.mean(axis=0), progress=curves[0].progress)

    @property
    def main_label(self) -> str:
        """Name of the strong line in tooltips."""
        if self.main is not None:
            return self.main
        return f"mean of {len(self.curves)}" if len(self.curves) > 1 else next(iter(self.curves))


def over_seeds(runs: Sequence[Run], event: str) -> Bundle:
    """Return the loss by step of the runs of a variant, from the records of one event."""
    curves = {}
    for number, run in enumerate(runs, start=1):
        name = f"unfinished run {number}" if run.result is None else f"seed {run.result.seed}"
        curves[name] = replace(by_step(run, event, "loss"), progress=progress(run))
    return Bundle(curves)


def curve_figure(
    key: str,
    title: str,
    curves: Mapping[str, Curve | Bundle],
    looks: Looks,
    x_title: str,
    y_title: str,
    crop: bool = False,
    level: float | None = None,
) -> Figure | None:
    """Return a figure of curves; None if no curve has a value.

    Ends of up to MOST_LABELS lines have their name; curves of up to FEW_POINTS points have markers. Dashed vertical
    lines mark growths. crop: ignore the steep first tenth in the range of y. level: value of y with a line across the
    figure.
    """
    drawn: dict[str, Bundle] = {}
    for name, curve in curves.items():
        bundle = curve if isinstance(curve, Bundle) else Bundle({"": curve}, main="")
        if not all(curve.is_empty for curve in bundle.curves.values()):
            drawn[name] = bundle
    if not drawn:
        return None
    main_curves = {name: bundle.main_curve for name, bundle in drawn.items()}
    every_curve = [*main_curves.values(), *(curve for bundle in drawn.values() for curve in bundle.curves.values())]
    axes = _axes(every_curve, x_title)
    thin_rows: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    grown: list[dict[str, float]] = []
    for name, bundle in drawn.items():
        if len(bundle.curves) > 1:
            for label, curve in bundle.curves.items():
                thin_rows += _rows(name, label, curve, axes)
        rows += _rows(name, bundle.main_label, main_curves[name], axes)
        for step in sorted({step for curve in bundle.curves.values() for step in curve.growths}):
            place = _place(step, main_curves[name], axes)
            if place not in grown:
                grown.append(place)
    bands = [row for row in rows if "low" in row]
    band_tips = {"low": ".4f", "high": ".4f"} if bands else {}
    tip = charts.tips(name="|variant", line="", x=f",.4~f|{x_title}", y=f".4f|{y_title}", **band_tips)
    has_menu = len(axes) > 1
    across = charts.x("at", " ", format="~s") if has_menu else charts.x("x", x_title, format="~s")
    domain = _range(every_curve, level, 0.1 if crop else 0.0)
    styles = {name: looks[name] for name in drawn}
    plot = Plot(across, y_title, styles, tip, domain, has_menu=has_menu)
    layers = [plot.vertical_lines(grown)] if grown else []
    subject = y_title
    show = si
    if level is not None:
        layers.append(charts.line_at(level, "y"))
        subject = f"{title}, {y_title},"
        show = partial(fixed, n_decimals=4)
    if bands:
        layers.append(plot.bands(bands))
    if thin_rows:
        layers.append(plot.lines(thin_rows, "line", strokeWidth=0.9, opacity=0.6))
    layers += [plot.lines(rows), plot.targets(rows)]
    if max(len(curve.x) for curve in every_curve) <= FEW_POINTS:
        layers.append(plot.points(rows, size=34))
    last = {name: curve.last for name, curve in main_curves.items()}
    ends = {name: value for name, value in last.items() if math.isfinite(value)}
    is_named = 1 < len(ends) <= MOST_LABELS
    if domain is not None and is_named:
        layers.append(plot.names_at(ends, domain))
    chart = charts.with_x_menu(layers, axes) if has_menu else alt.layer(*layers)
    shown = {name: show(value) for name, value in last.items()}
    label = charts.text_alternative(f"{subject} over {x_title}. Last mean value of each line:", shown)
    if grown:
        label += f" A model grew at {', '.join(map(si, sorted({row['x'] for row in grown})))}."
    return Figure(key, title, label, chart, styles, is_named=is_named)


def _axes(curves: Sequence[Curve], x_title: str) -> dict[str, str]:
    """Return column -> title of the x axes among which readers choose: x, and the progress known for all curves."""
    axes = {"x": x_title}
    trained = [curve for curve in curves if not curve.is_empty and curve.x[-1] > 0]
    for quantity in trained[0].progress if trained else ():
        if all(quantity in curve.progress for curve in trained):
            axes[quantity] = quantity
    return axes


def _rows(name: str, line: str, curve: Curve, axes: Collection[str]) -> list[dict[str, Any]]:
    """Return the thinned rows of a curve, with a column for each axis. Tooltips name the number of neighbours."""
    n_averaged = math.ceil(len(curve.x) / N_POINTS)
    if n_averaged > 1:
        line += f" (mean of {n_averaged} neighbouring values)"
    return [row | _place(row["x"], curve, axes) for row in thin(curve).rows(name, line=line)]


def _place(step: float, curve: Curve, axes: Collection[str]) -> dict[str, float]:
    """Return the position of a step on every axis; NaN after the last record."""
    place = {"x": step}
    for quantity in axes:
        if quantity != "x":
            by_step = curve.progress.get(quantity, EMPTY)
            place[quantity] = float(np.interp(step, [0.0, *by_step.x], [0.0, *by_step.y], right=np.nan))
    return place


def _range(curves: Sequence[Curve], level: float | None, start: float) -> tuple[float, float] | None:
    """Return the range of the level and of all values after `start`, a share of x, with a margin; None without any."""
    end = max((curve.x[-1] for curve in curves if len(curve.x)), default=0.0)
    values = [] if level is None else [level]
    for curve in curves:
        lines = curve.y[None] if curve.ends is None else np.vstack([curve.y, curve.ends])
        values += lines[:, curve.x >= start * end].ravel().tolist()
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    room = MARGIN * (max(values) - min(values)) or 0.01
    return min(values) - room, max(values) + room
