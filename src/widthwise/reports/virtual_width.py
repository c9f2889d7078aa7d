"""Use of the stream by models with hyper-connections: weights across depth, and effects of sublayers on slots."""

from collections.abc import Callable, Mapping, Sequence

import altair as alt
import numpy as np
from numpy.typing import NDArray

from widthwise.records.analysis import AnalysedModel, SiteSlots, VirtualWidth
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.reports import charts
from widthwise.reports.charts import BASELINE_STYLE, Figure, Style
from widthwise.reports.curves import Bundle, Curve, curve_figure
from widthwise.reports.formats import TIMES, clean, fixed, shorten, si
from widthwise.reports.page import Section, note, section
from widthwise.reports.shapes import layer_ticks
from widthwise.reports.table import Table

Grid = NDArray[np.float64]


def virtual_width_section(
    models: Mapping[str, RunResult | AnalysedModel], looks: Mapping[str, Style]
) -> Section | None:
    """Return figures and tables for the models that have hyper-connections; None if there is none."""
    found = {name: model.virtual_width for name, model in models.items() if model.virtual_width}
    if not found:
        return None
    top = float(max(np.nanmax(_proportions(each)) for each in found.values()))
    reach = [_reach_figure(f"reach-{i}", name, each, looks[name], top) for i, (name, each) in enumerate(found.items())]
    slots = [
        _slot_figure(f"slots-{i}-{part}", name, each, looks[name], title, of_site)
        for i, (name, each) in enumerate(found.items())
        for part, (title, of_site) in _SLOT_MAPS.items()
    ]
    return section(
        "Virtual width",
        note("virtual-width"),
        *reach,
        _distance_figure(found, looks),
        _spectrum_figure("carry", "Carries of single sublayers", "spectral radius", found, looks, "radius"),
        _spectrum_figure(
            "carry-product",
            "Carries of all sublayers so far",
            "spectral radius of the product",
            found,
            looks,
            "product_radius",
        ),
        note("reach"),
        _summary(found),
        note("slots"),
        *slots,
        *(_site_table(name, each).folded for name, each in found.items()),
        *(_carry_table(name, each).folded for name, each in found.items() if each.sites[0].spectrum is not None),
    )


def _proportions(width: VirtualWidth) -> Grid:
    """(sites, sources): weights over the mean weight of their row, of which a sublayer's norm leaves nothing else.

    Sources are the embedding and the sites; NaN where the source is not before the site.
    """
    grid = np.full((len(width.sites), len(width.sites)), np.nan)
    for row, site in enumerate(width.sites):
        grid[row, : row + 1] = np.array(site.reach) / (np.mean(site.reach) or 1.0)
    return grid


def _reach_figure(key: str, name: str, width: VirtualWidth, style: Style, top: float) -> Figure:
    grid = _proportions(width)
    across, up = ["embedding", *_labels(width.sites[:-1])], _labels(width.sites)
    # By roots: where one source outweighs the others by far, these still differ.
    chart = _shade(grid, across, up, style, "sqrt", top, "weight / mean of the row")
    chart = chart.encode(
        x=alt.X("across:O", sort=across, title="layer that wrote (0: embedding)", axis=_layer_axis(width, 1)),
        y=alt.Y("up:O", sort=up[::-1], title="layer that reads", axis=_layer_axis(width)),
    )
    label = (
        f"Weights with which the sublayers of {shorten(name, 60)} read the embedding and the sublayers before them, "
        f"over the mean of the row, from {np.nanmin(grid):.2f} to {np.nanmax(grid):.2f}. The last one reads the "
        f"embedding with {grid[-1, 0]:.2f} and the sublayer before it with {grid[-1, -1]:.2f}."
    )
    return Figure(key, clean(name), label, chart, height=280, is_small=True)


def _labels(sites: Sequence[SiteSlots]) -> list[str]:
    return [clean(site.name) for site in sites]


