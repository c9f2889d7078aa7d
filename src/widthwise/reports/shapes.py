"""Figures of shapes: the width of every layer, its hidden units, and the stream."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import altair as alt

from widthwise.records.cost import CostSummary
from widthwise.records.run import RunResult
from widthwise.reports import charts
from widthwise.reports.charts import GRID, INK, MUTED, Figure, Looks, Style
from widthwise.reports.formats import capital, clean, fixed, hidden_widths, shorten

MOST_BLOCKS = 8
"""Largest number of feed-forward blocks drawn for a layer. Of more blocks, such as experts, only the first is drawn."""
MOST_NUMBERED = 20
"""Largest number of layers that all have a number; deeper models have numbers at the ends and the narrowest layer."""


def layer_ticks(n_layers: int) -> list[int]:
    """Return the layers with a label on an axis."""
    stride = max(1, math.ceil(n_layers / 8))
    return sorted({1, n_layers, *(layer for layer in range(stride, n_layers - stride // 2, stride) if layer > 1)})


def width_figures(costs: Mapping[str, CostSummary], looks: Looks, results: Mapping[str, RunResult]) -> list[Figure]:
    """Return the shape of each model, all on one scale. results: model -> result, for the widths chosen by tokens."""
    sizes = [[_stream_width(cost), *chain(*cost.hidden_widths)] for cost in costs.values()]
    widest = max(map(max, sizes), default=1)
    n_layers = max((len(cost.widths) for cost in costs.values()), default=1)
    used = {
        name: {layer.layer: layer.mean for layer in result.token_widths.layers}
        for name, result in results.items()
        if result.token_widths
    }
    return [
        _figure(f"width-{i}", name, cost, looks[name], widest, n_layers, used.get(name, {}))
        for i, (name, cost) in enumerate(costs.items())
    ]


def _stream_width(cost: CostSummary) -> int:
    """Return the width of the stream, which costs of models without slots omit."""
    return cost.stream_width or max(cost.d_model, *cost.widths)


def _bar(width: float, start: float, height: float, label: str) -> dict[str, Any]:
    """Return a centred bar. start: its lower edge, in layers."""
    return {"left": -width / 2, "right": width / 2, "low": start, "high": start + height, "label": label}


def _figure(
    key: str, name: str, cost: CostSummary, style: Style, widest: int, deepest: int, used: Mapping[int, float]
) -> Figure:
    """Return centred bars, layer 1 at the bottom.

    widest, deepest: largest width and number of layers of all models. used: layer -> share of the hidden units that
    tokens choose, on average.
    """
    n_layers = len(cost.widths)
    stream = _stream_width(cost)
    layer_bars = []
    hidden_bars = []
    for layer, width in enumerate(cost.widths, start=1):
        heads = f", {cost.n_heads[layer - 1]} heads" if cost.n_heads else ""
        layer_bars.append(_bar(width, layer - 0.4, 0.34, f"layer {layer}: width {width}{heads}"))
        blocks = cost.hidden_widths[layer - 1] if cost.hidden_widths else ()
        drawn = blocks if len(blocks) <= MOST_BLOCKS else blocks[:1]
        label = f"layer {layer}: hidden {hidden_widths(blocks)}"
        shares = [1.0]
        if layer in used:
            label += f"; tokens use {fixed(used[layer], 3)} of them on average"
            shares.append(used[layer])
        for i, units in enumerate(drawn):
            start = layer - 0.02 + i * 0.42 / len(drawn)
            hidden_bars += [_bar(share * units, start, 0.36 / len(drawn), label) for share in shares]
    n_slots = cost.n_slots or 1
    stream_label = f"stream {stream}"
    if n_slots > 1:
        stream_label += f": {n_slots} slots of {cost.slot_width}"
    ground = [_bar(stream, 0.5, n_layers, stream_label)]
    ends = [(slot / n_slots - 0.5) * stream for slot in range(1, n_slots)]
    edges = [{"left": x, "right": x + 0.004 * widest, "low": 0.5, "high": n_layers + 0.5, "label": ""} for x in ends]
    narrowest = cost.widths.index(min(cost.widths)) + 1
    numbered = range(1, n_layers + 1) if n_layers <= MOST_NUMBERED else sorted({1, narrowest, n_layers})
    numbers = [{"layer": layer - 0.23, "at": 0, "number": cost.widths[layer - 1]} for layer in numbered]
    if n_layers <= MOST_NUMBERED:
        for layer, blocks in enumerate(cost.hidden_widths, start=1):
            if len(blocks) == 1:
                numbers.append({"layer": layer + 0.2, "at": 0, "number": blocks[0]})
    across = alt.X("left:Q", axis=None, scale=alt.Scale(domain=[-0.52 * widest, 0.52 * widest], nice=False))
    up = alt.Y("low:Q", axis=_layer_axis(n_layers), scale=alt.Scale(domain=[0.3, deepest + 0.7], nice=False))
    marks = [
        _rectangles(rows, colour, opacity, across, up)
        for rows, colour, opacity in (
            (ground, GRID, 0.55),
            (edges, MUTED, 1.0),
            (layer_bars, style.colour, 0.55),
            (hidden_bars, style.colour, 0.25),
        )
        if rows
    ]
    texts = charts.chart(numbers).mark_text(fill=INK, fontSize=10.5)
    marks.append(texts.encode(x="at:Q", y="layer:Q", text="number:N"))
    description = (
        f"Width of each layer of {shorten(name, 60)}, layer 1 at the bottom: from {min(cost.widths)} to "
        f"{max(cost.widths)}, average {cost.average_width:.0f}, d_model {cost.d_model}. "
    )
    by_total = sorted(cost.hidden_widths, key=sum)
    if by_total:
        smallest = hidden_widths(by_total[0])
        largest = hidden_widths(by_total[-1])
        extent = smallest if smallest == largest else f"from {smallest} to {largest}"
        description += f"Hidden units: {extent}. "
    description += f"{capital(stream_label)}."
    title = f"{clean(name)}, d_model {cost.d_model}"
    return Figure(key, title, description, alt.layer(*marks), height=_height(deepest), is_small=True)


def _rectangles(rows: charts.Rows, colour: str, opacity: float, across: alt.X, up: alt.Y) -> alt.Chart:
    """Return a rectangle for each row, from left to right and low to high; pointing at it shows its label."""
    marks = charts.chart(rows).mark_rect(fill=colour, opacity=opacity)
    return marks.encode(x=across, x2="right:Q", y=up, y2="high:Q", tooltip=charts.tips(label="|"))


def _layer_axis(n_layers: int) -> alt.Axis:
    """Return an axis with ticks at all layers, or at some of many."""
    values = layer_ticks(n_layers) if n_layers > MOST_NUMBERED else list(range(1, n_layers + 1))
    return alt.Axis(values=values, tickCount=len(values), format="d", grid=False, title="layer (1 reads the tokens)")


def _height(n_layers: int) -> int:
    return 60 + (30 * n_layers if n_layers <= MOST_NUMBERED else 300)


def size_figure(key: str, title: str, pairs: Sequence[tuple[int, int]], style: Style) -> Figure:
    """Return bars of a size of every layer before and after a change, layer 1 at the bottom. pairs: (before, after)."""
    n_layers = len(pairs)
    before = []
    after = []
    numbers = []
    for layer, (old, new) in enumerate(pairs, start=1):
        label = f"layer {layer}: {old}" if old == new else f"layer {layer}: {old}, now {new}"
        ends = {"left": 0, "low": layer - 0.4, "high": layer + 0.4, "label": label}
        before.append(ends | {"right": old})
        after.append(ends | {"right": new})
        numbers.append({"layer": layer, "at": 0, "number": str(old) if old == new else f"{new} of {old}"})
    across = alt.X("left:Q", title=None, axis=alt.Axis(format="~s", tickMinStep=1))
    up = alt.Y("low:Q", axis=_layer_axis(n_layers), scale=alt.Scale(domain=[0.3, n_layers + 0.7], nice=False))
    marks = [_rectangles(rows, style.colour, opacity, across, up) for rows, opacity in ((before, 0.2), (after, 0.45))]
    if n_layers <= MOST_NUMBERED:
        texts = charts.chart(numbers).mark_text(fill=INK, align="left", dx=5)
        marks.append(texts.encode(x="at:Q", y="layer:Q", text="number:N"))
    changed = [row["label"] for row, (old, new) in zip(after, pairs) if old != new]
    return Figure(key, title, f"{title}. {'; '.join(changed)}.", alt.layer(*marks), height=_height(n_layers))
