"""Figures of an experiment: differences, costs, losses over shapes and over what a sweep varies."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from widthwise.records.cost import CostSummary
from widthwise.records.estimate import FEWEST_SEEDS, Estimate, OverTokens
from widthwise.records.outcome import OpenPoint, Outcome, SearchedRange, Variant
from widthwise.records.quantities import LOSSES, OF_HELD_OUT, QUANTITIES
from widthwise.records.record import finite
from widthwise.reports import charts
from widthwise.reports.charts import BASELINE_STYLE, HEAT, INK, MUTED, Figure, Looks, Plot, limits_of, styles
from widthwise.reports.curves import Curve, curve_figure
from widthwise.reports.formats import (
    MISSING,
    capital,
    clean,
    counted,
    fixed,
    interval,
    plain,
    ratio,
    shorten,
    si,
    signed,
    tick,
    with_interval,
)

_ROW = 30
"""Pixels of a row."""
_LOSS = "held-out loss"


def difference_figure(outcome: Outcome, looks: Looks) -> Figure | None:
    """Return a forest plot: per variant the difference of each seed, its mean, and its interval where seeds suffice.

    None where nothing is compared.
    """
    found = {each.name: each.difference for each in outcome.variants if each.difference is not None}
    if not found:
        return None
    own, verdicts = {name: looks[name] for name in found}, {each.name: each.verdict for each in outcome.variants}
    baseline = shorten(outcome.baseline_words or "its baseline", 30)
    means = [{"name": clean(n), "verdict": verdicts[n], **charts.ends_of(each)} for n, each in found.items()]
    seeds = [
        {"name": clean(name), "seed": seed, "difference": finite(value)}
        for name, difference in found.items()
        for seed, value in zip(outcome.seeds, difference.per_seed)
    ]
    with_ends = len(next(iter(found.values())).per_seed) >= FEWEST_SEEDS
    title = [f"nats above {baseline}: left of 0 is better", *["too few seeds for intervals"] * (not with_ends)]
    up, colour = alt.Y("name:N", sort=None, title=None), charts.coloured(own)
    ends = charts.chart(means).mark_rule(strokeWidth=2.6).encode(x=charts.x("low", title), x2="high:Q", y=up, **colour)
    tip = charts.tips(name="|variant", seed="", difference="+.4f")
    ticks = charts.chart(seeds).mark_tick(thickness=1.4, size=11, yOffset=8)
    ticks = ticks.encode(x="difference:Q", y=up, tooltip=tip, **colour)
    tip = charts.tips(name="|variant", y="+.4f|mean", low="+.4f", high="+.4f", verdict="")
    across = charts.x("y", title, format="+.3~f", grid=True)
    points = charts.chart(means).mark_point(size=95)
    points = points.encode(x=across, y=up, tooltip=tip, **charts.coloured(own, "color", "shape"))
    numbers = {name: with_interval(each, 4) for name, each in found.items()}
    label = charts.described(f"Difference in held-out loss to {baseline}:", numbers)
    chart = alt.layer(charts.line_at(0, "x"), *[ends] * with_ends, ticks, points)
    return Figure("differences", f"Held-out loss minus that of {baseline}", label, chart, own, 40 + _ROW * len(found))


def part_figure(variants: Sequence[Variant]) -> Figure:
    """Return parameters by part of the model, one stacked bar per variant."""
    names = dict.fromkeys(name for variant in variants for name, size in variant.cost.params.items() if size)
    looks = charts.areas([name for name in names if name not in ("total", "active", "dead")])
    rows = [
        {"name": part, "variant": clean(each.name), "parameters": each.cost.params.get(part, 0.0), "order": i}
        for each in variants
        for i, part in enumerate(looks)
    ]
    bars = charts.chart(rows).mark_bar(stroke=charts.CARD, strokeWidth=0.7)
    chart = bars.encode(
        x=alt.X("sum(parameters):Q", title="parameters", axis=alt.Axis(format="~s")),
        y=alt.Y("variant:N", sort=None, title=None),
        order="order:Q",
        tooltip=charts.tips(variant="", name="|part", parameters=",.0f"),
        **charts.coloured(looks, "fill"),
    )
    totals = {each.name: si(each.cost.params["total"]) for each in variants}
    label = charts.described("Parameters by part of the model. Totals:", totals)
    return Figure("parts", "Parameters by part", label, chart, looks, 40 + 26 * len(variants))


def ratio_figure(outcome: Outcome, looks: Looks) -> Figure | None:
    """Return costs relative to the baseline, one row per quantity. None where there is only the baseline."""
    pairs = outcome.compared
    rows: list[dict[str, Any]] = [
        {"name": clean(variant.name), "quantity": each.title.replace(" per token", ""), "ratio": value}
        for each in QUANTITIES
        if each.has_ratio and each.name not in LOSSES
        for variant, other in pairs
        if (value := each.ratio(variant, other)) is not None
    ]
    if not rows:
        return None
    own = {variant.name: looks[variant.name] for variant, _ in pairs}
    baseline = shorten(outcome.baseline_words or "", 30)
    points = charts.chart(rows).mark_point()
    points = points.encode(
        x=charts.x("ratio", f"times the value of {baseline}", grid=True),
        y=alt.Y("quantity:N", sort=None, title=None),
        yOffset=alt.YOffset("name:N", sort=None),
        tooltip=charts.tips(name="|variant", quantity="", ratio=".3f"),
        **charts.coloured(own, "color", "shape"),
    )
    numbers = {
        name: ", ".join(f"{row['quantity']} {ratio(row['ratio']) or '?'}" for row in rows if row["name"] == clean(name))
        for name in own
    }
    label = charts.described(f"Costs and speed relative to {baseline}.", numbers)
    chart = alt.layer(charts.line_at(1, "x"), points)
    n_rows = len({row["quantity"] for row in rows})
    return Figure("ratios", f"Costs relative to {baseline}", label, chart, own, 40 + n_rows * max(26, 9 * len(own)))


class Point(NamedTuple):
    """A mean with its interval, over what points differ in."""

    series: str
    name: str
    x: float | str
    loss: Estimate
    line: str | None = None
    """The points of a series that have the same one are joined; None: it is not joined to others."""


def point_figure(
    key: str,
    title: str,
    points: Sequence[Point],
    looks: Looks,
    across: alt.X,
    words: tuple[str, str],
    level: tuple[str, float] | None = None,
) -> Figure:
    """Return means as markers with their intervals as upright lines.

    words: titles of the axes. level: name and value of what the points are compared with.
    """
    known = [each for each in points if each.loss.mean is not None]
    at, show = [] if level is None else [level[1]], signed if level and level[1] == 0 else fixed
    rows: list[dict[str, Any]] = [
        {"name": clean(each.series), "point": clean(each.name), "x": each.x, "line": each.line}
        | charts.ends_of(each.loss)
        for each in points
    ]
    tip = charts.tips(name="|series", point="", y=".4f|mean", low=".4f", high=".4f")
    plot = Plot(across, words[1], looks, tip, limits_of([each.loss for each in points], at) if known or at else None)
    joined = [row for row in rows if row["line"] is not None]
    layers = [charts.line_at(each, "y", BASELINE_STYLE.dash, MUTED) for each in at]
    layers += [plot.lines(joined, "line", strokeWidth=1.4)] if joined else []
    layers += [plot.bars(rows), plot.points(rows)]
    label = f"{capital(words[1])} over {words[0]}, a marker for each of {counted(len(points), 'point')}."
    if known:
        best = min(known, key=lambda each: finite(each.loss.mean))
        where = best.x if isinstance(best.x, str) else tick(round(best.x, 3))
        of = ", ".join(shorten(name, 40) for name in dict.fromkeys((best.name, best.series)))
        label += f" The lowest is {show(best.loss.mean, 4)} at {where}, of {of}."
    if level is not None:
        label += f" The dashed line is {shorten(level[0], 40)} at {show(level[1], 4)}."
    return Figure(key, title, label, alt.layer(*layers), looks)


class Stack(NamedTuple):
    """A model whose layers all have the same sizes, with its loss."""

    name: str
    n_blocks: int
    n_layers: int
    d_model: int
    d_hidden: int
    loss: Estimate
    """Where there is a baseline its loss and the difference to it, whose interval is the narrower."""


def shape_figures(outcome: Outcome, names: Collection[str]) -> list[Figure]:
    """Return figures 3 and 4 of the hourglass paper, arXiv:2602.06471, of the variants `names`, which have one budget.

    The first joins models of one depth, the second the best of each depth. None of them where no line has two.
    """
    baseline = outcome.baseline_variant
    zero = None if baseline is None else baseline.val_loss.mean
    others = [each for each in outcome.variants if each is not baseline and each.name in names]
    stacks = [stack for each in others if (stack := _stack(each, zero)) is not None]
    stacks.sort(key=lambda stack: -finite(stack.loss.mean))
    lowest = {(stack.n_blocks, stack.n_layers): stack for stack in stacks}
    looks = styles([f"K = {k}" for k in sorted({stack.n_blocks for stack in stacks})])
    level = None if baseline is None or zero is None else (baseline.name, zero)
    by_ratio = [Point(f"K = {s.n_blocks}", s.name, s.d_hidden / s.d_model, s.loss, f"L = {s.n_layers}") for s in stacks]
    by_aspect = [
        point._replace(x=each.d_model / each.n_layers, line="" if each in lowest.values() else None)
        for each, point in zip(stacks, by_ratio)
    ]
    return [
        point_figure(key, f"Held-out loss over {words}", points, looks, charts.x("x", words), (words, _LOSS), level)
        for key, words, points in (
            ("shape-ratio", "d_hidden / d_model", by_ratio),
            ("shape-aspect", "d_model / n_layers", by_aspect),
        )
        if max(Counter((p.series, p.line) for p in points if p.line is not None).values(), default=0) > 1
    ]


def _stack(variant: Variant, zero: float | None) -> Stack | None:
    """Return None for a model of layers or blocks of different sizes, of experts, or without a loss."""
    cost, difference = variant.cost, variant.difference
    loss = variant.val_loss if zero is None or difference is None else moved(difference, zero)
    hidden = {width for widths in cost.hidden_widths for width in widths}
    n_blocks = {len(widths) for widths in cost.hidden_widths}
    if not cost.is_uniform or len(hidden) != 1 or len(n_blocks) != 1 or _has_experts(cost) or loss.mean is None:
        return None
    return Stack(variant.name, n_blocks.pop(), len(cost.widths), cost.widths[0], hidden.pop(), loss)


def _has_experts(cost: CostSummary) -> bool:
    """Return whether a token leaves parameters unused."""
    in_use = cost.params["total"] - cost.params.get("mtp", 0)
    return cost.params.get("active", in_use) < in_use


def moved(estimate: Estimate, by: float) -> Estimate:
    """Return a mean and its interval, so much higher."""
    mean, low, high = (None if end is None else end + by for end in (estimate.mean, estimate.low, estimate.high))
    return Estimate(mean=mean, low=low, high=high)


def gap_figures(loss: str, variants: Sequence[Variant], looks: Looks, baseline: str) -> list[Figure | None]:
    """Return figures over tokens: the gap of a held-out loss to the baseline's, and the ratio of tokens."""
    title, other = OF_HELD_OUT[loss].title, shorten(baseline, 40)
    figures = []
    for field, key, name, y_title, equal in (
        ("gap", "gap", f"{capital(title)} minus that of {other}", "difference in nats", 0),
        ("tokens_ratio", "tokens-ratio", f"Tokens to the {title} of {other}", f"times those of {other}", 1),
    ):
        curves: dict[str, Curve] = {}
        for each in variants:
            found: OverTokens | None = getattr(each, field).get(loss)
            if found is not None and len(found.tokens) > 1:
                columns = (found.tokens, found.mean, found.low, found.high)
                x, y, *ends = np.array([[*map(finite, column)] for column in columns])
                curves[each.name] = Curve(x, y, np.array(ends))
        figures.append(curve_figure(f"{key}-{loss}", name, curves, looks, "tokens", y_title, True, level=equal))
    return figures


