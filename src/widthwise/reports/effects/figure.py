"""One figure: a small panel for each variant with its difference to the baseline at every scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from widthwise.records.record import finite
from widthwise.reports.effects.scales import Effect, Scales, seed_words, sign, words
from widthwise.reports.page.formats import clean, interval, shorten, signed
from widthwise.reports.page.html import Panel, legend
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import label_axes, limits_of
from widthwise.reports.page.svg import CARD, INK, Facet, Style, draw_facets, line_legend, styles

INCHES = (2.6, 2.5)
"""Width and height of a panel."""
ASIDE = 0.07
"""Share of the x axis between lines that would lie on each other, where there is room beside their tick."""
NEAR = 0.3
"""Share of the x axis below which two labels do not fit beside each other."""


@dataclass(frozen=True)
class Line:
    """The scales of one size over tokens, or where all have as many tokens, of one number of tokens over sizes."""

    name: str
    style: Style
    places: Sequence[tuple[float, int]]
    """Where on the x axis each is drawn, ascending, and which of `Scales.each` it is."""


@dataclass(frozen=True)
class Layout:
    """What the panels have in common."""

    x_title: str
    ticks: dict[int, str]
    lines: Sequence[Line]


@dataclass(frozen=True)
class EffectFigure:
    """The figure of a page, with its legend."""

    over: str
    panels: list[Panel]
    legend: list[tuple[Markup, str]]


def effect_figure(scales: Scales) -> EffectFigure:
    """The same y axis in all panels, so that effects can be compared."""
    layout = layout_of(scales)
    chosen = {line.name: line.style for line in layout.lines}
    y_limits = limits_of([each for effect in scales.effects for each in effect.measured], [0.0])
    facets = [_facet(effect, scales, layout, y_limits) for effect in scales.effects]
    drawn = draw_facets("effects", facets, INCHES, line_legend(chosen))
    return EffectFigure(
        layout.x_title, [Panel(facet.title, svg) for facet, svg in zip(facets, drawn, strict=True)], legend(chosen)
    )


def layout_of(scales: Scales) -> Layout:
    """Over tokens, with a line for each size; over sizes if all have as many tokens."""
    is_over_tokens = len(scales.lengths) > 1 or len(scales.sizes) == 1
    ticks, others = (scales.lengths, scales.sizes) if is_over_tokens else (scales.sizes, scales.lengths)
    names = {value: f"{text} {'parameters' if is_over_tokens else 'tokens'}" for value, text in others.items()}
    chosen = styles(list(names.values()))
    step, lines = _step(list(ticks), len(names)), []
    for i, (value, name) in enumerate(names.items()):
        factor = step ** (i - (len(names) - 1) / 2)
        pairs = [(each.tokens, each.params) if is_over_tokens else (each.params, each.tokens) for each in scales.each]
        places = [(factor * x, index) for index, (x, line) in enumerate(pairs) if line == value]
        lines.append(Line(name, chosen[name], sorted(places)))
    return Layout("tokens" if is_over_tokens else "parameters", ticks, lines)


def _step(ticks: Sequence[int], n_lines: int) -> float:
    """The factor between neighbouring lines: every point stays nearer to its tick than to any other."""
    if len(ticks) == 1:
        return 2.0**ASIDE
    nearest = min(high / low for low, high in pairwise(ticks))
    return min((ticks[-1] / ticks[0]) ** ASIDE, nearest ** (0.8 / n_lines))


def _facet(effect: Effect, scales: Scales, layout: Layout, y_limits: tuple[float, float]) -> Facet:
    def paint(axes: Axes) -> None:
        label_axes(axes, layout.x_title, "difference in nats")
        axes.set_xscale("log")
        axes.axhline(0, color=INK, linewidth=1)
        for line in layout.lines:
            _paint_line(axes, effect, line, scales)
        axes.set_xticks(list(layout.ticks), _labels(layout.ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(*_x_limits(layout.ticks))
        axes.set_ylim(*y_limits)

    parts = [
        f"{signed(each.mean, 4)} ({interval(each, 4, True) or 'no interval'}) at {scales.name(scale)}"
        if each is not None
        else f"not measured at {scales.name(scale)}"
        for scale, each in zip(scales.each, effect.differences)
    ]
    label = (
        f"Held-out loss of {shorten(effect.name, 40)} minus that of {shorten(scales.baseline, 40)}, {words(effect)}: "
        f"{'; '.join(parts)}."
    )
    return Facet(_title(effect, scales), label, paint)


def _title(effect: Effect, scales: Scales) -> str:
    """With the scales that are missing, so that a gap is none that nobody sees."""
    missing = [
        f"{scales.sizes[scale.params]}, {scales.lengths[scale.tokens]}"
        for scale, each in zip(scales.each, effect.differences)
        if each is None
    ]
    return clean(effect.name) + (f"\n(not at {'; '.join(missing)} tokens)" if missing else "")


def _paint_line(axes: Axes, effect: Effect, line: Line, scales: Scales) -> None:
    """A marker is full where the interval excludes 0; where the variant was not measured, the line is interrupted."""
    colour, marker, differences = line.style.colour, line.style.marker, effect.differences
    found = [(x, scales.each[index], differences[index]) for x, index in line.places]
    y = [finite(each.mean) if each is not None else np.nan for _, _, each in found]
    look = {"color": colour, "linestyle": line.style.dash, "linewidth": 1.3, "label": named(line.name)}
    axes.plot([x for x, *_ in found], y, **look)
    for x, scale, each in found:
        if each is None:
            continue
        label = named(line.name, interval(each, 4, True) or "no interval", seed_words(scale))
        if each.low is not None and each.high is not None:
            axes.plot([x, x], [each.low, each.high], color=colour, linewidth=1.6, alpha=0.55, label=label)
        face = colour if sign(each) else CARD
        look = {"color": colour, "markersize": 6.5, "markerfacecolor": face, "markeredgewidth": 1.4, "label": label}
        axes.plot(x, finite(each.mean), marker, **look)


def _labels(ticks: dict[int, str]) -> list[str]:
    """One that would touch its neighbour stands a line below."""
    values = list(ticks)
    labels = [ticks[values[0]]]
    for before, value in pairwise(values):
        is_near = np.log(value / before) < NEAR * np.log(values[-1] / values[0])
        labels.append(("\n" if is_near and not labels[-1].startswith("\n") else "") + ticks[value])
    return labels


def _x_limits(ticks: dict[int, str]) -> tuple[float, float]:
    low, high = min(ticks), max(ticks)
    room = (high / low) ** 0.22 if high > low else 2.0
    return low / room, high * room
