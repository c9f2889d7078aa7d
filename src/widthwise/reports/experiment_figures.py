"""Figures of an experiment: differences, costs, losses over shapes, over what a sweep varies and over a trend."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from widthwise.records.cost import CostSummary
from widthwise.records.estimate import FEWEST_SEEDS, Estimate, OverTokens
from widthwise.records.outcome import OpenPoint, Outcome, SearchedRange, Trend, Variant
from widthwise.records.quantities import OF_HELD_OUT, QUANTITIES, TITLES
from widthwise.records.record import finite
from widthwise.reports import charts
from widthwise.reports.charts import BASELINE_STYLE, HEAT, INK, MUTED, Figure, Style, areas, limits_of, styles
from widthwise.reports.formats import (
    MISSING,
    capital,
    clean,
    fixed,
    interval,
    plain,
    ratio,
    shorten,
    si,
    signed,
    tick,
)

_ROW = 30
"""Pixels of a row."""


def difference_figure(outcome: Outcome, looks: Mapping[str, Style]) -> Figure | None:
    """Return a forest plot: per variant the difference of each seed, its mean, and its interval where seeds suffice.

    None where nothing is outcome.
    """
    found = [(each, each.difference) for each in outcome.variants if each.difference is not None and each.name in looks]
    if not found:
        return None
    own = {each.name: looks[each.name] for each, _ in found}
    names = [{"name": clean(each.name)} for each, _ in found]
    with_ends = len(found[0][1].per_seed) >= FEWEST_SEEDS
    baseline = shorten(outcome.baseline_words or "its baseline", 30)
    means = [
        {
            **name,
            "mean": finite(each.mean),
            "low": finite(each.low),
            "high": finite(each.high),
            "verdict": variant.verdict,
        }
        for name, (variant, each) in zip(names, found)
    ]
    seeds = [
        {**name, "seed": seed, "difference": finite(value)}
        for name, (_, each) in zip(names, found)
        for seed, value in zip(outcome.seeds, each.per_seed)
    ]
    title = [f"nats above {baseline}: left of 0 is better", *([] if with_ends else ["too few seeds for intervals"])]
    along = charts.x("mean", title, format="+.3~f", grid=True)
    rows: dict[str, Any] = {"y": alt.Y("name:N", sort=None, title=None), **charts.coloured(own, "color")}
    layers = [charts.line_at(0, "x")]
    if with_ends:
        ends = charts.chart(means).mark_rule(strokeWidth=2.6)
        layers.append(ends.encode(x=charts.x("low", title), x2="high:Q", **rows))
    tip = charts.tips(name="|variant", seed="", difference="+.4f")
    layers.append(
        charts.chart(seeds).mark_tick(thickness=1.4, size=11, yOffset=8).encode(x="difference:Q", tooltip=tip, **rows)
    )
    tip = charts.tips(name="|variant", mean="+.4f", low="+.4f", high="+.4f", verdict="")
    points = charts.chart(means).mark_point(size=95)
    layers.append(points.encode(x=along, tooltip=tip, shape=charts.coloured(own, "shape")["shape"], **rows))
    numbers = "; ".join(
        f"{shorten(each.name, 40)} {signed(difference.mean, 4)} ({interval(difference, 4, True) or 'no interval'})"
        for each, difference in found
    )
    label = f"Difference in held-out loss to {baseline}: {numbers}."
    chart = alt.layer(*layers)
    return Figure("differences", f"Held-out loss minus that of {baseline}", label, chart, own, 40 + _ROW * len(found))


def part_figure(variants: Sequence[Variant]) -> Figure:
    """Return parameters by part of the model, one stacked bar per variant."""
    names = dict.fromkeys(name for variant in variants for name, size in variant.cost.params.items() if size)
    looks = areas([name for name in names if name not in ("total", "active", "dead")])
    rows = [
        {"name": part, "variant": clean(each.name), "parameters": each.cost.params.get(part, 0.0), "order": i}
        for each in variants
        for i, part in enumerate(looks)
    ]
    chart = (
        charts.chart(rows)
        .mark_bar(stroke=charts.CARD, strokeWidth=0.7)
        .encode(
            x=alt.X("sum(parameters):Q", title="parameters", axis=alt.Axis(format="~s")),
            y=alt.Y("variant:N", sort=None, title=None),
            order="order:Q",
            tooltip=charts.tips(variant="", name="|part", parameters=",.0f"),
            **charts.coloured(looks, "fill"),
        )
    )
    totals = "; ".join(f"{shorten(v.name, 40)} {si(v.cost.params['total'])}" for v in variants)
    label = f"Parameters by part of the model. Totals: {totals}."
    return Figure("parts", "Parameters by part", label, chart, looks, 40 + 26 * len(variants))


def ratio_figure(outcome: Outcome, looks: Mapping[str, Style]) -> Figure | None:
    """Return costs relative to the baseline, one row per quantity. None where there is only the baseline."""
    pairs = [
        (variant, other)
        for variant in outcome.variants
        if variant.name in looks and (other := outcome.baseline_of(variant)) is not None and other.name != variant.name
    ]
    rows = [
        {"name": clean(variant.name), "quantity": each.bare_title, "ratio": value}
        for each in QUANTITIES
        if each.has_ratio and not each.is_loss
        for variant, other in pairs
        if (value := each.ratio(variant, other)) is not None
    ]
    if not rows:
        return None
    own = {variant.name: looks[variant.name] for variant, _ in pairs}
    baseline = shorten(outcome.baseline_words or "", 30)
    points = (
        charts.chart(rows)
        .mark_point()
        .encode(
            x=charts.x("ratio", f"times the value of {baseline}", grid=True),
            y=alt.Y("quantity:N", sort=None, title=None),
            yOffset=alt.YOffset("name:N", sort=None),
            tooltip=charts.tips(name="|variant", quantity="", ratio=".3f"),
            **charts.coloured(own, "color", "shape"),
        )
    )
    by_name: dict[str, list[str]] = {}
    for row in rows:
        by_name.setdefault(str(row["name"]), []).append(f"{row['quantity']} {ratio(float(row['ratio'] or 0)) or '?'}")
    numbers = "; ".join(f"{shorten(name, 40)}: {', '.join(each)}" for name, each in by_name.items())
    label = f"Costs and speed relative to {baseline}. {numbers}."
    chart = alt.layer(charts.line_at(1, "x"), points)
    n_rows = len({row["quantity"] for row in rows})
    return Figure("ratios", f"Costs relative to {baseline}", label, chart, own, 40 + n_rows * max(26, 9 * len(own)))


def estimate_layers(
    rows: Sequence[tuple[str, str, Any, Estimate]],
    looks: Mapping[str, Style],
    across: Callable[[], alt.X],
    y_title: str,
    marks: Sequence[float] = (),
) -> list[alt.Chart]:
    """Return means as markers with their intervals as upright lines.

    rows: series, point, place on the x axis (column `x`), estimate. marks: what else the y axis must show.
    """
    shown = [
        {
            "name": clean(name),
            "point": clean(point),
            "x": at,
            "mean": finite(e.mean),
            "low": finite(e.low),
            "high": finite(e.high),
        }
        for name, point, at, e in rows
    ]
    domain = limits_of([e for *_, e in rows], marks) if rows else None
    tip = charts.tips(name="|series", point="", mean=".4f", low=".4f", high=".4f")
    own = {"x": across(), "tooltip": tip}
    ends = charts.chart(shown).mark_rule(strokeWidth=1.6, opacity=0.55, clip=True)
    points = charts.chart(shown).mark_point(clip=True)
    return [
        ends.encode(y=charts.y("low", y_title, domain), y2="high:Q", **own, **charts.coloured(looks)),
        points.encode(y=charts.y("mean", y_title, domain), **own, **charts.coloured(looks, "color", "shape")),
    ]


@dataclass(frozen=True)
class Stack:
    """A model whose layers all have the same sizes, with its loss."""

    name: str
    n_blocks: int
    n_layers: int
    d_model: int
    d_hidden: int
    loss: Estimate
    """Where there is a baseline its loss and the difference to it, whose interval is the narrower."""

    @property
    def ratio(self) -> float:
        return self.d_hidden / self.d_model

    @property
    def aspect(self) -> float:
        return self.d_model / self.n_layers


def shape_figures(outcome: Outcome, names: Collection[str]) -> list[Figure]:
    """Return figures 3 and 4 of the hourglass paper, arXiv:2602.06471, of the variants `names`, which have one budget.

    None of them where no line has two.
    """
    baseline = outcome.baseline_variant
    zero = None if baseline is None else baseline.val_loss.mean
    others = [each for each in outcome.variants if each is not baseline and each.name in names]
    stacks = [stack for each in others if (stack := _stack(each, zero)) is not None]
    by_depth: dict[tuple[int, int], list[Stack]] = {}
    lowest: dict[tuple[int, int], Stack] = {}
    for stack in sorted(stacks, key=lambda stack: -finite(stack.loss.mean)):
        by_depth.setdefault((stack.n_blocks, stack.n_layers), []).append(stack)
        lowest[stack.n_blocks, stack.n_layers] = stack
    by_blocks: dict[tuple[int, int], list[Stack]] = {}
    for stack in lowest.values():
        by_blocks.setdefault((stack.n_blocks, 0), []).append(stack)
    looks = styles([f"K = {k}" for k in sorted({stack.n_blocks for stack in stacks})])
    reference = None if baseline is None or zero is None else (baseline.name, zero)
    return [
        _shape_figure(key, words, lines, stacks, at, looks, reference)
        for key, words, lines, at in (
            ("shape-ratio", "d_hidden / d_model", by_depth, lambda stack: stack.ratio),
            ("shape-aspect", "d_model / n_layers", by_blocks, lambda stack: stack.aspect),
        )
        if any(len(line) > 1 for line in lines.values())
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


def _shape_figure(
    key: str,
    words: str,
    lines: Mapping[tuple[int, int], Sequence[Stack]],
    stacks: Sequence[Stack],
    at: Callable[[Stack], float],
    looks: Mapping[str, Style],
    reference: tuple[str, float] | None,
) -> Figure:
    """lines: (number of blocks, depth or 0) -> models. reference: name and loss of the baseline."""
    marks = [] if reference is None else [reference[1]]
    rows = [(f"K = {each.n_blocks}", each.name, at(each), each.loss) for each in stacks]
    joined = [
        {"name": f"K = {k}", "line": f"L = {depth}" if depth else "", "x": at(each), "y": finite(each.loss.mean)}
        for (k, depth), line in lines.items()
        for each in sorted(line, key=at)
    ]

    def across() -> alt.X:
        return charts.x("x", words)

    lines_drawn = charts.chart(joined).mark_line(strokeWidth=1.4)
    y_axis = charts.y("y", "held-out loss", limits_of([each.loss for each in stacks], marks))
    layers = [
        lines_drawn.encode(x=across(), y=y_axis, detail="line:N", **charts.coloured(looks, "color", "strokeDash"))
    ]
    layers += [charts.line_at(mark, "y", BASELINE_STYLE.dash, MUTED) for mark in marks]
    layers += estimate_layers(rows, looks, across, "held-out loss", marks)
    best = min(stacks, key=lambda stack: finite(stack.loss.mean))
    label = (
        f"Held-out loss over {words}, a marker for each of {len(stacks)} shapes, lines by number of blocks K. The "
        f"lowest is {fixed(best.loss.mean, 4)} at {tick(round(at(best), 3))}, of {shorten(best.name, 40)}, "
        f"K = {best.n_blocks}."
    )
    if reference is not None:
        label += f" The dashed line is {shorten(reference[0], 40)} at {fixed(reference[1], 4)}."
    return Figure(key, f"Held-out loss over {words}", label, alt.layer(*layers), looks)


def trend_figure(trend: Trend, losses: Mapping[str, Estimate], looks: Mapping[str, Style]) -> Figure:
    """Return losses over the logarithm of a quantity, with the fitted line and the band of its slope.

    Seeds are shifted to a common mean, because runs are compared within a seed.
    """
    points = sorted(trend.points, key=lambda point: point.value)
    values = np.array([point.value for point in points])
    line = np.array([finite(point.line) for point in points])
    per_seed = np.array([list(map(finite, losses[point.variant].per_seed)) for point in points])
    shifted = per_seed - per_seed.mean(axis=0) + per_seed.mean()
    turn = np.log2(values) - np.log2(values).mean()
    low, high = (line + (finite(end) - finite(trend.slope.mean)) * turn for end in (trend.slope.low, trend.slope.high))
    title, own = TITLES.get(trend.of, clean(trend.of)), {p.variant: looks[p.variant] for p in points}
    ends = charts.span([*line.tolist(), *low.tolist(), *high.tolist(), *shifted.ravel().tolist()])

    def across() -> alt.X:
        ticks = {"values": values.tolist(), "format": "~s"}
        return charts.x("x", f"{clean(trend.over)}, on a logarithmic axis", None, True, **ticks)

    fitted = alt.Chart(
        charts.table_of(
            [{"x": v, "line": f, "low": a, "high": b} for v, f, a, b in zip(values.tolist(), line, low, high)]
        )
    )
    seeds = [
        {"name": clean(p.variant), "x": p.value, "loss": float(each)}
        for p, losses_of in zip(points, shifted)
        for each in losses_of
    ]
    means = [{"name": clean(p.variant), "x": p.value, "mean": float(s.mean())} for p, s in zip(points, shifted)]
    tip = charts.tips(name="|variant", x=f",.4~s|{clean(trend.over)}", mean=f".4f|{title}")
    layers = [
        fitted.mark_area(fill=MUTED, opacity=0.16).encode(x=across(), y=charts.y("low", title, ends), y2="high:Q"),
        fitted.mark_line(color=INK, strokeWidth=1.4).encode(x=across(), y=charts.y("line", title, ends)),
        charts.chart(seeds)
        .mark_point(shape="stroke", size=130, filled=False, strokeWidth=1.4)
        .encode(x=across(), y=charts.y("loss", title, ends), stroke=charts.coloured(own)["color"]),
        charts.chart(means)
        .mark_point()
        .encode(x=across(), y=charts.y("mean", title, ends), tooltip=tip, **charts.coloured(own, "color", "shape")),
    ]
    numbers = "; ".join(
        f"{shorten(p.variant, 40)} at {tick(p.value)}: {fixed(losses[p.variant].mean, 4)}, line {fixed(p.line, 4)}"
        for p in points
    )
    slope = f"{signed(trend.slope.mean, 4)} with each doubling ({interval(trend.slope, 4, True) or 'no interval'})"
    label = f"{capital(title)} over {clean(trend.over)}: {slope}. {numbers}."
    return Figure("trend", f"{capital(title)} over {clean(trend.over)}", label, alt.layer(*layers), own)


def course_figures(loss: str, variants: Sequence[Variant], looks: Mapping[str, Style], baseline: str) -> list[Figure]:
    """Return figures over tokens: the gap of a held-out loss to the baseline's, and the ratio of tokens."""
    title, other = OF_HELD_OUT[loss].title, shorten(baseline, 40)
    gaps = {each.name: each.gap[loss] for each in variants if loss in each.gap}
    ratios = {each.name: each.tokens_ratio[loss] for each in variants if loss in each.tokens_ratio}
    found = [
        _course(f"gap-{loss}", f"{capital(title)} minus that of {other}", "difference in nats", gaps, looks, 0),
        _course(
            f"tokens-ratio-{loss}", f"Tokens to the {title} of {other}", f"times those of {other}", ratios, looks, 1
        ),
    ]
    return [figure for figure in found if figure is not None]