def score(point: Variant, outcome: Outcome) -> Estimate:
    """Return the difference to its baseline, 0 for a baseline itself; its loss where nothing is compared."""
    if outcome.baseline_words is None:
        return point.val_loss
    return point.difference or Estimate(mean=0.0 if outcome.baseline_of(point) is point else None)


def shown_score(mean: float, outcome: Outcome, n_decimals: int = 4) -> str:
    """Return a score as text, with its sign if it is a difference."""
    return (signed if outcome.baseline_words else fixed)(mean, n_decimals)


def axis_figures(outcome: Outcome, looks: Looks) -> list[Figure]:
    """Return a heat map for a grid of two keys; for one key, a search and larger grids the losses over each key."""
    keys = list(dict.fromkeys(key for axes in outcome.axes.values() for key in axes))
    ends = [key.rpartition(".")[2] for key in keys]
    names = {key: clean(end if ends.count(end) == 1 else key) for key, end in zip(keys, ends)}
    maps, lines, single = [], [], {}
    for number, group in enumerate(outcome.groups):
        if group == outcome.baseline_group or not _finished(outcome, group):
            continue
        varied = outcome.axes.get(group, {})
        axes = {key: axis for key, axis in varied.items() if isinstance(axis, SearchedRange) or axis[1:]}
        match list(axes.items()):
            case [(first, list(rows)), (second, list(columns))]:
                maps.append(_heat_map(f"map-{number}", outcome, group, {first: rows, second: columns}, names))
            case [(key, list())]:
                single.setdefault(key, []).append(group)
            case _:
                lines += [(f"slice-{number}-{i}", key, [group], False) for i, key in enumerate(axes)]
    lines += [(f"line-{i}", key, groups, True) for i, (key, groups) in enumerate(single.items())]
    drawn = (_losses_over(at, outcome, key, names[key], own, joined, looks) for at, key, own, joined in lines)
    return [*maps, *drawn]


