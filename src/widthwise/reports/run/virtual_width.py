"""How models with hyper-connections use their stream: weights across depth, and what sublayers do to each slot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm, to_rgba
from numpy.typing import NDArray

from widthwise.records.analysis import AnalysedModel, SiteSlots, VirtualWidth
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.reports.page.formats import TIMES, clean, fixed, shorten, si
from widthwise.reports.page.html import Panel, panels
from widthwise.reports.page.plots import INCHES, Bundle, Curve, curve_figure, layer_ticks
from widthwise.reports.page.svg import MUTED, Style, draw
from widthwise.reports.page.table import Table

_N_SHADES = 32
"""matplotlib draws a colour bar of up to 50 as shapes, of more as a picture, which could not follow the page."""
_GREY = Style(MUTED, "--", "o")
Grid = NDArray[np.float64]


@dataclass(frozen=True)
class VirtualWidthSection:
    """The part of a page on models that have hyper-connections."""

    reach: list[Panel]
    slots: list[Panel]
    summary: Table
    site_tables: list[Table]


def virtual_width_section(
    models: Mapping[str, RunResult | AnalysedModel], styles: Mapping[str, Style]
) -> VirtualWidthSection | None:
    """Figures and tables for the models that have hyper-connections; None if there is none."""
    found = {name: model.virtual_width for name, model in models.items() if model.virtual_width}
    if not found:
        return None
    top = float(max(np.nanmax(_proportions(each)) for each in found.values()))
    reach = [
        Panel(name, _reach_figure(f"reach-{i}", name, each, styles[name], top))
        for i, (name, each) in enumerate(found.items())
    ]
    slots = [
        Panel(f"{name}: {title}", _slot_figure(f"slots-{i}-{part}", name, each, styles[name], title, of_site))
        for i, (name, each) in enumerate(found.items())
        for part, (title, of_site) in _SLOT_MAPS.items()
    ]
    distances = panels(
        {
            "Distance over which sublayers read": _distance_figure(found, styles),
            "Carries of single sublayers": _spectrum_figure("carry", "spectral radius", found, styles, "radius"),
            "Carries of all sublayers so far": _spectrum_figure(
                "carry-product", "spectral radius of the product", found, styles, "product_radius"
            ),
        }
    )
    tables = [_site_table(name, each) for name, each in found.items()]
    tables += [_carry_table(name, each) for name, each in found.items() if each.sites[0].spectrum is not None]
    return VirtualWidthSection([*reach, *distances], slots, _summary(found), tables)


def _proportions(width: VirtualWidth) -> Grid:
    """(sites, sources): weights over the mean weight of their row, of which a sublayer's norm leaves nothing else.

    Sources are the embedding and the sites; NaN where the source is not before the site.
    """
    grid = np.full((len(width.sites), len(width.sites)), np.nan)
    for row, site in enumerate(width.sites):
        grid[row, : row + 1] = np.array(site.reach) / (np.mean(site.reach) or 1.0)
    return grid


def _reach_figure(key: str, name: str, width: VirtualWidth, style: Style, top: float) -> Markup:
    grid = _proportions(width)

    def paint(axes: Axes) -> None:
        # By roots: where one source outweighs the others by far, these still differ.
        _shade(axes, grid, style, PowerNorm(0.5, 0, top), "weight / mean of the row")
        _tick_layers(axes.set_xticks, width.sites[:-1], after_embedding=True)
        _tick_layers(axes.set_yticks, width.sites)
        axes.set_xlabel("layer that wrote (0: embedding)")
        axes.set_ylabel("layer that reads")

    label = (
        f"Weights with which the sublayers of {shorten(name, 60)} read the embedding and the sublayers before them, "
        f"over the mean of the row, from {np.nanmin(grid):.2f} to {np.nanmax(grid):.2f}. The last one reads the "
        f"embedding with {grid[-1, 0]:.2f} and the sublayer before it with {grid[-1, -1]:.2f}."
    )
    return draw(key, label, (INCHES[0], 3.4), paint)


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
) -> Markup:
    """One row per slot, slot 1 at the bottom; one column per sublayer."""
    grid = np.stack([of_site(site) for site in width.sites], axis=1)

    def paint(axes: Axes) -> None:
        _shade(axes, grid, style, Normalize(0, float(grid.max()) or 1.0), "norm of the coefficients")
        _tick_layers(axes.set_xticks, width.sites)
        ticks = layer_ticks(width.n_slots)
        axes.set_yticks([tick - 0.5 for tick in ticks], list(map(str, ticks)))
        axes.set_xlabel("layer")
        axes.set_ylabel("slot")

    label = f"{title}, {shorten(name, 60)}: norms of the mean coefficients, from {grid.min():.2f} to {grid.max():.2f}."
    return draw(key, label, (INCHES[0], min(3.4, 1.3 + 0.22 * width.n_slots)), paint)


def _shade(axes: Axes, grid: Grid, style: Style, scale: Normalize, label: str) -> None:
    """One cell per number, from transparent to the full colour; NaN is left out."""
    ends = [to_rgba(style.colour, alpha) for alpha in (0.0, 1.0)]
    colours = LinearSegmentedColormap.from_list("clear to full", ends, N=_N_SHADES)
    mesh = axes.pcolormesh(np.ma.masked_invalid(grid), cmap=colours, norm=scale)
    bar = axes.figure.colorbar(mesh, ax=axes, label=label)
    bar.outline.set_visible(False)
    for each in (axes, bar.ax):
        each.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _tick_layers(
    set_ticks: Callable[[list[float], list[str]], object], sites: Sequence[SiteSlots], after_embedding: bool = False
) -> None:
    """Names layers, counted from 1, in the middle of their sublayers' cells; the embedding, before them, as 0."""
    cells: dict[str, list[int]] = {}
    for cell, site in enumerate(sites, start=int(after_embedding)):
        cells.setdefault(site.name.rpartition(".")[0], []).append(cell)
    middles = {number: (own[0] + own[-1] + 1) / 2 for number, own in enumerate(cells.values(), start=1)}
    if after_embedding:
        middles[0] = 0.5
    # 1 would stand too close to 0.
    shown = [number for number in layer_ticks(len(cells)) if number in middles and not (number == 1 and 0 in middles)]
    shown += [0] if after_embedding else []
    set_ticks([middles[number] for number in shown], list(map(str, shown)))


def _distance_figure(found: Mapping[str, VirtualWidth], styles: Mapping[str, Style]) -> Markup | None:
    def bundle(name: str, style: Style, distances: list[float]) -> Bundle:
        curve = Curve(1 + np.arange(len(distances)) / 2, np.array(distances))
        return Bundle(name, style, [curve], curve)

    deepest = max(found.values(), key=lambda width: len(width.sites))
    bundles = [bundle("equal weights", _GREY, [site.plain_distance for site in deepest.sites])]
    for name, width in found.items():
        bundles.append(bundle(name, styles[name], [finite(site.mean_distance) for site in width.sites]))
    return curve_figure("reach-distance", bundles, "layer that reads", "mean distance in layers")


def _spectrum_figure(
    key: str, label: str, found: Mapping[str, VirtualWidth], styles: Mapping[str, Style], of: str
) -> Markup | None:
    """None for results of versions that did not look."""
    bundles = []
    for name, width in found.items():
        values = np.array([finite(_of_spectrum(site, of)) for site in width.sites])
        curve = Curve(1 + np.arange(len(values)) / 2, values)
        bundles.append(Bundle(name, styles[name], [curve], curve))
    return curve_figure(key, bundles, "layer", label)


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
