"""A model's shape as a picture: the width of each layer, its hidden widths, and the stream they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.cost import CostSummary
from widthwise.records.run import RunResult
from widthwise.reports.page.formats import fixed, hidden_widths, shorten
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, layer_ticks
from widthwise.reports.page.svg import GRID, MUTED, Style, draw

MOST_MAPS = 8
"""Where one layer has more maps, such as many experts, one of them is drawn."""
_LAYER, _HIDDEN = (-0.4, 0.34), (-0.02, 0.42)
"""Below and above the middle of a layer's row: where a bar begins, and how high it is."""


@dataclass(frozen=True)
class _Scale:
    """What all pictures share."""

    widest: int
    n_layers: int


def width_figures(
    costs: Mapping[str, CostSummary],
    styles: Mapping[str, Style],
    used: Mapping[str, Mapping[int, float]],
) -> dict[str, Markup]:
    """Name -> its shape, all on one scale. used: that of `used_widths`."""
    scale = _Scale(max(map(_widest, costs.values())), max(len(cost.widths) for cost in costs.values()))
    return {
        name: _figure(f"width-{i}", name, cost, styles[name], scale, used.get(name, {}))
        for i, (name, cost) in enumerate(costs.items())
    }


def used_widths(results: Mapping[str, RunResult]) -> dict[str, dict[int, float]]:
    """Name -> layer -> mean share of its hidden units that tokens choose, of the models that let them choose."""
    found = {name: result.token_widths for name, result in results.items()}
    return {name: {each.layer: each.mean for each in own.layers} for name, own in found.items() if own}


def _stream(cost: CostSummary) -> int:
    """Width of the stream; files of older versions do not say, their models have no slots."""
    return cost.stream_width or max(cost.d_model, *cost.widths)


def _widest(cost: CostSummary) -> int:
    return max([_stream(cost), *(units for maps in cost.hidden_widths for units in maps)])


def _figure(key: str, name: str, cost: CostSummary, style: Style, scale: _Scale, used: Mapping[int, float]) -> Markup:
    """Centred bars, layer 1 at the bottom."""
    n_layers, stream = len(cost.widths), _stream(cost)

    def paint(axes: Axes) -> None:
        axes.bar(0, n_layers, stream, 0.5, color=GRID, alpha=0.55, label=[named(name, _stream_words(cost))])
        for slot in range(1, cost.n_slots or 1):
            x = (slot / (cost.n_slots or 1) - 0.5) * stream
            axes.plot([x, x], [0.5, n_layers + 0.5], color=MUTED, linewidth=0.6)
        for layer in range(1, n_layers + 1):
            _paint_layer(axes, layer, name, cost, style, used.get(layer))
        for layer in _layers_to_label(cost.widths):
            axes.text(0.53 * scale.widest, layer - 0.22, str(cost.widths[layer - 1]), va="center", color=MUTED)
        axes.set_xlim(-0.52 * scale.widest, 0.7 * scale.widest)
        axes.set_ylim(0.3, scale.n_layers + 0.7)
        axes.set_yticks(layer_ticks(n_layers))
        axes.set_ylabel("layer (1 reads the tokens)")
        axes.set_xticks([0], [f"d_model {cost.d_model}"])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)

    label = (
        f"Width of each layer of {shorten(name, 60)}, layer 1 at the bottom: from {min(cost.widths)} to "
        f"{max(cost.widths)}, average {cost.average_width:.0f}, d_model {cost.d_model}. {_hidden_words(cost)}"
        f"{_stream_words(cost).capitalize()}."
    )
    return draw(key, label, INCHES, paint)


def _stream_words(cost: CostSummary) -> str:
    slots = f": {cost.n_slots} slots of {cost.slot_width}" if (cost.n_slots or 1) > 1 else ""
    return f"stream {_stream(cost)}{slots}"


def _hidden_words(cost: CostSummary) -> str:
    totals = [sum(widths) for widths in cost.hidden_widths]
    if not totals:
        return ""
    one, other = (cost.hidden_widths[totals.index(end)] for end in (min(totals), max(totals)))
    spread = hidden_widths(one) if one == other else f"from {hidden_widths(one)} to {hidden_widths(other)}"
    return f"Hidden units: {spread}. "


def _paint_layer(axes: Axes, layer: int, name: str, cost: CostSummary, style: Style, fraction: float | None) -> None:
    """fraction: of the hidden units that a token uses on average; None where all use all."""
    width, (start, height) = cost.widths[layer - 1], _LAYER
    heads = f", {cost.n_heads[layer - 1]} heads" if cost.n_heads else ""
    label = named(name, f"layer {layer}: width {width}{heads}")
    axes.bar(0, height, width, layer + start, color=style.colour, label=[label])
    maps = cost.hidden_widths[layer - 1] if cost.hidden_widths else ()
    shown, (start, height) = maps if len(maps) <= MOST_MAPS else maps[:1], _HIDDEN
    words = named(name, f"layer {layer}: hidden {hidden_widths(maps)}", _used(fraction))
    for i, units in enumerate(shown):
        place, each = layer + start + i * height / len(shown), height / len(shown)
        look = {"color": style.colour, "alpha": 0.4, "edgecolor": "none", "label": [words]}
        axes.bar(0, 0.86 * each, units, place, **look)
        if fraction is not None:
            axes.bar(0, 0.86 * each, fraction * units, place, **look)


def _used(fraction: float | None) -> str:
    return "" if fraction is None else f"tokens use {fixed(fraction, 3)} of them on average"


def _layers_to_label(widths: Sequence[int]) -> list[int]:
    """Layers whose width is written beside the bar: where it changes, or only the extremes of a deep model."""
    changes = [1] + [layer for layer in range(2, len(widths) + 1) if widths[layer - 1] != widths[layer - 2]]
    if len(widths) <= 20:
        return changes
    return sorted({1, widths.index(min(widths)) + 1, len(widths)})