def _series(group: str) -> str:
    return group or "all points"


def _finished(outcome: Outcome, group: str) -> list[Variant]:
    return [point for point in outcome.of_group(group) if isinstance(point, Variant)]


def _shown(value: Any) -> str:
    """Return a value as an axis labels it."""
    return tick(value) if _is_number(value) else shorten(plain(value), 14)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _losses_over(
    key: str,
    outcome: Outcome,
    axis: str,
    title: str,
    groups: Sequence[str],
    is_joined: bool,
    looks: Looks,
) -> Figure:
    """Points with their intervals over the values of one recipe key; is_joined: a line for each group."""
    axes = [outcome.axes[group][axis] for group in groups]
    spread = [value for each in axes for value in ((each.low, each.high) if isinstance(each, SearchedRange) else each)]
    numeric = all(map(_is_number, spread))
    is_log = numeric and min(spread) > 0 and max(spread) > 8 * min(spread)
    is_log = axes[0].log if isinstance(axes[0], SearchedRange) else is_log
    at, line = float if numeric else _shown, "" if is_joined else None
    points = [
        Point(_series(group), point.name, at(point.values[axis]), score(point, outcome), line)
        for group in groups
        for point in _finished(outcome, group)
        if axis in point.values and (not numeric or _is_number(point.values[axis]))
    ]
    if numeric:
        few = len(set(spread)) <= 9 and not isinstance(axes[0], SearchedRange)
        values = sorted(set(spread)) if few else alt.Undefined
        across = charts.x("x", title, None, is_log, values=values, format=".4~g")
    else:
        across = alt.X("x:N", title=title, sort=[_shown(value) for value in spread], axis=alt.Axis(labelAngle=0))
    words, level = (title, _LOSS), None
    if (baseline := outcome.baseline_words) is not None:
        words, level = (title, f"loss minus that of {shorten(baseline, 30)}"), (baseline, 0.0)
    own = {_series(group): looks[group] for group in groups}
    shown_groups = ", ".join(clean(group) for group in groups if group) or "All points"
    return point_figure(key, f"{shown_groups}: {title}", points, own, across, words, level)


