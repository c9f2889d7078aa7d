"""The losses of shapes at one budget, over the ratio of their feed-forwards and over width by depth.

These are Figures 3 and 4 of the hourglass paper, arXiv:2602.06471.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.comparison import Comparison, Variant
from widthwise.records.cost import CostSummary
from widthwise.records.estimate import Estimate
from widthwise.records.record import finite
from widthwise.records.sweep import Sweep
from widthwise.reports.page.formats import fixed, interval, shorten, tick
from widthwise.reports.page.html import Panel, legend
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, label_axes, limits_of
from widthwise.reports.page.svg import BASELINE_STYLE, CARD, MUTED, Style, draw, line_legend, styles


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
    """names: the variants that have one budget. None where fewer than two of them lie on a line."""
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
    loss = variant.val_loss if zero is None or difference is None else _moved(difference, zero)
    hidden = {width for widths in cost.hidden_widths for width in widths}
    n_blocks = {len(widths) for widths in cost.hidden_widths}
    if not cost.is_uniform or len(hidden) != 1 or len(n_blocks) != 1 or _has_experts(cost) or loss.mean is None:
        return None
    return Stack(variant.name, n_blocks.pop(), len(cost.widths), cost.widths[0], hidden.pop(), loss)


def _has_experts(cost: CostSummary) -> bool:
    """Whether a token leaves parameters unused."""
    in_use = cost.params["total"] - cost.params.get("mtp", 0)
    return cost.params.get("active", in_use) < in_use


def _moved(estimate: Estimate, by: float) -> Estimate:
    mean, low, high = (None if end is None else end + by for end in (estimate.mean, estimate.low, estimate.high))
    return Estimate(mean=mean, low=low, high=high)


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
            _paint_stack(axes, at(stack), stack, chosen[name], named(name, stack.name, interval(stack.loss, 4)))
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


def _paint_stack(axes: Axes, x: float, stack: Stack, style: Style, label: str) -> None:
    loss = stack.loss
    if loss.low is not None and loss.high is not None:
        axes.plot([x, x], [loss.low, loss.high], color=style.colour, linewidth=1.6, alpha=0.55, label=label)
    axes.plot(x, finite(loss.mean), style.marker, color=style.colour, markersize=7, markeredgecolor=CARD, label=label)
