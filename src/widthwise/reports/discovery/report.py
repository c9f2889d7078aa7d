"""The report of a discovery: one page, with the comparison with its rivals where it has been made."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.comparison import Comparison
from widthwise.records.discovery import DISCOVERED, Discovery, Found, Stage
from widthwise.records.quantities import TITLES
from widthwise.reports.discovery.tables import (
    cost_table,
    gains_table,
    growth_table,
    has_blocks,
    rivals_table,
    sentences,
    sizes_table,
)
from widthwise.reports.page.formats import clean, si
from widthwise.reports.page.html import legend, panels, render, write_all
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, label_axes, layer_ticks
from widthwise.reports.page.svg import Style, draw, line_legend, styles
from widthwise.reports.page.tables import environment_table, settings_table
from widthwise.reports.page.ticks import number_axis

N_LINES = 4
"""Moments of the search that a figure shows."""


class Size(NamedTuple):
    """A size of layers that a figure shows."""

    key: str
    """The field of `LayerSizes` that is drawn."""
    title: str
    unit: str = "channels"


SIZES = [
    Size("width", "width in the stream"),
    Size("attention", "width of attention"),
    Size("hidden", "hidden units"),
    Size("blocks", "blocks", "of the hourglass"),
]


class Moment(NamedTuple):
    """A stage, and which layers of the last one its layers became, from 0."""

    stage: Stage
    places: Sequence[int]


def write_discovery_report(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Reads `folder/discovery.json` and the comparison it names, writes `report.html` into `out` (default: `folder`).

    Returns {"html": ...}. Raises UserError where something is broken, before it writes anything.
    """
    folder = Path(folder)
    return write_all({"html": ("report.html", _page(folder, Discovery.read(folder)))}, Path(out or folder))


def _page(folder: Path, discovery: Discovery) -> str:
    compared = folder / (discovery.comparison or "")
    has_comparison = discovery.comparison is not None and (compared / Comparison.file_name).is_file()
    comparison = Comparison.read(compared) if has_comparison else None
    moments = _moments(discovery.found)
    chosen = styles(list(moments))
    sizes = SIZES if has_blocks(discovery.found.stages) else [size for size in SIZES if size.key != "blocks"]
    figures = {size.title: _profile_figure(size, moments, chosen) for size in sizes}
    recipe, matched = folder / f"{DISCOVERED}.yaml", TITLES.get(discovery.match, clean(discovery.match))
    return render(
        "discovery/discovery.html",
        title=f"discovery for {clean(discovery.title)}",
        question=f"Which layers should be wide, at {si(discovery.budget)} {matched}?",
        matched=matched,
        answers=list(sentences(discovery, comparison)),
        legend=legend(chosen),
        figures=panels(figures),
        sizes_table=sizes_table(discovery),
        has_added=bool(discovery.found.added()),
        gains_table=gains_table(discovery),
        growth_table=growth_table(discovery),
        cost_table=None if comparison is None else cost_table(discovery, comparison),
        rivals_table=None if comparison is None else rivals_table(comparison),
        comparison=f"{discovery.comparison}/report.html" if comparison else None,
        has_even=comparison is not None and any(each.name == "even" for each in comparison.variants),
        environment_table=None if discovery.environment is None else environment_table(discovery.environment),
        options_table=None if discovery.options is None else settings_table("Method", discovery.options),
        command=discovery.command,
        recipe=recipe.read_text() if recipe.is_file() else None,
        recipe_name=recipe.name,
    )


def _moments(found: Found) -> dict[str, Moment]:
    """A few stages from the first to the last, by the words of their step."""
    stages, places = found.stages, found.places()
    numbers = np.unique(np.linspace(0, len(stages) - 1, min(N_LINES, len(stages))).round().astype(int))
    last = len(stages) - 1
    return {
        "found" if number == last else f"after step {stages[number].step:,}": Moment(stages[number], places[number])
        for number in numbers
    }


def _profile_figure(size: Size, moments: dict[str, Moment], chosen: dict[str, Style]) -> Markup:
    """Layers stand where they are in the model that was found, so that one which was added later leaves a gap."""
    n_layers = max(len(moment.places) for moment in moments.values())

    def paint(axes: Axes) -> None:
        for name, (stage, places) in moments.items():
            style, sizes = chosen[name], [layer[size.key] for layer in stage.layers]
            look = {"color": style.colour, "linestyle": style.dash, "marker": style.marker, "markersize": 4}
            axes.plot([place + 1 for place in places], sizes, label=named(name), **look)
        axes.set_ylim(bottom=0)
        label_axes(axes, "layer (1 reads the tokens)", f"{size.title}, {size.unit}", whole=True)
        number_axis(axes.yaxis, 8, whole=True)
        axes.set_xticks(layer_ticks(n_layers))

    label = f"{size.title.capitalize()} of each layer at {len(moments)} moments of the search."
    return draw(f"profile-{size.key}", label, INCHES, paint, line_legend(chosen))