def _layer_axis(width: VirtualWidth, n_before: int = 0) -> alt.Axis:
    """Return an axis that numbers layers, from 1, at the first of their sublayers; 0 is the embedding before them."""
    shown = set(layer_ticks(len(dict.fromkeys(site.name.rpartition(".")[0] for site in width.sites))))
    numbers: dict[str, int] = {"embedding": 0} if n_before else {}
    seen: list[str] = []
    for site in width.sites:
        if (layer := site.name.rpartition(".")[0]) not in seen:
            seen.append(layer)
            if len(seen) in shown and not (n_before and len(seen) == 1):  # 1 would stand too close to 0
                numbers[clean(site.name)] = len(seen)
    text = "".join(f"datum.value == {name!r} ? '{number}' : " for name, number in numbers.items()) + "''"
    return alt.Axis(values=list(numbers), labelExpr=text, labelAngle=0, grid=False)


def _row_norms(table: Sequence[Sequence[float]] | Grid) -> Grid:
    return np.linalg.norm(np.asarray(table), axis=1)


_SLOT_MAPS: dict[str, tuple[str, Callable[[SiteSlots], Grid]]] = {
    "read": ("read from slots", lambda site: _row_norms(site.read)),
    "write": ("written to slots", lambda site: _row_norms(site.write)),
    "carry": ("moved between slots", lambda site: _row_norms(np.array(site.carry) - np.eye(len(site.carry)))),
}
"""Part -> what its map shows, and its numbers for each slot."""


def _slot_figure(
    key: str, name: str, width: VirtualWidth, style: Style, title: str, of_site: Callable[[SiteSlots], Grid]
) -> Figure:
    """Return one row per slot, slot 1 at the bottom; one column per sublayer."""
    grid = np.stack([of_site(site) for site in width.sites], axis=1)
    across, up = _labels(width.sites), [str(slot) for slot in range(1, len(grid) + 1)]
    chart = _shade(grid, across, up, style, "linear", float(grid.max()) or 1.0, "norm of the coefficients")
    ticks = list(map(str, layer_ticks(width.n_slots)))
    chart = chart.encode(
        x=alt.X("across:O", sort=across, title="layer", axis=_layer_axis(width)),
        y=alt.Y("up:O", sort=up[::-1], title="slot", axis=alt.Axis(values=ticks, grid=False)),
    )
    label = f"{title}, {shorten(name, 60)}: norms of the mean coefficients, from {grid.min():.2f} to {grid.max():.2f}."
    return Figure(key, f"{clean(name)}: {title}", label, chart, height=60 + 20 * width.n_slots, is_small=True)


def _shade(
    grid: Grid, across: Sequence[str], up: Sequence[str], style: Style, scale: str, top: float, words: str
) -> alt.Chart:
    """Return one cell per number, from transparent to the full colour; NaN is left out."""
    cells = [
        {"across": across[column], "up": up[row], "value": float(value)}
        for (row, column), value in np.ndenumerate(grid)
        if np.isfinite(value)
    ]
    shade = alt.Scale(type=scale, domain=[0, top], range=[0, 1])  # pyright: ignore[reportArgumentType]
    made = alt.Chart(charts.table_of(cells)).mark_rect(fill=style.colour)
    tip = charts.tips(up="|reader", across="|at", value=f".3f|{words}")
    return made.encode(opacity=alt.Opacity("value:Q", scale=shade, legend=None), tooltip=tip)


def _distance_figure(found: Mapping[str, VirtualWidth], looks: Mapping[str, Style]) -> Figure | None:
    deepest = max(found.values(), key=lambda width: len(width.sites))
    bundles = [_bundle("equal weights", BASELINE_STYLE, [site.plain_distance for site in deepest.sites])]
    bundles += [_bundle(name, looks[name], [each.mean_distance for each in own.sites]) for name, own in found.items()]
    title = "Distance over which sublayers read"
    return curve_figure("reach-distance", title, bundles, "layer that reads", "mean distance in layers")


def _bundle(name: str, style: Style, values: Sequence[float | None]) -> Bundle:
    curve = Curve(1 + np.arange(len(values)) / 2, np.array(list(map(finite, values))))
    return Bundle(name, style, [curve], curve)


