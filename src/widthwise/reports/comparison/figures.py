"""The figures of a comparison beside its curves: differences, parameters, costs, and losses over shapes."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from widthwise.records.comparison import Comparison, Variant
from widthwise.records.cost import CostSummary
from widthwise.records.estimate import Estimate
from widthwise.records.quantities import QUANTITIES
from widthwise.records.record import finite
from widthwise.records.sweep import Sweep
from widthwise.reports.page.formats import fixed, interval, ratio, shorten, si, signed, tick
from widthwise.reports.page.html import Panel, legend
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, label_axes, limits_of, moved, paint_estimate
from widthwise.reports.page.svg import BASELINE_STYLE, CARD, GRID, INK, MUTED, PARTS, Style, draw, line_legend, styles
from widthwise.reports.page.ticks import number_axis


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
        names = [shorten(variant.name, 22) for variant, _ in compared]
        _paint_rows(axes, names, f"nats above {shorten(baseline, 22)}; left is better", sign="+")
        axes.margins(x=0.12)

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


def _paint_rows(axes: Axes, names: Sequence[str], x_label: str, sign: str = "") -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(x_label, loc="right")
    number_axis(axes.xaxis, sign=sign)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", labelcolor=INK)


@dataclass(frozen=True)
class ShapeCurves:
    """The part of a page on them."""

    figures: list[Panel]
    legend: list[tuple[Markup, str]]


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


@dataclass(frozen=True)
class Line:
    """Models of one number of blocks, from left to right."""

    n_blocks: int
    stacks: list[Stack]
    label: str = ""


def shape_curves(compared: Comparison | Sweep, names: Collection[str]) -> ShapeCurves | None:
    """Figures 3 and 4 of the hourglass paper, arXiv:2602.06471, of the variants of a budget.

    names: the variants that have one budget. None where fewer than two of them lie on a line.
    """
    baseline = compared.baseline_variant
    zero = None if baseline is None else baseline.val_loss.mean
    found = (
        _stack(variant, zero) for variant in compared.variants if variant is not baseline and variant.name in names
    )
    stacks = [stack for stack in found if stack is not None]
    over_ratio, over_aspect = _over_ratio(stacks), _over_aspect(stacks)
    n_blocks = sorted({stack.n_blocks for stack in stacks})
    chosen = {f"K = {n}": style for n, style in zip(n_blocks, styles([str(n) for n in n_blocks]).values())}
    reference = None if baseline is None or zero is None else (baseline.name, zero)
    figures = [
        Panel(f"Held-out loss over {words}", _figure(key, words, lines, stacks, at, chosen, reference))
        for key, words, lines, at in (
            ("shape-ratio", "d_hidden / d_model", over_ratio, lambda stack: stack.ratio),
            ("shape-aspect", "d_model / n_layers", over_aspect, lambda stack: stack.aspect),
        )
        if any(len(line.stacks) > 1 for line in lines)
    ]
    if not figures:
        return None
    return ShapeCurves(figures, legend(chosen if reference is None else {**chosen, reference[0]: BASELINE_STYLE}))


def _stack(variant: Variant, zero: float | None) -> Stack | None:
    """None for a model of layers or blocks of different sizes, of experts, or without a loss."""
    cost, difference = variant.cost, variant.difference
    loss = variant.val_loss if zero is None or difference is None else moved(difference, zero)
    hidden = {width for widths in cost.hidden_widths for width in widths}
    n_blocks = {len(widths) for widths in cost.hidden_widths}
    if not cost.is_uniform or len(hidden) != 1 or len(n_blocks) != 1 or _has_experts(cost) or loss.mean is None:
        return None
    return Stack(variant.name, n_blocks.pop(), len(cost.widths), cost.widths[0], hidden.pop(), loss)


def _has_experts(cost: CostSummary) -> bool:
    """Whether a token leaves parameters unused."""
    in_use = cost.params["total"] - cost.params.get("mtp", 0)
    return cost.params.get("active", in_use) < in_use


def _over_ratio(stacks: Collection[Stack]) -> list[Line]:
    """A line for each number of blocks and each depth, which is written beside it where there are several."""
    several = len({stack.n_layers for stack in stacks}) > 1
    groups: dict[tuple[int, int], list[Stack]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.ratio):
        groups.setdefault((stack.n_blocks, stack.n_layers), []).append(stack)
    return [Line(k, line, f"L = {depth}" if several else "") for (k, depth), line in groups.items()]


def _over_aspect(stacks: Collection[Stack]) -> list[Line]:
    """A line for each number of blocks, through the lowest loss of each depth."""
    lowest: dict[tuple[int, int], Stack] = {}
    for stack in sorted(stacks, key=lambda stack: -finite(stack.loss.mean)):
        lowest[stack.n_blocks, stack.n_layers] = stack
    groups: dict[int, list[Stack]] = {}
    for stack in sorted(lowest.values(), key=lambda stack: stack.aspect):
        groups.setdefault(stack.n_blocks, []).append(stack)
    return [Line(n_blocks, line) for n_blocks, line in groups.items()]


def _figure(
    key: str,
    words: str,
    lines: Sequence[Line],
    stacks: Sequence[Stack],
    at: Callable[[Stack], float],
    chosen: Mapping[str, Style],
    reference: tuple[str, float] | None,
) -> Markup:
    """at: where a model lies on the x axis. reference: name and loss of the baseline."""

    def paint(axes: Axes) -> None:
        if reference is not None:
            axes.axhline(reference[1], color=MUTED, linewidth=1.2, linestyle=BASELINE_STYLE.dash)
        for line in lines:
            style, losses = chosen[f"K = {line.n_blocks}"], [finite(stack.loss.mean) for stack in line.stacks]
            x = [at(stack) for stack in line.stacks]
            look = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.5}
            axes.plot(x, losses, label=named(f"K = {line.n_blocks}", line.label), **look)
            end = (x[-1], losses[-1])
            axes.annotate(line.label, end, (7, 4), textcoords="offset points", color=MUTED)
        for stack in stacks:
            name = f"K = {stack.n_blocks}"
            label = named(name, stack.name, interval(stack.loss, 4))
            paint_estimate(axes, at(stack), stack.loss, chosen[name], label)
        axes.margins(x=0.13)
        axes.set_ylim(*limits_of([stack.loss for stack in stacks], () if reference is None else reference[1:]))
        label_axes(axes, words, "held-out loss")

    best = min(stacks, key=lambda stack: finite(stack.loss.mean))
    label = (
        f"Held-out loss over {words}, a marker for each of {len(stacks)} shapes, lines by number of blocks K. The "
        f"lowest is {fixed(finite(best.loss.mean), 4)} at {tick(round(at(best), 3))}, of {shorten(best.name, 40)}, "
        f"K = {best.n_blocks}."
    )
    if reference is not None:
        label += f" The dashed line is {shorten(reference[0], 40)} at {fixed(reference[1], 4)}."
    return draw(key, label, INCHES, paint, line_legend(chosen))