_MOST_MEDIANS = 4.0
"""Colours saturate at this many times the median distance, so that a point that diverged does not pale the others."""


def _heat_map(key: str, outcome: Outcome, group: str, grid: dict[str, list[Any]], names: Mapping[str, str]) -> Figure:
    """Return a heat map whose longer axis is vertical, so that it fits on a narrow screen."""
    (down, rows), (across, columns) = sorted(grid.items(), key=lambda item: -len(item[1]))
    has_zero, cells = outcome.baseline_words is not None, list[dict[str, Any]]()
    inside = [p for p in outcome.of_group(group) if p.values.get(down) in rows and p.values.get(across) in columns]
    means = {each.name: finite(score(each, outcome).mean) for each in inside if isinstance(each, Variant)}
    known = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    best = min(known, key=known.__getitem__, default=None)
    shade = _shades(list(known.values()), has_zero)
    for point in inside:
        cell = {"down": _shown(point.values[down]), "across": _shown(point.values[across]), "point": clean(point.name)}
        cell |= {"shade": shade(known[point.name]) if point.name in known else None, "best": point.name == best}
        if isinstance(point, OpenPoint):
            cells.append(cell | {"score": point.state, "width": "", "interval": ""})
            continue
        mark = "*" if has_zero and point.verdict in ("better", "worse") else ""
        number = shown_score(known[point.name], outcome, 3 if has_zero else 4) if point.name in known else MISSING
        width, ends = tick(round(point.cost.average_width, 1)), interval(score(point, outcome), 4)
        cells.append(cell | {"score": number + mark, "width": width, "interval": ends})
    where = {
        "x": alt.X("across:N", sort=[_shown(v) for v in columns], title=names[across], axis=alt.Axis(labelAngle=0)),
        "y": alt.Y("down:N", sort=[_shown(v) for v in reversed(rows)], title=names[down]),
    }
    base = alt.Chart(charts.table_of(cells)).encode(**where)
    tip = charts.tips(point="", score="", interval="", width="|average width")
    scale = alt.Scale(domain=list(range(len(HEAT))), range=HEAT)
    layers = [
        base.mark_rect(stroke=charts.CARD, strokeWidth=2)
        .encode(fill=alt.Fill("shade:O", scale=scale, legend=None), tooltip=tip)
        .transform_filter("isValid(datum.shade)"),
        base.mark_rect(fill=None, stroke=INK, strokeWidth=1.8).transform_filter("datum.best"),
        base.mark_text(dy=-6, fill=INK).encode(text="score:N"),
        base.mark_text(dy=8).encode(text="width:N"),
    ]
    words = "Difference to the baseline" if has_zero else "Held-out loss"
    label = f"{words} of {shorten(_series(group), 40)} over {names[down]} and {names[across]}."
    if best is not None:
        low, high = (shown_score(end, outcome) for end in (min(known.values()), max(known.values())))
        label += f" From {low} to {high}; best: {shorten(best, 60)}."
    title = f"{clean(group)}: {names[down]} and {names[across]}" if group else f"{names[down]} and {names[across]}"
    return Figure(key, title, label, alt.layer(*layers), height=60 + 44 * len(rows))


