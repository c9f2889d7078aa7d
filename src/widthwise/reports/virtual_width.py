"""Use of the stream by models with hyper-connections: weights across depth, and effects of sublayers on slots."""

from collections.abc import Callable, Mapping, Sequence

import altair as alt
import numpy as np
from numpy.typing import NDArray

from widthwise.records.analysis import AnalysedModel, SiteSlots, VirtualWidth
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.reports import charts
from widthwise.reports.analysis_tables import model_columns
from widthwise.reports.charts import BASELINE_STYLE, Figure, Style
from widthwise.reports.curves import Curve, curve_figure
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
    spectra = [each for each in found.items() if each[1].sites[0].spectrum is not None]
    return section(
        "Virtual width",
        note("virtual-width"),
        *(_reach_figure(f"reach-{i}", name, each, looks[name], top) for i, (name, each) in enumerate(found.items())),
        _distance_figure(found, looks),
        _spectrum_figure("carry", "radius", found, looks),
        _spectrum_figure("carry-product", "product_radius", found, looks),
        note("reach"),
        _summary(found),
        note("slots"),
        *(
            _slot_figure(f"slots-{i}-{part}", name, each, looks[name], part)
            for i, (name, each) in enumerate(found.items())
            for part in _SLOT_MAPS
        ),
        *(_site_table(name, each).folded for name, each in found.items()),
        *(_carry_table(name, each).folded for name, each in spectra),
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
    chart = _shade(grid, across, up, style, alt.Scale(type="sqrt", domain=[0, top]), "weight / mean of the row")
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
    firsts: dict[str, str] = {}
    for site in width.sites:
        firsts.setdefault(site.name.rpartition(".")[0], clean(site.name))
    numbers: dict[str, int] = {"embedding": 0} if n_before else {}
    for n, name in enumerate(firsts.values(), start=1):
        if n in layer_ticks(len(firsts)) and not (n_before and n == 1):  # 1 would stand too close to 0
            numbers[name] = n
    text = "".join(f"datum.value == {name!r} ? '{number}' : " for name, number in numbers.items()) + "''"
    return alt.Axis(values=list(numbers), labelExpr=text, labelAngle=0, grid=False)


_SLOT_MAPS = {"read": "read from slots", "write": "written to slots", "carry": "moved between slots"}
"""Table of a site -> what its map shows."""


def _slot_figure(key: str, name: str, width: VirtualWidth, style: Style, part: str) -> Figure:
    """Return one row per slot, slot 1 at the bottom; one column per sublayer."""
    kept = np.eye(width.n_slots) if part == "carry" else 0.0
    grid = np.stack([np.linalg.norm(np.array(site[part]) - kept, axis=1) for site in width.sites], axis=1)
    across, up = _labels(width.sites), [str(slot) for slot in range(1, len(grid) + 1)]
    scale = alt.Scale(type="linear", domain=[0, float(grid.max()) or 1.0])
    ticks = list(map(str, layer_ticks(width.n_slots)))
    chart = _shade(grid, across, up, style, scale, "norm of the coefficients").encode(
        x=alt.X("across:O", sort=across, title="layer", axis=_layer_axis(width)),
        y=alt.Y("up:O", sort=up[::-1], title="slot", axis=alt.Axis(values=ticks, grid=False)),
    )
    title = _SLOT_MAPS[part]
    label = f"{title}, {shorten(name, 60)}: norms of the mean coefficients, from {grid.min():.2f} to {grid.max():.2f}."
    return Figure(key, f"{clean(name)}: {title}", label, chart, height=60 + 20 * width.n_slots, is_small=True)


def _shade(
    grid: Grid, across: Sequence[str], up: Sequence[str], style: Style, scale: alt.Scale, words: str
) -> alt.Chart:
    """Return one cell per number, from transparent to the full colour; NaN is left out."""
    cells = [
        {"across": across[column], "up": up[row], "value": float(value)}
        for (row, column), value in np.ndenumerate(grid)
        if np.isfinite(value)
    ]
    scale["range"] = [0, 1]
    made = alt.Chart(charts.table_of(cells)).mark_rect(fill=style.colour)
    tip = charts.tips(up="|reader", across="|at", value=f".3f|{words}")
    return made.encode(opacity=alt.Opacity("value:Q", scale=scale, legend=None), tooltip=tip)


def _distance_figure(found: Mapping[str, VirtualWidth], looks: Mapping[str, Style]) -> Figure | None:
    deepest = max(found.values(), key=lambda width: len(width.sites))
    curves = {"equal weights": _curve(deepest, "plain_distance")}
    curves |= {name: _curve(own, "mean_distance") for name, own in found.items()}
    looks = {"equal weights": BASELINE_STYLE, **looks}
    title = "Distance over which sublayers read"
    return curve_figure("reach-distance", title, curves, looks, "layer that reads", "mean distance in layers")


def _spectrum_figure(
    key: str, number: str, found: Mapping[str, VirtualWidth], looks: Mapping[str, Style]
) -> Figure | None:
    """Return None for results of versions that did not look."""
    curves = {name: _curve(width, number) for name, width in found.items()}
    if number == "radius":
        return curve_figure(key, "Carries of single sublayers", curves, looks, "layer", "spectral radius")
    return curve_figure(
        key, "Carries of all sublayers so far", curves, looks, "layer", "spectral radius of the product"
    )


def _curve(width: VirtualWidth, number: str) -> Curve:
    values = [finite(_of_site(site, number)) for site in width.sites]
    return Curve(1 + np.arange(len(values)) / 2, np.array(values))


_SPECTRUM = ("radius", "norm", "product_radius", "product_norm")


def _of_site(site: SiteSlots, number: str) -> float | None:
    """Return a number of a sublayer, or of the spectrum of its carry; None if unknown."""
    if number in _SPECTRUM:
        return None if site.spectrum is None else site.spectrum[number]
    return site[number]


def _summary(found: Mapping[str, VirtualWidth]) -> Table:
    def mean(number: str) -> Callable[[VirtualWidth], str]:
        return lambda width: _mean([_of_site(site, number) for site in width.sites])

    quantities: dict[str, Callable[[VirtualWidth], str]] = {
        f"slots {TIMES} slot width": lambda width: f"{width.n_slots} {TIMES} {width.slot_width}",
        "mean distance in layers": mean("mean_distance"),
        "mean distance with equal weights": mean("plain_distance"),
        "weight of the embedding / mean of the row, mean over sublayers": lambda width: _mean(
            _proportions(width)[:, 0].tolist()
        ),
        "weight of the last n_slots writers / weight of all, mean over sublayers (hard window)": mean("window_share"),
        "distance of carries and writes from 0 or 1, mean (0: hard routing)": mean("gate_distance"),
        "spectral radius of a carry, mean over sublayers": mean("radius"),
        "spectral radius, norm of the product of all carries": lambda width: ", ".join(
            fixed(_of_site(width.sites[-1], number), 3) for number in ("product_radius", "product_norm")
        ),
        "standard deviation of a weight between tokens / its mean": _variation,
        "held-out tokens looked at": lambda width: si(width.n_tokens),
    }
    return model_columns("Use of the stream", found, quantities)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return fixed(float(np.mean(known)) if known else None, 3)


def _variation(width: VirtualWidth) -> str:
    weights = sum(sum(site.reach) for site in width.sites)
    return fixed(sum(sum(site.reach_sd) for site in width.sites) / weights if weights else None, 3)


def _site_table(name: str, width: VirtualWidth) -> Table:
    header = ["Sublayer", "embedding", "sublayer before", "largest", "distance", "with equal weights"]
    rows = [
        [
            clean(site.name),
            *(fixed(weight, 3) for weight in (site.reach[0], site.reach[-1], max(site.reach))),
            *(fixed(distance, 2) for distance in (site.mean_distance, site.plain_distance)),
            *(fixed(max(site.sd.get(part, []), default=None), 3) for part in _SLOT_MAPS),
        ]
        for site in width.sites
    ]
    caption = f"Sublayers of {clean(name)}: weights of what they read; sd: of the slot that differs most between tokens"
    return Table(caption, [*header, *(f"sd of {part}" for part in _SLOT_MAPS)], rows)


def _carry_table(name: str, width: VirtualWidth) -> Table:
    header = ["Sublayer", "last n_slots / all", "distance from 0 or 1"]
    header += ["radius of the carry", "norm", "radius of the product so far", "norm"]
    numbers = ("window_share", "gate_distance", *_SPECTRUM)
    rows = [[clean(site.name), *(fixed(_of_site(site, number), 3) for number in numbers)] for site in width.sites]
    caption = f"Carries of {clean(name)}: spectral radius and norm; how hard its windows and gates are"
    return Table(caption, header, rows)