def _course(
    key: str, title: str, y_title: str, curves: Mapping[str, OverTokens], looks: Mapping[str, Style], equal: float
) -> Figure | None:
    """Means over tokens, with bands over seeds. equal: where nothing differs. None where none has two points."""
    drawn = {name: curve for name, curve in curves.items() if len(curve.tokens) > 1}
    if not drawn:
        return None
    rows = [
        {"name": clean(name), "tokens": float(at), "mean": finite(mean), "low": finite(low), "high": finite(high)}
        for name, curve in drawn.items()
        for at, mean, low, high in zip(curve.tokens, curve.mean, curve.low, curve.high)
    ]
    end = max(float(row["tokens"]) for row in rows)
    late = [row for row in rows if float(row["tokens"]) >= 0.1 * end]
    domain = charts.span([equal, *(float(row[part]) for row in late for part in ("mean", "low", "high"))])
    own = {name: looks[name] for name in drawn}
    tip = charts.tips(name="|variant", tokens=",.0f", mean=".4f", low=".4f", high=".4f")
    base = charts.chart(rows).encode(x=charts.x("tokens", "tokens", format="~s"), tooltip=tip)
    y_axis = charts.y("mean", y_title, domain)
    layers = [
        charts.line_at(equal, "y"),
        base.mark_area(opacity=0.16, clip=True).encode(
            y=charts.y("low", y_title, domain), y2="high:Q", **charts.coloured(own, "fill")
        ),
        base.mark_line().encode(y=y_axis, **charts.coloured(own, "color", "strokeDash")),
        base.mark_circle(size=70, opacity=0, clip=True).encode(y=y_axis, **charts.coloured(own)),
    ]
    ends = "; ".join(f"{shorten(name, 40)} {fixed(curve.mean[-1], 4)}" for name, curve in drawn.items())
    label = f"{title}, {y_title}, over tokens. At the end of each line: {ends}."
    return Figure(key, title, label, alt.layer(*layers), own)


