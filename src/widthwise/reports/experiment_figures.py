"""Figures of an experiment: differences from the baseline, losses over shapes, and differences over training."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from widthwise.records.cost import CostSummary
from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import HELD_OUT_LOSSES
from widthwise.records.record import finite
from widthwise.reports import charts
from widthwise.reports.charts import BASELINE_STYLE, MUTED, Figure, Looks, Plot, colour, styles
from widthwise.reports.curves import Curve, curve_figure
from widthwise.reports.formats import capital, clean, counted, fixed, shorten, signed, tick, with_interval

LOSS = "held-out loss"
_ROW = 34
"""Pixels of a row, with two lines of text at its right end."""
VERDICT_COLOURS: Mapping[str | None, str] = {"better": colour("good"), "worse": colour("bad")}
"""Verdict -> colour; other verdicts are grey."""


class Effect(NamedTuple):
    """A row of a forest plot."""

    name: str
    difference: Estimate
    verdict: str | None


def difference_figure(outcome: Outcome) -> Figure | None:
    """Return the differences in held-out loss; None without differences.

    With fewer than FEWEST_SEEDS seeds there are no intervals.
    """
    baseline = shorten(outcome.baseline_words or "its baseline", 30)
    title = [f"nats above {baseline}: left of 0 is better"]
    has_intervals = len(outcome.seeds) >= FEWEST_SEEDS
    if not has_intervals:
        title.append("too few seeds for intervals")
    effects = []
    for variant in outcome.variants:
        if (difference := variant.difference) is not None:
            if not has_intervals:
                difference = difference.with_changes(low=None, high=None)
            effects.append(Effect(variant.name, difference, variant.verdict))
    caption = f"Held-out loss minus the loss of {baseline}"
    return forest("differences", caption, effects, title, n_decimals=3, seeds=outcome.seeds)


def forest(
    key: str, caption: str, effects: Sequence[Effect], x_title: list[str], n_decimals: int, seeds: Sequence[int] = ()
) -> Figure | None:
    """Return a row for each effect, lowest first, coloured by verdict; None without effects.

    Intervals that leave the axis end in an arrow. x_title: lines of the title of the x axis. n_decimals: decimals of
    the numbers at the right. seeds: seeds of the values `per_seed` of each difference, drawn as ticks.
    """
    if not effects:
        return None
    # Rows of mean, low and high. 0 is on the axis. Intervals and seeds extend it by at most the range of the means.
    spans = np.array([[0.0, 0.0, 0.0], *([*_ends(effect.difference).values()] for effect in effects)])
    lowest = float(np.nanmin(spans[:, 0]))
    highest = float(np.nanmax(spans[:, 0]))
    room = (highest - lowest) or 0.01
    of_seeds = [effect.difference.per_seed for effect in effects] if seeds else []
    extent = np.concatenate([spans.ravel(), *(np.array(values, dtype=np.float64) for values in of_seeds)])
    low = max(float(np.nanmin(extent)), lowest - room) - 0.08 * room
    high = min(float(np.nanmax(extent)), highest + room) + 0.08 * room
    inset = 0.01 * (high - low)  # half of an arrow
    means = []
    values = []
    arrows = []
    for name, difference, verdict in sorted(effects, key=lambda effect: finite(effect.difference.mean)):
        row = {"name": clean(name), "verdict": verdict, "colour": VERDICT_COLOURS.get(verdict, MUTED)}
        ends = _ends(difference)
        numbers = signed(difference.mean, n_decimals)
        if difference.low is not None and difference.high is not None:
            numbers += f"\n[{signed(difference.low, n_decimals)}, {signed(difference.high, n_decimals)}]"
        means.append(row | ends | {"numbers": numbers})
        for seed, value in zip(seeds, difference.per_seed):
            values.append(row | {"seed": seed, "difference": finite(value)})
        if ends["low"] < low:
            arrows.append(row | {"end": low + inset, "shape": "triangle-left"})
        if ends["high"] > high:
            arrows.append(row | {"end": high - inset, "shape": "triangle-right"})
    across = charts.x("y", x_title, (low, high), format="+.3~f", grid=True)
    up = alt.Y("name:N", sort=[row["name"] for row in means], title=None)
    mark_colour = alt.Color("colour:N", scale=None)
    tip = charts.tips(name="|variant", y="+.4f|mean", low="+.4f", high="+.4f", verdict="")
    layers = [charts.line_at(0, "x")]
    if np.isfinite(spans[1:, 1]).any():
        bars = charts.chart(means).mark_rule(strokeWidth=2.6, clip=True)
        layers.append(bars.encode(x=alt.X("low:Q"), x2="high:Q", y=up, color=mark_colour))
    if values:
        ticks = charts.chart(values).mark_tick(thickness=1.4, size=9, yOffset=9, clip=True)
        seed_tip = charts.tips(name="|variant", seed="", difference="+.4f")
        layers.append(ticks.encode(x="difference:Q", y=up, tooltip=seed_tip, color=mark_colour))
    if arrows:
        heads = charts.chart(arrows).mark_point(size=70)
        shape = alt.Shape("shape:N", scale=None)
        layers.append(heads.encode(x="end:Q", y=up, color=mark_colour, shape=shape))
    layers.append(charts.chart(means).mark_point(size=95).encode(x=across, y=up, tooltip=tip, color=mark_colour))
    layers.append(charts.text_at_right(means, up, "numbers", dy=-6))
    differences = {effect.name: with_interval(effect.difference, n_decimals + 1) for effect in effects}
    label = charts.text_alternative(f"{caption}:", differences)
    return Figure(key, caption, label, alt.layer(*layers), height=40 + _ROW * len(effects))


def _ends(estimate: Estimate) -> dict[str, float]:
    """Return the columns of a mean and its interval; NaN if unknown."""
    return {"y": finite(estimate.mean), "low": finite(estimate.low), "high": finite(estimate.high)}


class Point(NamedTuple):
    """A mean with its interval at a position of the x axis."""

    series: str
    name: str
    x: float | str
    loss: Estimate
    line: str | None = None
    """Points of a series with the same line are joined; points with None are not."""


def point_figure(
    key: str,
    title: str,
    points: Sequence[Point],
    looks: Looks,
    across: alt.X,
    y_title: str,
    level: tuple[str, float] | None = None,
) -> Figure:
    """Return means as markers with their intervals as upright lines.

    level: name and value of a dashed horizontal line for the baseline.
    """
    with_loss = [point for point in points if point.loss.mean is not None]
    write = signed if level and level[1] == 0 else fixed
    rows: list[dict[str, Any]] = []
    for point in points:
        row = {"name": clean(point.series), "point": clean(point.name), "x": point.x, "line": point.line}
        rows.append(row | _ends(point.loss))
    tip = charts.tips(name="|series", point="", y=".4f|mean", low=".4f", high=".4f")
    plot = Plot(across, y_title, looks, tip)
    layers = [charts.line_at(level[1], "y", BASELINE_STYLE.dash, MUTED)] if level else []
    joined = [row for row in rows if row["line"] is not None]
    if joined:
        layers.append(plot.lines(joined, "line", strokeWidth=1.4))
    layers += [plot.bars(rows), plot.points(rows)]
    label = f"{capital(y_title)} over {across['title']}, a marker for each of {counted(len(points), 'point')}."
    if with_loss:
        best = min(with_loss, key=lambda point: finite(point.loss.mean))
        position = best.x if isinstance(best.x, str) else tick(round(best.x, 3))
        names = ", ".join(shorten(name, 40) for name in dict.fromkeys((best.name, best.series)))
        label += f" The lowest is {write(best.loss.mean, 4)} at {position}, of {names}."
    if level is not None:
        label += f" The dashed line is {shorten(level[0], 40)} at {write(level[1], 4)}."
    return Figure(key, title, label, alt.layer(*layers), looks)


def shape_figures(outcome: Outcome, names: Collection[str]) -> list[Figure]:
    """Return figures 3 and 4 of the hourglass paper, arXiv:2602.06471, for the variants `names`, which have one budget.

    They show models without experts whose layers and blocks all have the same width. The first figure joins models of
    equal depth, the second the models with the lowest loss of each depth. Figures without a line are omitted.
    """
    baseline = outcome.baseline_variant
    level = None if baseline is None else (baseline.name, finite(baseline.val_loss.mean))
    stacks: list[tuple[CostSummary, Point]] = []
    for variant in outcome.variants:
        cost = variant.cost
        loss = variant.val_loss
        if level is not None and variant.difference is not None:  # differences have narrower intervals than losses
            loss = shifted(variant.difference, level[1])
        hidden = {width for widths in cost.hidden_widths for width in widths}
        n_blocks = {len(widths) for widths in cost.hidden_widths}
        n_in_use = cost.params["total"] - cost.params.get("mtp", 0)
        has_experts = cost.params.get("active", n_in_use) < n_in_use
        has_equal_layers = cost.is_uniform and len(hidden) == 1 and len(n_blocks) == 1 and not has_experts
        is_drawn = variant is not baseline and variant.name in names and loss.mean is not None
        if is_drawn and has_equal_layers:
            stacks.append((cost, Point(f"K = {len(cost.hidden_widths[0])}", variant.name, 0.0, loss)))
    stacks.sort(key=lambda stack: -finite(stack[1].loss.mean))  # the last of each series and depth is the lowest
    lowest = {(point.series, len(cost.widths)): point for cost, point in stacks}.values()
    by_ratio: list[Point] = []
    by_aspect: list[Point] = []
    for cost, point in stacks:
        n_layers = len(cost.widths)
        by_ratio.append(point._replace(x=cost.hidden_widths[0][0] / cost.widths[0], line=f"L = {n_layers}"))
        by_aspect.append(point._replace(x=cost.widths[0] / n_layers, line="" if point in lowest else None))
    looks = styles([f"K = {n}" for n in sorted({len(cost.hidden_widths[0]) for cost, _ in stacks})])
    figures = []
    for key, axis, points in (
        ("shape-ratio", "d_hidden / d_model", by_ratio),
        ("shape-aspect", "d_model / n_layers", by_aspect),
    ):
        lines = Counter((point.series, point.line) for point in points if point.line is not None)
        if max(lines.values(), default=0) > 1:
            title = f"Held-out loss over {axis}"
            figures.append(point_figure(key, title, points, looks, charts.x("x", axis), LOSS, level))
    return figures


def shifted(estimate: Estimate, by: float) -> Estimate:
    """Return a mean and its interval plus `by`."""
    mean, low, high = (None if end is None else end + by for end in (estimate.mean, estimate.low, estimate.high))
    return Estimate(mean=mean, low=low, high=high)


def gap_figures(loss: str, variants: Sequence[Variant], looks: Looks, baseline: str) -> list[Figure | None]:
    """Return figures over tokens: a held-out loss minus the baseline's, and the ratio of tokens to equal loss."""
    title = HELD_OUT_LOSSES[loss].title
    baseline = shorten(baseline, 40)
    gaps = {variant.name: variant.gap.get(loss) for variant in variants}
    ratios = {variant.name: variant.tokens_ratio.get(loss) for variant in variants}
    figures = []
    for key, measured, name, y_title, equal in (
        ("gap", gaps, f"{capital(title)} minus the loss of {baseline}", "difference in nats", 0),
        ("tokens-ratio", ratios, f"Tokens to the {title} of {baseline}", f"times the tokens of {baseline}", 1),
    ):
        curves: dict[str, Curve] = {}
        for variant, over in measured.items():
            if over is not None and len(over.tokens) > 1:
                ends = np.array([[*map(finite, over.low)], [*map(finite, over.high)]])
                curves[variant] = Curve(np.array(over.tokens), np.array([*map(finite, over.mean)]), ends)
        figures.append(curve_figure(f"{key}-{loss}", name, curves, looks, "tokens", y_title, True, level=equal))
    return figures
