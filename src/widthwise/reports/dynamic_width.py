"""The widths that dynamic-width layers chose token by token: a histogram for each layer, and tables."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import altair as alt

from widthwise.records.analysis import AnalysedModel, TokenWidths
from widthwise.records.run import RunResult
from widthwise.reports import charts
from widthwise.reports.analysis_tables import model_columns
from widthwise.reports.charts import CARD, INK, Figure, Style
from widthwise.reports.formats import MISSING, clean, fixed, shorten, si
from widthwise.reports.page import Section, note, section
from widthwise.reports.table import Table


def dynamic_width_section(
    models: Mapping[str, RunResult | AnalysedModel], looks: Mapping[str, Style]
) -> Section | None:
    """Return figures and tables for the models that have dynamic-width layers; None if there is none."""
    found = {name: model.token_widths for name, model in models.items() if model.token_widths}
    if not found:
        return None
    return section(
        "Dynamic width",
        note("dynamic-width"),
        *(_histograms(f"dynamic-width-{i}", name, each, looks[name]) for i, (name, each) in enumerate(found.items())),
        note("dynamic-width-flops"),
        _summary(found),
        *(_layer_table(name, widths).folded for name, widths in found.items()),
        *(table.folded for table in _token_tables(found)),
    )


def _histograms(key: str, name: str, widths: TokenWidths, style: Style) -> Figure:
    """Return one row of bins per layer, layer 1 at the bottom."""
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
    bars = alt.Chart(charts.table_of(bins)).mark_bar(fill=style.colour, height=alt.RelativeBandSize(0.8))
    dots = alt.Chart(charts.table_of(means)).mark_point(fill=INK, stroke=CARD, size=34)
    of_bins = charts.tips(layer="", low=".2f", high=".2f", share=".3f")
    layers = alt.layer(
        bars.encode(x=across, x2="high:Q", y=up, opacity=opacity, tooltip=of_bins),
        dots.encode(x="mean:Q", y=up, tooltip=charts.tips(layer="", mean=".3f|mean fraction of d_ff")),
    )
    shown = ", ".join(f"layer {layer.layer} {layer.mean:.2f}" for layer in widths.layers)
    label = f"Hidden width chosen by tokens in {shorten(name, 60)}. Mean fraction of d_ff: {shown}."
    return Figure(key, clean(name), label, layers, height=50 + 22 * len(order), is_small=True)


_FLOPS = ("full", "asked", "bucketed", "executed")


def _summary(found: Mapping[str, TokenWidths]) -> Table:
    quantities: dict[str, Callable[[TokenWidths], str]] = {
        "mean fraction of d_ff": lambda widths: fixed(widths.mean_fraction, 4),
        "share of the variance between tokens": lambda widths: fixed(widths.token_variance_share, 3),
        **{f"feed-forward FLOPs per token, {kind}": partial(_flops, kind) for kind in _FLOPS},
        "held-out tokens looked at": lambda widths: si(widths.n_tokens),
    }
    return model_columns("Dynamic width", found, quantities)


def _flops(kind: str, widths: TokenWidths) -> str:
    value, full = widths.flops_per_token.get(kind), widths.flops_per_token.get("full")
    return MISSING if value is None else si(value) + (f" ({value / full:.3f})" if full and kind != "full" else "")


_NUMBERS = ("mean", "sd", "min", "max", "floor_share", "ceiling_share", "dead_share", "gain", "bias", "temperature")
_HEADERS = ("mean", "sd", "min", "max", "at floor", "at ceiling", "dead units", "gain", "bias", "temperature")


def _layer_table(name: str, widths: TokenWidths) -> Table:
    rows = [[str(layer.layer), *(fixed(layer[number], 3) for number in _NUMBERS)] for layer in widths.layers]
    return Table(f"Dynamic width of {clean(name)} by layer", ["Layer", *_HEADERS], rows)


def _token_tables(found: Mapping[str, TokenWidths]) -> Iterator[Table]:
    """Yield losses at forced widths, and mean widths by kind of token, of which there are any; one column per model."""
    forced, kinds = [], []
    for widths in found.values():
        forced.append({f"{fixed(each.fraction, 3)} of d_ff": each.loss for each in widths.forced})
        deciles = enumerate(widths.by_frequency_decile, start=1)
        by_class = {clean(kind): mean for kind, mean in widths.by_token_class.items()}
        kinds.append({f"frequency decile {i}": mean for i, mean in deciles} | by_class)
    for caption, row_title, columns in (
        ("Held-out loss at forced widths", "every token uses", forced),
        ("Mean fraction of d_ff by kind of token; decile 1 are the most frequent", "tokens", kinds),
    ):
        names = dict.fromkeys(name for column in columns for name in column)
        if rows := [[name, *(fixed(column.get(name), 4) for column in columns)] for name in names]:
            yield Table(caption, [row_title, *map(clean, found)], rows)