def score(point: Variant, outcome: Outcome) -> Estimate:
    """Return the difference to its baseline, 0 for a baseline itself; the loss where nothing is outcome."""
    if outcome.baseline_words is None:
        return point.val_loss
    return point.difference or Estimate(mean=0.0 if outcome.baseline_of(point) is point else None)


def shown_score(mean: float, outcome: Outcome, n_decimals: int = 4) -> str:
    """Return a score as text, with its sign if it is a difference."""
    return (signed if outcome.baseline_words else fixed)(mean, n_decimals)


def axis_figures(outcome: Outcome, looks: Mapping[str, Style]) -> list[Figure]:
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
                over = enumerate(axes)
                lines += [
                    _losses_over(f"slice-{number}-{i}", outcome, key, names[key], [group], looks, False)
                    for i, key in over
                ]
    lines += [
        _losses_over(f"line-{i}", outcome, key, names[key], groups, looks, True)
        for i, (key, groups) in enumerate(single.items())
    ]
    return [*maps, *lines]


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
    looks: Mapping[str, Style],
    is_joined: bool,
) -> Figure:
    """Points with their intervals over the values of one recipe key; is_joined: a line for each group."""
    axes = [outcome.axes[group][axis] for group in groups]
    spread = [value for each in axes for value in ((each.low, each.high) if isinstance(each, SearchedRange) else each)]
    numeric = all(map(_is_number, spread))
    is_log = numeric and min(spread) > 0 and max(spread) > 8 * min(spread)
    is_log = axes[0].log if isinstance(axes[0], SearchedRange) else is_log
    placed = [
        (group or "all points", point, point.values.get(axis))
        for group in groups
        for point in _finished(outcome, group)
        if axis in point.values and (not numeric or _is_number(point.values[axis]))
    ]
    own = {group or "all points": looks[group] for group in groups}

    def across() -> alt.X:
        if not numeric:
            return alt.X("x:N", title=title, sort=[_shown(value) for value in spread], axis=alt.Axis(labelAngle=0))
        few = sorted(set(spread)) if len(set(spread)) <= 9 and not isinstance(axes[0], SearchedRange) else None
        return charts.x("x", title, None, is_log, **({"values": few} if few else {}), format=".4~g")

    y_title = f"loss minus that of {shorten(outcome.baseline_words, 30)}" if outcome.baseline_words else "held-out loss"
    at = (lambda value: float(value)) if numeric else _shown
    rows = [(series, point.name, at(value), score(point, outcome)) for series, point, value in placed]
    layers = [charts.line_at(0, "y")] if outcome.baseline_words else []
    if is_joined and rows:
        joined = [{"name": clean(name), "x": where, "y": finite(each.mean)} for name, _, where, each in rows]
        domain = limits_of([each for *_, each in rows], [0.0] if outcome.baseline_words else [])
        line = charts.chart(joined).mark_line(strokeWidth=1.5)
        layers.append(
            line.encode(x=across(), y=charts.y("y", y_title, domain), **charts.coloured(own, "color", "strokeDash"))
        )
    layers += estimate_layers(rows, own, across, y_title, [0.0] if outcome.baseline_words else [])
    known = [(finite(each.mean), name, where) for name, _, where, each in rows if each.mean is not None]
    label = f"{capital(y_title)} over {title}."
    if known:
        low, series, where = min(known, key=lambda each: each[0])
        of = f" of {shorten(series, 40)}" if series != "all points" else ""
        label += f" Lowest: {shown_score(low, outcome)} at {_shown(where)}{of}."
    shown_groups = ", ".join(clean(group) for group in groups if group) or "All points"
    return Figure(key, f"{shown_groups}: {title}", label, alt.layer(*layers), own)