def _spectrum_figure(
    key: str, title: str, y_title: str, found: Mapping[str, VirtualWidth], looks: Mapping[str, Style], of: str
) -> Figure | None:
    """Return None for results of versions that did not look."""
    bundles = [
        _bundle(name, looks[name], [_of_spectrum(site, of) for site in width.sites]) for name, width in found.items()
    ]
    return curve_figure(key, title, bundles, "layer", y_title)


def _of_spectrum(site: SiteSlots, of: str) -> float | None:
    return None if site.spectrum is None else site.spectrum[of]


def _summary(found: Mapping[str, VirtualWidth]) -> Table:
    def mean(values: list[float | None]) -> str:
        known = [value for value in values if value is not None]
        return fixed(float(np.mean(known)) if known else None, 3)

    rows: list[tuple[str, Callable[[VirtualWidth], str]]] = [
        (f"slots {TIMES} slot width", lambda width: f"{width.n_slots} {TIMES} {width.slot_width}"),
        ("mean distance in layers", lambda width: mean([site.mean_distance for site in width.sites])),
        ("mean distance with equal weights", lambda width: mean([site.plain_distance for site in width.sites])),
        (
            "weight of the embedding / mean of the row, mean over sublayers",
            lambda width: mean(_proportions(width)[:, 0].tolist()),
        ),
        (
            "weight of the last n_slots writers / weight of all, mean over sublayers (hard window)",
            lambda width: mean([site.window_share for site in width.sites]),
        ),
        (
            "distance of carries and writes from 0 or 1, mean (0: hard routing)",
            lambda width: mean([site.gate_distance for site in width.sites]),
        ),
        (
            "spectral radius of a carry, mean over sublayers",
            lambda width: mean([_of_spectrum(site, "radius") for site in width.sites]),
        ),
        (
            "spectral radius, norm of the product of all carries",
            lambda width: ", ".join(
                fixed(_of_spectrum(width.sites[-1], of), 3) for of in ("product_radius", "product_norm")
            ),
        ),
        ("standard deviation of a weight between tokens / its mean", lambda width: fixed(_variation(width), 3)),
        ("held-out tokens looked at", lambda width: si(width.n_tokens)),
    ]
    cells = [[title, *map(value, found.values())] for title, value in rows]
    return Table("Use of the stream", ["Quantity", *map(clean, found)], cells, sortable=False)


def _variation(width: VirtualWidth) -> float | None:
    weights = sum(sum(site.reach) for site in width.sites)
    return sum(sum(site.reach_sd) for site in width.sites) / weights if weights else None


def _site_table(name: str, width: VirtualWidth) -> Table:
    header = ["Sublayer", "embedding", "sublayer before", "largest", "distance", "with equal weights"]
    header += [f"sd of {part}" for part in _SLOT_MAPS]
    rows = [
        [
            clean(site.name),
            fixed(site.reach[0], 3),
            fixed(site.reach[-1], 3),
            fixed(max(site.reach), 3),
            fixed(site.mean_distance, 2),
            fixed(site.plain_distance, 2),
            *(fixed(max(site.sd.get(part, []), default=None), 3) for part in _SLOT_MAPS),
        ]
        for site in width.sites
    ]
    caption = f"Sublayers of {clean(name)}: weights of what they read; sd: of the slot that differs most between tokens"
    return Table(caption, header, rows)


def _carry_table(name: str, width: VirtualWidth) -> Table:
    header = ["Sublayer", "last n_slots / all", "distance from 0 or 1"]
    header += ["radius of the carry", "norm", "radius of the product so far", "norm"]
    rows = [
        [
            clean(site.name),
            fixed(site.window_share, 3),
            fixed(site.gate_distance, 3),
            *(fixed(_of_spectrum(site, of), 3) for of in ("radius", "norm", "product_radius", "product_norm")),
        ]
        for site in width.sites
    ]
    return Table(
        f"Carries of {clean(name)}: spectral radius and norm; how hard its windows and gates are", header, rows
    )
