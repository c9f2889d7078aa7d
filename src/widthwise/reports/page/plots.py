"""The few figures of the reports, as inline SVG. Each carries a sentence that says what it shows."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from widthwise.records.comparison import Variant
from widthwise.records.estimate import Estimate
from widthwise.records.quantities import QUANTITIES, TITLES
from widthwise.records.record import finite
from widthwise.reports.page.curves import N_POINTS, Curve, thin
from widthwise.reports.page.formats import clean, interval, ratio, shorten, si, signed
from widthwise.reports.page.inline import named
from widthwise.reports.page.svg import CARD, GRID, INK, MUTED, PARTS, Style, draw, line_legend
from widthwise.reports.page.ticks import number_axis

INCHES = (4.2, 2.9)
"""Width and height of most figures. All have one width or nearly, so that their letters have one size."""
SEED_WIDTH, SEED_ALPHA = 0.9, 0.65
"""Width and opacity of the thin lines of single seeds: enough of their colour to tell the variants apart."""


def matched_words(quantity: str | None) -> str:
    """ " at equal parameters", or nothing where nothing is equal."""
    return "" if quantity in (None, "none") else f" at equal {TITLES.get(quantity, clean(quantity))}"


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
    axes.plot(
        mean.x,
        mean.y,
        color=style.colour,
        linestyle=style.dash,
        linewidth=1.9,
        marker=style.marker,
        markevery=n_marks,
        markersize=4.5,
        markeredgecolor=CARD,
        markeredgewidth=0.6,
        label=named(bundle.name, *of_mean, *_thinned(bundle.mean)),
    )


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


def layer_ticks(n_layers: int) -> list[int]:
    """Numbers of the layers that an axis names."""
    stride = max(1, math.ceil(n_layers / 8))
    return sorted({1, n_layers, *(layer for layer in range(stride, n_layers - stride // 2, stride) if layer > 1)})


def difference_figure(
    key: str, variants: Sequence[Variant], styles: Mapping[str, Style], baseline: str
) -> Markup | None:
    """Forest plot: per variant the difference per seed, its mean and its interval. None where nothing is compared."""
    compared = [(variant, variant.difference) for variant in variants if variant.difference is not None]
    if not compared:
        return None

    def paint(axes: Axes) -> None:
        axes.axvline(0, color=INK, linewidth=1)
        for row, (variant, difference) in enumerate(compared):
            style = styles[variant.name]
            seeds = [value for value in difference.per_seed if value is not None]
            label = named(variant.name, "a single seed")
            at = np.full(len(seeds), row + 0.2)
            axes.plot(seeds, at, "|", color=style.colour, markersize=9, markeredgewidth=1.4, label=label)
            if difference.low is not None and difference.high is not None:
                label = named(variant.name, "end of the interval")
                axes.plot([difference.low, difference.high], [row, row], color=style.colour, linewidth=2.4, label=label)
            if difference.mean is not None:
                label = named(variant.name, f"mean of {len(seeds)}", interval(difference, 4, True))
                look = {"color": style.colour, "markersize": 8, "markeredgecolor": CARD}
                axes.plot(difference.mean, row, style.marker, label=label, **look)
        axes.set_yticks(range(len(compared)), [shorten(variant.name, 22) for variant, _ in compared])
        axes.set_ylim(len(compared) - 0.5, -0.5)
        axes.set_xlabel(f"nats above {shorten(baseline, 22)}; left is better", loc="right")
        axes.margins(x=0.12)
        number_axis(axes.xaxis, 6, sign="+")
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        axes.tick_params(length=0)
        axes.tick_params(axis="y", labelcolor=INK)

    parts = [
        f"{shorten(v.name, 40)} {signed(d.mean, 4)} ({interval(d, 4, True) or 'no interval'})" for v, d in compared
    ]
    label = f"Difference in held-out loss to {shorten(baseline, 40)} with its interval: {'; '.join(parts)}."
    return draw(key, label, (INCHES[0], 1.1 + 0.5 * len(compared)), paint)


def part_names(variants: Sequence[Variant]) -> list[str]:
    """The parts in which any of the models has parameters, in the order of their cost tables."""
    names = dict.fromkeys(name for variant in variants for name, size in variant.cost.params.items() if size)
    return [name for name in names if name not in ("total", "active")]


def parts_figure(key: str, variants: Sequence[Variant]) -> Markup:
    """Parameters by part of the model, one stacked bar per variant."""

    def paint(axes: Axes) -> None:
        left = np.zeros(len(variants))
        for part, colour in zip(part_names(variants), itertools.cycle(PARTS)):
            sizes = np.array([variant.cost.params.get(part, 0.0) for variant in variants])
            labels = [named(part, f"{variant.name}: {si(size)} parameters") for variant, size in zip(variants, sizes)]
            look = {"color": colour, "edgecolor": CARD, "linewidth": 0.8, "height": 0.62, "label": labels}
            axes.barh(range(len(variants)), sizes, left=left, **look)
            left += sizes
        _paint_rows(axes, [shorten(variant.name, 22) for variant in variants], "parameters")
        axes.set_xlim(0, None)

    totals = "; ".join(f"{shorten(v.name, 40)} {si(v.cost.params['total'])}" for v in variants)
    label = f"Parameters by part of the model. Totals: {totals}."
    parts = [Patch(color=colour, label=part) for part, colour in zip(part_names(variants), itertools.cycle(PARTS))]
    return draw(key, label, (INCHES[0], 1.1 + 0.46 * len(variants)), paint, parts)


def ratio_figure(key: str, variants: Sequence[Variant], styles: Mapping[str, Style], baseline: str) -> Markup | None:
    """What each variant costs relative to the baseline, one row per quantity. None where there is only the baseline."""
    compared = [variant for variant in variants if variant.name != baseline]
    reference = next((variant for variant in variants if variant.name == baseline), None)
    ratios = {
        each.bare_title: [None if reference is None else each.ratio(variant, reference) for variant in compared]
        for each in QUANTITIES
        if each.has_ratio and not each.is_loss
    }
    ratios = {title: own for title, own in ratios.items() if any(value is not None for value in own)}
    if not ratios:
        return None
    offsets = np.linspace(-0.28, 0.28, len(compared)) if len(compared) > 1 else [0.0]

    def paint(axes: Axes) -> None:
        axes.axvline(1, color=INK, linewidth=1)
        for i, (variant, offset) in enumerate(zip(compared, offsets)):
            style, rows = styles[variant.name], np.arange(len(ratios)) + offset
            values = [finite(own[i]) for own in ratios.values()]
            look = {"color": style.colour, "markersize": 6.5, "markeredgecolor": CARD, "label": named(variant.name)}
            axes.plot(values, rows, style.marker, **look)
        for row in range(1, len(ratios)):
            axes.axhline(row - 0.5, color=GRID, linewidth=0.7)
        _paint_rows(axes, list(ratios), f"times the value of {shorten(baseline, 22)}")
        axes.margins(x=0.1)

    parts = [
        f"{shorten(v.name, 40)}: " + ", ".join(f"{title} {ratio(own[i]) or '?'}" for title, own in ratios.items())
        for i, v in enumerate(compared)
    ]
    label = f"Costs and speed relative to {shorten(baseline, 40)}. {'; '.join(parts)}."
    legend = line_legend({variant.name: styles[variant.name] for variant in compared})
    return draw(key, label, (INCHES[0], 1.1 + 0.42 * len(ratios)), paint, legend)


def _paint_rows(axes: Axes, names: Sequence[str], x_label: str) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(x_label, loc="right")
    number_axis(axes.xaxis)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", labelcolor=INK)