def _shades(scores: Sequence[float], has_zero: bool) -> Callable[[float], int]:
    """Return numbers to places in HEAT: blue below 0, orange above; without a baseline the deeper blue, the lower."""
    start = 0.0 if has_zero else min(scores, default=0.0)
    distances = [abs(each - start) for each in scores if each != start] or [1.0]
    largest = min(max(distances), _MOST_MEDIANS * float(np.median(distances)))
    middle, n_each = (start if has_zero else start + largest), len(HEAT) // 2

    def shade(each: float) -> int:
        share = min(max((each - middle) / largest, -1.0), 1.0 if has_zero else 0.0)
        return n_each + int(math.copysign(math.ceil(abs(share) * n_each - 1e-9), share))

    return shade


def compute_figure(outcome: Outcome, flops: Mapping[str, float], x_title: str, looks: Looks) -> Figure | None:
    """Return the loss over training compute, one marker per point; None if no point has finished.

    flops: by point. Bars are the intervals of the differences, seen from the baseline's loss.
    """
    baseline = outcome.baseline_variant
    zero = finite(baseline.val_loss.mean) if baseline else 0.0

    def loss(point: Variant) -> Estimate:
        return moved(score(point, outcome), zero) if baseline else point.val_loss

    points = [
        Point(_series(group), each.name, flops[each.name], loss(each))
        for group in outcome.groups
        for each in _finished(outcome, group)
        if each is not baseline
    ]
    if not points:
        return None
    own, level = {_series(group): style for group, style in looks.items()}, None
    if baseline:
        own, level = own | {baseline.name: BASELINE_STYLE}, (baseline.name, zero)
        points.append(Point(baseline.name, baseline.name, flops[baseline.name], Estimate(mean=zero)))
    across, words = charts.x("x", x_title, format="~s"), (x_title, _LOSS)
    return point_figure("shapes", f"Loss over {x_title}", points, own, across, words, level)
