"""The widths that dynamic-width layers chose token by token: a histogram for each layer, and tables."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.analysis import AnalysedModel, TokenWidths
from widthwise.records.run import RunResult
from widthwise.reports.page.formats import MISSING, clean, fixed, shorten, si
from widthwise.reports.page.html import Panel
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES
from widthwise.reports.page.svg import CARD, INK, Style, draw
from widthwise.reports.page.table import Table
from widthwise.reports.page.ticks import number_axis


@dataclass(frozen=True)
class DynamicWidthSection:
    """The part of a page on models that have dynamic-width layers."""

    figures: list[Panel]
    summary: Table
    layer_tables: list[Table]
    token_tables: list[Table]


def dynamic_width_section(
    models: Mapping[str, RunResult | AnalysedModel], styles: Mapping[str, Style]
) -> DynamicWidthSection | None:
    """Figures and tables for the models that have dynamic-width layers; None if there is none."""
    found = {name: model.token_widths for name, model in models.items() if model.token_widths}
    if not found:
        return None
    return DynamicWidthSection(
        [
            Panel(name, _histograms(f"dynamic-width-{i}", name, widths, styles[name]))
            for i, (name, widths) in enumerate(found.items())
        ],
        _summary(found),
        [_layer_table(name, widths) for name, widths in found.items()],
        _token_tables(found),
    )


def _histograms(key: str, name: str, widths: TokenWidths, style: Style) -> Markup:
    """One row of bins per layer, layer 1 at the bottom; the darker a bin, the more tokens. The dot is the mean."""

    def paint(axes: Axes) -> None:
        for row, layer in enumerate(widths.layers):
            shares = np.array(layer.histogram)
            edges = np.arange(len(shares)) / len(shares)
            for share, left in zip(shares, edges):
                if share > 0:
                    axes.barh(
                        row,
                        1 / len(shares),
                        left=left,
                        align="center",
                        height=0.8,
                        color=style.colour,
                        alpha=0.12 + 0.88 * float(share / shares.max()),
                        linewidth=0,
                    )
            label = named(f"layer {layer.layer}", f"mean of tokens: {fixed(layer.mean, 3)} of d_ff")
            axes.plot(layer.mean, row, "o", color=INK, markersize=4, markeredgecolor=CARD, label=label)
        axes.set_xlim(0, 1)
        axes.set_yticks(range(len(widths.layers)), [str(layer.layer) for layer in widths.layers])
        axes.set_xlabel("fraction of d_ff used by a token")
        axes.set_ylabel("layer")
        number_axis(axes.xaxis)
        axes.grid(axis="x")
        axes.tick_params(length=0)

    means = ", ".join(f"layer {layer.layer} {layer.mean:.2f}" for layer in widths.layers)
    label = f"Hidden width chosen by tokens in {shorten(name, 60)}. Mean fraction of d_ff: {means}."
    return draw(key, label, (INCHES[0], 1.1 + 0.26 * len(widths.layers)), paint)


def _summary(found: Mapping[str, TokenWidths]) -> Table:
    rows = [
        ["mean fraction of d_ff", *(fixed(w.mean_fraction, 4) for w in found.values())],
        ["share of the variance between tokens", *(fixed(w.token_variance_share, 3) for w in found.values())],
        *(
            [f"feed-forward FLOPs per token, {kind}", *(_flops(w, kind) for w in found.values())]
            for kind in ("full", "asked", "bucketed", "executed")
        ),
        ["held-out tokens looked at", *(si(w.n_tokens) for w in found.values())],
    ]
    return Table("Dynamic width", ["Quantity", *map(clean, found)], rows, sortable=False)


def _flops(widths: TokenWidths, kind: str) -> str:
    value, full = widths.flops_per_token.get(kind), widths.flops_per_token.get("full")
    return MISSING if value is None else si(value) + (f" ({value / full:.3f})" if full and kind != "full" else "")


_NUMBERS = ("mean", "sd", "min", "max", "floor_share", "ceiling_share", "dead_share", "gain", "bias", "temperature")
_HEADERS = ("mean", "sd", "min", "max", "at floor", "at ceiling", "dead units", "gain", "bias", "temperature")


def _layer_table(name: str, widths: TokenWidths) -> Table:
    rows = [[str(layer.layer), *(fixed(getattr(layer, number), 3) for number in _NUMBERS)] for layer in widths.layers]
    return Table(f"Dynamic width of {clean(name)} by layer", ["Layer", *_HEADERS], rows)


def _token_tables(found: Mapping[str, TokenWidths]) -> list[Table]:
    """Losses at forced widths, and mean widths by kind of token; one column per model."""
    forced = {
        name: {f"{fixed(each.fraction, 3)} of d_ff": each.loss for each in widths.forced}
        for name, widths in found.items()
    }
    groups = {
        name: {f"frequency decile {i}": mean for i, mean in enumerate(widths.by_frequency_decile, start=1)}
        | {clean(kind): mean for kind, mean in widths.by_token_class.items()}
        for name, widths in found.items()
    }
    return [
        *_side_by_side("Held-out loss at forced widths", "every token uses", forced),
        *_side_by_side("Mean fraction of d_ff by kind of token; decile 1 are the most frequent", "tokens", groups),
    ]


def _side_by_side(caption: str, row_title: str, columns: Mapping[str, Mapping[str, float | None]]) -> list[Table]:
    """One table, or none if it would be empty."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(fixed(column.get(name), 4) for column in columns.values())] for name in names]
    return [Table(caption, [row_title, *map(clean, columns)], rows)] if rows else []
