"""Widths used by trained models: widths chosen by tokens in dynamic-width layers, and slots of a virtual width."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import altair as alt
import numpy as np
from numpy.typing import NDArray

from widthwise.records.analysis import AnalysedModel, SiteSlots, TokenWidths, VirtualWidth
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.reports import charts
from widthwise.reports.charts import BASELINE_STYLE, CARD, INK, Figure, Looks, Style
from widthwise.reports.curves import Curve, curve_figure
from widthwise.reports.formats import TIMES, clean, fixed, shorten, si
from widthwise.reports.page import Section, note, section
from widthwise.reports.shapes import layer_ticks
from widthwise.reports.table import Table, by_column

Models = Mapping[str, RunResult | AnalysedModel]


def dynamic_width_section(models: Models, looks: Looks) -> Section | None:
    """Return figures and tables for models with dynamic-width layers; None without such models."""
    by_model = {name: model.token_widths for name, model in models.items() if model.token_widths}
    if not by_model:
        return None
    numbers = ("mean", "sd", "min", "max", *_LAYER_COLUMNS, "gain", "bias", "temperature")
    header = ["Layer", *(_LAYER_COLUMNS.get(number, number) for number in numbers)]
    layers = []
    for name, widths in by_model.items():
        rows = [[str(layer.layer), *(fixed(layer[number], 3) for number in numbers)] for layer in widths.layers]
        layers.append(Table(f"Dynamic width of {clean(name)} by layer", header, rows).folded)
    quantities = {}
    for name, widths in by_model.items():
        full = widths.flops_per_token["full"]
        quantities[name] = {
            "mean fraction of d_ff": fixed(widths.mean_fraction, 4),
            "share of the variance between tokens": fixed(widths.token_variance_share, 3),
            **{
                f"feed-forward FLOPs per token, {kind}": f"{si(flops)} ({flops / full:.3f})"
                for kind, flops in widths.flops_per_token.items()
            },
            "held-out tokens": si(widths.n_tokens),
        }
    return section(
        "Dynamic width",
        note("dynamic-width"),
        *(_histograms(f"dynamic-width-{i}", n, widths, looks[n]) for i, (n, widths) in enumerate(by_model.items())),
        note("dynamic-width-flops"),
        by_column("Dynamic width", quantities, "Quantity"),
        *layers,
        *(table.folded for table in _token_tables(by_model)),
    )


def _histograms(key: str, name: str, widths: TokenWidths, style: Style) -> Figure:
    """Return a row of bins for each layer, layer 1 at the bottom."""
    bins = [
        {"layer": layer.layer, "low": i / n, "high": (i + 1) / n, "share": share, "shade": share / max(layer.histogram)}
        for layer in widths.layers
        if (n := len(layer.histogram))
        for i, share in enumerate(layer.histogram)
        if share > 0
    ]
    means = [{"layer": layer.layer, "mean": layer.mean} for layer in widths.layers]
    order = [layer.layer for layer in reversed(widths.layers)]
    up = alt.Y("layer:O", sort=order, title="layer")
    across = charts.x("low", "fraction of d_ff used by a token", (0, 1), grid=True)
    opacity = alt.Opacity("shade:Q", scale=alt.Scale(domain=[0, 1], range=[0.12, 1]), legend=None)
    bars = charts.chart(bins).mark_bar(fill=style.colour, height=alt.RelativeBandSize(0.8))
    dots = charts.chart(means).mark_point(fill=INK, stroke=CARD, size=34)
    tip = charts.tips(layer="", low=".2f", high=".2f", share=".3f")
    layers = alt.layer(
        bars.encode(x=across, x2="high:Q", y=up, opacity=opacity, tooltip=tip),
        dots.encode(x="mean:Q", y=up, tooltip=charts.tips(layer="", mean=".3f|mean fraction of d_ff")),
    )
    shown = ", ".join(f"layer {layer.layer} {layer.mean:.2f}" for layer in widths.layers)
    label = f"Hidden width chosen by tokens in {shorten(name, 60)}. Mean fraction of d_ff: {shown}."
    return Figure(key, clean(name), label, layers, height=50 + 22 * len(order), is_small=True)


_LAYER_COLUMNS = {"floor_share": "at floor", "ceiling_share": "at ceiling", "dead_share": "dead units"}
"""Field of `LayerWidths` -> title, if it is not the name of the field."""


def _token_tables(models: Mapping[str, TokenWidths]) -> Iterator[Table]:
    """Yield losses at forced widths and mean widths by kind of token, if known; a column for each model."""
    forced: dict[str, dict[str, str]] = {}
    kinds: dict[str, dict[str, str]] = {}
    for name, widths in models.items():
        forced[name] = {f"{fixed(width.fraction, 3)} of d_ff": fixed(width.loss, 4) for width in widths.forced}
        deciles = {f"frequency decile {i}": mean for i, mean in enumerate(widths.by_frequency_decile, start=1)}
        kinds[name] = {kind: fixed(mean, 4) for kind, mean in (deciles | dict(widths.by_token_class)).items()}
    for caption, corner, columns in (
        ("Held-out loss at forced widths", "every token uses", forced),
        ("Mean fraction of d_ff by kind of token; decile 1 are the most frequent", "tokens", kinds),
    ):
        if any(columns.values()):
            yield replace(by_column(caption, columns, corner), sortable=True)


def virtual_width_section(models: Models, looks: Looks) -> Section | None:
    """Return figures and tables for models with hyper-connections; None without such models."""
    by_model = {name: model.virtual_width for name, model in models.items() if model.virtual_width}
    if not by_model:
        return None
    top = float(max(np.nanmax(_proportions(width)) for width in by_model.values()))
    reads = [
        _reach_figure(f"reach-{i}", name, width, looks[name], top) for i, (name, width) in enumerate(by_model.items())
    ]
    deepest = max(by_model.values(), key=lambda width: len(width.sites))
    distances = {"equal weights": _curve("plain_distance", deepest)}
    distances |= {name: _curve("mean_distance", width) for name, width in by_model.items()}
    title = "Distance over which sublayers read"
    y_title = "mean distance in layers"
    distance_looks = {"equal weights": BASELINE_STYLE, **looks}
    carries = []
    for key, number, caption, radius in (
        ("carry", "radius", "Carries of single sublayers", "spectral radius"),
        ("carry-product", "product_radius", "Carries of all sublayers so far", "spectral radius of the product"),
    ):
        curves = {name: _curve(number, width) for name, width in by_model.items()}
        carries.append(curve_figure(key, caption, curves, looks, "layer", radius))
    return section(
        "Virtual width",
        note("virtual-width"),
        *reads,
        curve_figure("reach-distance", title, distances, distance_looks, "layer that reads", y_title),
        *carries,
        note("reach"),
        by_column("Use of the stream", {name: _quantities(width) for name, width in by_model.items()}, "Quantity"),
        *(_site_table(name, width).folded for name, width in by_model.items()),
    )


_OF_SITES = {
    "mean_distance": "distance to the sources, in layers",
    "plain_distance": "distance with equal weights",
    "window_share": "share of the last n_slots sources",
    "gate_distance": "distance of gates from 0 or 1",
    "identity_distance": "distance of carries from the identity",
    "carry_entropy": "entropy of the rows of carries, nats",
    "radius": "spectral radius of carries",
    "norm": "largest singular value of carries",
}
"""Field of `SiteSlots` or `CarrySpectrum` -> title."""


def _quantities(width: VirtualWidth) -> dict[str, str]:
    """Return title -> number of the whole model; numbers of sublayers are averaged."""
    weights = sum(sum(site.reach) for site in width.sites)
    deviations = sum(sum(site.reach_sd) for site in width.sites)
    quantities = {
        f"slots {TIMES} slot width": f"{width.n_slots} {TIMES} {width.slot_width}",
        "weight of the embedding / mean of the row": fixed(_proportions(width)[:, 0].mean(), 3),
        "standard deviation of a weight between tokens / its mean": fixed(deviations / weights if weights else None, 3),
    }
    for number, title in _OF_SITES.items():
        values = [value for site in width.sites if (value := _of_site(site, number)) is not None]
        quantities[title] = fixed(float(np.mean(values)) if values else None, 3)
    last = width.sites[-1].spectrum
    return {
        **quantities,
        "spectral radius of the product of all carries": fixed(last.product_radius, 3),
        "largest singular value of the product of all carries": fixed(last.product_norm, 3),
        "held-out tokens": si(width.n_tokens),
    }


def _proportions(width: VirtualWidth) -> NDArray[np.float64]:
    """Return the weights with which sites read, divided by the mean of their row, (n_sites, n_sites).

    Column 0 is the embedding, column j the site before site j. Weights of later sources are NaN. The norm of a sublayer
    removes the scale of its row.
    """
    grid = np.full((len(width.sites), len(width.sites)), np.nan)
    for row, site in enumerate(width.sites):
        grid[row, : row + 1] = np.array(site.reach) / (np.mean(site.reach) or 1.0)
    return grid


def _reach_figure(key: str, name: str, width: VirtualWidth, style: Style, top: float) -> Figure:
    """Return a cell for each weight, from transparent to the full colour at `top`."""
    grid = _proportions(width)
    up = [clean(site.name) for site in width.sites]
    across = ["embedding", *up[:-1]]
    cells = [
        {"across": across[column], "up": up[row], "value": float(value)}
        for (row, column), value in np.ndenumerate(grid)
        if np.isfinite(value)
    ]
    # A root scale keeps small weights distinguishable next to a very large one.
    scale = alt.Scale(type="sqrt", domain=[0, top], range=[0, 1])
    marks = charts.chart(cells).mark_rect(fill=style.colour)
    chart = marks.encode(
        x=alt.X("across:O", sort=across, title="layer that wrote (0: embedding)", axis=_layer_axis(width, 1)),
        y=alt.Y("up:O", sort=up[::-1], title="layer that reads", axis=_layer_axis(width)),
        opacity=alt.Opacity("value:Q", scale=scale, legend=None),
        tooltip=charts.tips(up="|reader", across="|source", value=".3f|weight / mean of the row"),
    )
    label = (
        f"Weights with which the sublayers of {shorten(name, 60)} read the embedding and the sublayers before them, "
        f"over the mean of the row, from {np.nanmin(grid):.2f} to {np.nanmax(grid):.2f}. The last one reads the "
        f"embedding with {grid[-1, 0]:.2f} and the sublayer before it with {grid[-1, -1]:.2f}."
    )
    return Figure(key, clean(name), label, chart, height=280, is_small=True)


def _layer_axis(width: VirtualWidth, n_before: int = 0) -> alt.Axis:
    """Return an axis with the number of each layer at its first sublayer. n_before: 1 if 0, the embedding, is first."""
    firsts: dict[str, str] = {}
    for site in width.sites:
        firsts.setdefault(site.name.rpartition(".")[0], clean(site.name))
    numbers: dict[str, int] = {"embedding": 0} if n_before else {}
    for n, name in enumerate(firsts.values(), start=1):
        if n in layer_ticks(len(firsts)) and not (n_before and n == 1):  # 1 would overlap 0
            numbers[name] = n
    text = "".join(f"datum.value == {name!r} ? '{number}' : " for name, number in numbers.items()) + "''"
    return alt.Axis(values=list(numbers), labelExpr=text, labelAngle=0, grid=False)


def _of_site(site: SiteSlots, number: str) -> float | None:
    """Return a field of a sublayer, or of the spectrum of its carry; None if unknown."""
    return site[number] if number in SiteSlots.model_fields else site.spectrum[number]


def _curve(number: str, width: VirtualWidth) -> Curve:
    """Return a number of every sublayer over layers. A layer has two sublayers: layer 1 is at 1 and 1.5."""
    values = [finite(_of_site(site, number)) for site in width.sites]
    return Curve(1 + np.arange(len(values)) / 2, np.array(values))


def _site_table(name: str, width: VirtualWidth) -> Table:
    """Return the numbers of every sublayer of a model, a row for each."""
    numbers = (*_OF_SITES, "product_radius", "product_norm")
    of_product = ["radius of the product so far", "largest singular value of it"]
    header = ["Sublayer", *_OF_SITES.values(), *of_product, "largest sd between tokens"]
    rows = []
    for site in width.sites:
        deviation = max(max(deviations) for deviations in site.sd.values())
        rows.append([clean(site.name), *(fixed(_of_site(site, number), 3) for number in numbers), fixed(deviation, 3)])
    return Table(f"Sublayers of {clean(name)}; sd: of a slot's coefficients", header, rows)
