"""Losses at one mean width, given to tokens as they choose, by controls and by an oracle that knows the targets."""

from collections.abc import Mapping

from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.dynamic_width import TokenWidths, WidthOracle
from widthwise.reports.page.formats import MISSING, clean, fixed, shorten, signed
from widthwise.reports.page.html import Panel
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES
from widthwise.reports.page.svg import CARD, INK, Style, draw
from widthwise.reports.page.table import Table
from widthwise.reports.page.ticks import number_axis

WAYS = {
    "uniform": "one width for all",
    "by_layer": "one a layer",
    "shuffled": "chosen, shuffled",
    "chosen": "chosen by tokens",
    "fitted": "fitted to the oracle",
    "oracle_of_tokens": "oracle, one a token",
    "oracle": "oracle",
}
"""Ways to give widths to tokens, as in `WidthOracle.losses` -> their names on a page."""


def oracle_figures(found: Mapping[str, TokenWidths], styles: Mapping[str, Style]) -> list[Panel]:
    """One for each model that was measured: the loss of every way, the choice of the model itself in black."""
    return [
        Panel(name, _losses(f"width-oracle-{i}", name, widths.oracle, styles[name]))
        for i, (name, widths) in enumerate(found.items())
        if widths.oracle is not None
    ]


def oracle_tables(found: Mapping[str, TokenWidths]) -> list[Table]:
    """The losses of all models side by side, and for each model its layers; none where nothing was measured."""
    oracles = {name: widths.oracle for name, widths in found.items() if widths.oracle is not None}
    if not oracles:
        return []
    losses = [[title, *(fixed(each.losses.get(way), 4) for each in oracles.values())] for way, title in WAYS.items()]
    sizes = [
        ["mean fraction of d_ff", *(fixed(each.mean_fraction, 4) for each in oracles.values())],
        ["tokens", *(str(each.n_tokens) for each in oracles.values())],
    ]
    caption = "Held-out loss with the same mean width, given to tokens in different ways"
    together = Table(caption, ["Widths", *map(clean, oracles)], losses + sizes)
    return [together, *(_layers(name, oracle) for name, oracle in oracles.items())]


def _losses(key: str, name: str, oracle: WidthOracle, style: Style) -> Markup:
    """A row for each way, the lowest loss at the bottom."""
    ordered = sorted((loss, way) for way, loss in oracle.losses.items())

    def paint(axes: Axes) -> None:
        for row, (loss, way) in enumerate(ordered):
            colour = INK if way == "chosen" else style.colour
            label = named(WAYS.get(way, way))
            axes.plot(loss, row, "o", color=colour, markersize=5, markeredgecolor=CARD, label=label)
        axes.set_yticks(range(len(ordered)), [WAYS.get(way, way) for _, way in ordered])
        axes.set_ylim(-0.6, len(ordered) - 0.4)
        axes.margins(x=0.08)
        axes.set_xlabel("held-out loss, nats")
        number_axis(axes.xaxis)
        axes.grid(axis="x")
        axes.tick_params(length=0)

    losses = ", ".join(f"{WAYS.get(way, way)} {loss:.3f}" for loss, way in ordered)
    label = f"Held-out loss of {shorten(name, 60)} with a mean width of {oracle.mean_fraction:.2f} of d_ff: {losses}."
    return draw(key, label, (INCHES[0], 0.9 + 0.26 * len(ordered)), paint)


def _layers(name: str, oracle: WidthOracle) -> Table:
    rows = [
        [
            str(layer.layer),
            fixed(layer.chosen, 3),
            fixed(layer.oracle, 3),
            MISSING if layer.correlation is None else signed(layer.correlation.spearman, 2),
        ]
        for layer in oracle.layers
    ]
    header = ["Layer", "mean chosen", "mean of the oracle", "Spearman correlation over tokens"]
    return Table(f"Widths of {clean(name)} beside the oracle's", header, rows)
