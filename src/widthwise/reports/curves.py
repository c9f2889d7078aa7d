"""Metrics of runs as curves over steps, tokens or FLOPs: aligned over seeds, thinned and drawn."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from widthwise.records.record import finite
from widthwise.records.run import Run
from widthwise.reports import charts
from widthwise.reports.charts import MUTED, Figure, Looks, Plot
from widthwise.reports.formats import capital, clean, fixed, si
from widthwise.reports.table import Table, by_row

N_ROWS = 12
"""Steps in the table of a figure."""
N_POINTS = 160
"""A curve with more points is averaged in groups: a screen shows no more, and the file stays small."""


@dataclass(frozen=True)
class Curve:
    """y over x, both (n_points,), x ascending; y is NaN where a value was not finite."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    ends: NDArray[np.float64] | None = None
    """Low and high ends of a band, (2, n_points)."""

    def rows(self, name: str, **further: object) -> list[dict[str, Any]]:
        """Return the points as rows of a chart. further: columns that are the same in all."""
        rows = [{"name": clean(name), **further, "x": float(x), "y": float(y)} for x, y in zip(self.x, self.y)]
        ends = () if self.ends is None else self.ends.T.tolist()
        return [row | {"low": low, "high": high} for row, (low, high) in zip(rows, ends)] if ends else rows

    @property
    def is_empty(self) -> bool:
        return not np.isfinite(self.y).any()

    @property
    def last(self) -> float:
        """The last finite value; NaN for an empty curve."""
        values = self.y[np.isfinite(self.y)]
        return float(values[-1]) if len(values) else float("nan")


def by_step(run: Run, event: str, key: str) -> Curve:
    """Return one metric of one run over the step. Records without the key are omitted; a step's last record counts."""
    return _curve(run, event, lambda record: record.get(key))


def by_name(run: Run, key: str, entry: str) -> dict[str, Curve]:
    """Return text or task -> one of its numbers over the step of validations. key: of their dict in a record."""
    names = dict.fromkeys(name for record in run.metrics for name in record.get(key) or ())
    curves = {
        name: _curve(run, "validation", lambda record, name=name: ((record.get(key) or {}).get(name) or {}).get(entry))
        for name in names
    }
    return {name: curve for name, curve in curves.items() if not curve.is_empty}


def by_place(run: Run, event: str, key: str) -> list[Curve]:
    """Return each entry of a list, with one per layer or further head, over the step. key: of the list in a record."""
    n = max((len(record.get(key) or ()) for record in run.metrics if record.get("event") == event), default=0)
    return [
        _curve(run, event, lambda record, i=i: next(iter((record.get(key) or [])[i : i + 1]), None)) for i in range(n)
    ]


def _curve(run: Run, event: str, value_of: Callable[[Mapping[str, Any]], Any]) -> Curve:
    """value_of: takes the value from a record; None leaves the record out."""
    pairs = [(record["step"], value_of(record)) for record in run.metrics if record.get("event") == event]
    values = {step: finite(value) for step, value in pairs if value is not None}
    steps = sorted(values)
    return Curve(np.array(steps, dtype=float), np.array([values[step] for step in steps], dtype=float))


def mean_over_seeds(curves: Sequence[Curve]) -> Curve:
    """Return the mean at the steps that every non-empty curve has; NaN if one of them is not finite."""
    filled = [curve for curve in curves if len(curve.x)]
    if not filled:
        return Curve(np.array([]), np.array([]))
    steps = set(filled[0].x).intersection(*(curve.x for curve in filled[1:]))
    common = np.array(sorted(steps))
    values = np.array([curve.y[np.isin(curve.x, common)] for curve in filled])
    return Curve(common, values.mean(axis=0))


def against_flops(curve: Curve, run: Run, flops_per_token: float) -> Curve:
    """Return a curve over training FLOPs. Tokens between two records are interpolated; steps after the last omitted.

    flops_per_token: of a run whose model stays the same; where it grew, the result says what the run had cost by then.
    """
    tokens = by_step(run, "train", "tokens")
    steps, counts = [0.0, *tokens.x], [0.0, *tokens.y]
    if run.result and run.result.steps and run.result.tokens and run.result.steps > steps[-1]:
        steps, counts = [*steps, float(run.result.steps)], [*counts, float(run.result.tokens)]
    is_known = curve.x <= steps[-1]
    return Curve(_training_flops(np.interp(curve.x[is_known], steps, counts), run, flops_per_token), curve.y[is_known])


def _training_flops(tokens: NDArray[np.float64], run: Run, flops_per_token: float) -> NDArray[np.float64]:
    """Return the training FLOPs of a run up to each of these token counts."""
    result = run.result
    ends = [(float(growth.tokens), finite(growth.training_flops)) for growth in (result.growth if result else ())]
    # A run that continues another one has a record of the FLOPs of that run.
    counted = [record for record in run.metrics if record.get("training_flops") is not None]
    ends += [(finite(record["tokens"]), finite(record["training_flops"])) for record in counted]
    if result is None or not ends:
        return tokens * flops_per_token
    n_tokens, flops = zip((0.0, 0.0), *sorted(ends), (finite(result.tokens), finite(result.training_flops)))
    return np.interp(tokens, n_tokens, flops)


def thin(curve: Curve, n_points: int = N_POINTS) -> Curve:
    """Average neighbours so that at most `n_points` remain; a group with a value that is not finite becomes NaN."""
    if len(curve.x) <= n_points:
        return curve
    rows = np.vstack([curve.x, curve.y, *([] if curve.ends is None else curve.ends)])
    x, y, *ends = np.array([group.mean(axis=1) for group in np.array_split(rows, n_points, axis=1)]).T
    return Curve(x, y, np.array(ends) if ends else None)