_MOST_MEDIANS = 4.0
"""Colours saturate at this many times the median distance, so that a point that diverged does not pale the others."""


def _heat_map(key: str, outcome: Outcome, group: str, grid: dict[str, list[Any]], names: Mapping[str, str]) -> Figure:
    """Return a heat map whose longer axis is vertical, so that it fits on a narrow screen."""
    (down, rows), (across, columns) = sorted(grid.items(), key=lambda item: -len(item[1]))
    cells = [
        (point, finite(score(point, outcome).mean) if isinstance(point, Variant) else math.nan)
        for point in outcome.of_group(group)
        if point.values.get(down) in rows and point.values.get(across) in columns
    ]
    known = {point.name: mean for point, mean in cells if math.isfinite(mean)}
    best = min(known, key=known.__getitem__, default=None)
    shade = _shades(list(known.values()), outcome.baseline_words is not None)
    shown = [
        _map_row(point, mean, outcome, shade, down, across) | {"best": point.name == best} for point, mean in cells
    ]
    where = {
        "x": alt.X("across:N", sort=[_shown(v) for v in columns], title=names[across], axis=alt.Axis(labelAngle=0)),
        "y": alt.Y("down:N", sort=[_shown(v) for v in reversed(rows)], title=names[down]),
    }
    base = alt.Chart(charts.table_of(shown)).encode(**where)
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
    words = "Difference to the baseline" if outcome.baseline_words else "Held-out loss"
    label = f"{words} of {shorten(group or 'all points', 40)} over {names[down]} and {names[across]}."
    if best is not None:
        low, high = (shown_score(end, outcome) for end in (min(known.values()), max(known.values())))
        label += f" From {low} to {high}; best: {shorten(best, 60)}."
    title = f"{clean(group)}: {names[down]} and {names[across]}" if group else f"{names[down]} and {names[across]}"
    return Figure(key, title, label, alt.layer(*layers), height=60 + 44 * len(rows))


def _map_row(
    point: Variant | OpenPoint, mean: float, outcome: Outcome, shade: Callable[[float], int], down: str, across: str
) -> dict[str, Any]:
    own = {"down": _shown(point.values[down]), "across": _shown(point.values[across]), "point": clean(point.name)}
    if isinstance(point, OpenPoint):
        return own | {"score": point.state, "shade": None, "width": "", "interval": ""}
    mark = "*" if outcome.baseline_words and point.verdict in ("better", "worse") else ""
    number = shown_score(mean, outcome, 3 if outcome.baseline_words else 4) if math.isfinite(mean) else MISSING
    width = tick(round(point.cost.average_width, 1))
    ends = interval(score(point, outcome), 4)
    return own | {
        "score": number + mark,
        "shade": shade(mean) if math.isfinite(mean) else None,
        "width": width,
        "interval": ends,
    }


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


def compute_figure(
    outcome: Outcome, flops: Mapping[str, float], x_title: str, looks: Mapping[str, Style]
) -> Figure | None:
    """Return the loss over training compute, one marker per point; None if no point has finished.

    flops: by point. Bars are the intervals of the differences, seen from the baseline's loss.
    """
    baseline = outcome.baseline_variant
    zero = finite(baseline.val_loss.mean) if baseline else 0.0
    found = [
        (
            group or "all points",
            each.name,
            flops[each.name],
            moved(score(each, outcome), zero) if baseline else each.val_loss,
        )
        for group in outcome.groups
        for each in _finished(outcome, group)
        if each is not baseline
    ]
    if not found:
        return None
    own = {group or "all points": style for group, style in looks.items()}
    layers = [charts.line_at(zero, "y", BASELINE_STYLE.dash, MUTED)] if baseline else []
    if baseline:
        own = own | {baseline.name: BASELINE_STYLE}
        found.append((baseline.name, baseline.name, flops[baseline.name], Estimate(mean=zero)))
    layers += estimate_layers(found, own, lambda: charts.x("x", x_title, format="~s"), "held-out loss")
    lowest = next((point for point in outcome.variants if point.val_loss.mean is not None), None)
    label = f"Held-out loss over {x_title}, a marker for each of {len(found) - bool(baseline)} points."
    if baseline:
        label += (
            f" The dashed line is {shorten(baseline.name, 40)} at {fixed(zero, 4)}, {si(flops[baseline.name])} FLOPs."
        )
    if lowest:
        name = shorten(lowest.name, 40)
        label += f" The lowest loss is {fixed(lowest.val_loss.mean, 4)}, of {name} with {si(flops[lowest.name])} FLOPs."
    return Figure("shapes", f"Loss over {x_title}", label, alt.layer(*layers), own)