@dataclass(frozen=True)
class Bundle:
    """The curves of one variant: thin lines by name, and a strong one."""

    seeds: Mapping[str, Curve]
    strong: Curve | None = None
    """By default the mean of the others."""
    of_strong: str = ""

    @property
    def mean(self) -> Curve:
        return mean_over_seeds([*self.seeds.values()]) if self.strong is None else self.strong


def over_seeds(runs: Sequence[Run], event: str) -> Bundle:
    """Return the loss of the runs of a variant over the step, in the records of one event."""
    names = [f"unfinished run {i}" if r.result is None else f"seed {r.result.seed}" for i, r in enumerate(runs, 1)]
    return Bundle({name: by_step(run, event, "loss") for name, run in zip(names, runs)})


def curve_figure(
    key: str,
    title: str,
    curves: Mapping[str, Curve | Bundle],
    looks: Looks,
    x_title: str,
    y_title: str,
    crop: bool = False,
    growths: Sequence[float] = (),
    level: float | None = None,
) -> Figure | None:
    """Return curves over what is counted, or None where none has a value.

    crop: lets the first steep tenth run off the top. growths: where on the x axis models grew, marked by dashed lines.
    level: a value that the y axis shows with a line across.
    """
    drawn: dict[str, Bundle] = {}
    for name, curve in curves.items():
        bundle = curve if isinstance(curve, Bundle) else Bundle({"": curve}, curve)
        if not all(seed.is_empty for seed in bundle.seeds.values()):
            drawn[name] = bundle
    if not drawn:
        return None
    styles = {name: looks[name] for name in drawn}
    domain = None
    if crop:
        domain = _late_range([curve for bundle in drawn.values() for curve in bundle.seeds.values()], level)
    thin_rows, rows = list[dict[str, Any]](), list[dict[str, Any]]()
    for name, bundle in drawn.items():
        n_seeds = len(bundle.seeds)
        if n_seeds > 1:
            thin_rows += [row for line, curve in bundle.seeds.items() for row in _rows(name, line, curve)]
        strong = bundle.of_strong or (f"mean of {n_seeds}" if n_seeds > 1 else next(iter(bundle.seeds)))
        rows += _rows(name, strong, bundle.mean)
    banded = [row for row in rows if "low" in row]
    ends = {"low": ".4f", "high": ".4f"} if banded else {}
    tip = charts.tips(name="|variant", line="", x=f",.4~f|{x_title}", y=f".4f|{y_title}", **ends)
    plot = Plot(charts.x("x", x_title, format="~s"), y_title, styles, tip, domain)
    layers = [charts.line_at(at, "x", (4, 3), MUTED) for at in growths]
    layers += [charts.line_at(level, "y")] if level is not None else []
    layers += [plot.bands(banded)] if banded else []
    layers += [plot.lines(thin_rows, "line", strokeWidth=0.9, opacity=0.6)] if thin_rows else []
    layers += [plot.lines(rows), plot.targets(rows)]
    subject, show = (y_title, si) if level is None else (f"{title}, {y_title},", partial(fixed, n_decimals=4))
    last = {name: show(bundle.mean.last) for name, bundle in drawn.items()}
    label = charts.described(f"{subject} over {x_title}. Last mean value of each line:", last)
    label += f" A model grew at {', '.join(map(si, growths))}." if growths else ""
    return Figure(key, title, label, alt.layer(*layers), styles)


def profile_figures(
    key: str,
    titles: Mapping[str, str],
    profiles: Mapping[str, Mapping[str, Sequence[float]]],
    looks: Looks,
    y_title: str,
) -> list[Figure]:
    """Return a figure of each size of the layers along the depth. titles: size -> title; profiles: line -> size ->
    (n_layers,) values."""
    figures = []
    for size, title in titles.items():
        lines = {name: np.array([finite(value) for value in sizes[size]]) for name, sizes in profiles.items()}
        curves = {name: Curve(np.arange(1.0, 1 + len(values)), values) for name, values in lines.items()}
        x_title = "layer (1 reads the tokens)"
        figures.append(curve_figure(f"{key}-{size}", capital(title), curves, looks, x_title, y_title, level=0.0))
    return [figure for figure in figures if figure is not None]


def _rows(name: str, line: str, curve: Curve) -> list[dict[str, Any]]:
    """Rows of a curve, which name how many neighbours each value is the mean of."""
    n_each = math.ceil(len(curve.x) / N_POINTS)
    line += f" (mean of {n_each} neighbouring values)" if n_each > 1 else ""
    return thin(curve).rows(name, line=line)


def _late_range(curves: Sequence[Curve], level: float | None) -> tuple[float, float] | None:
    """Return the range of the level, and of the values after the first tenth."""
    end = max((curve.x[-1] for curve in curves if len(curve.x)), default=0.0)
    parts = [
        part[curve.x >= 0.1 * end]
        for curve in curves
        for part in (curve.y, *(() if curve.ends is None else curve.ends))
    ]
    return charts.span([*([] if level is None else [level]), *(float(each) for part in parts for each in part)])


def curve_table(caption: str, curves: Mapping[str, Curve]) -> Table:
    """Return the values of curves at up to N_ROWS steps, the last one included."""
    values = {name: dict(zip(curve.x.tolist(), curve.y.tolist())) for name, curve in curves.items()}
    steps = sorted(set().union(*values.values()))
    chosen = sorted({steps[-1 - i * len(steps) // N_ROWS] for i in range(min(N_ROWS, len(steps)))})
    cells = {f"{step:.0f}": {name: fixed(by_step.get(step), 4) for name, by_step in values.items()} for step in chosen}
    return by_row(caption, "Step", cells)
