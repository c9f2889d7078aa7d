"""The report of a discovery: one page, with the comparison with its rivals where it has been made."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.comparison import Comparison
from widthwise.records.discovery import DISCOVERED, Discovery, Stage
from widthwise.reports.discovery.tables import cost_table, growth_table, sentences, sizes_table
from widthwise.reports.page.formats import clean, si
from widthwise.reports.page.html import FoldedRecipe, legend, panels, render, write_all
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, label_axes, layer_ticks
from widthwise.reports.page.svg import Style, draw, line_legend, styles

N_LINES = 4
"""Moments of the search that a figure shows."""


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
    moments = _moments(discovery.found.stages)
    chosen = styles(list(moments))
    figures = {
        title: _profile_figure(key, title, moments, chosen)
        for key, title in (
            ("width", "width in the stream"),
            ("attention", "width of attention"),
            ("hidden", "hidden units"),
        )
    }
    recipe = folder / f"{DISCOVERED}.yaml"
    return render(
        "discovery/discovery.html",
        title=f"discovery for {clean(discovery.title)}",
        question=f"Which layers should be wide, at {si(discovery.budget)} {discovery.match}?",
        answers=list(sentences(discovery, comparison)),
        legend=legend(chosen),
        figures=panels(figures),
        sizes_table=sizes_table(discovery),
        growth_table=growth_table(discovery),
        cost_table=None if comparison is None else cost_table(discovery, comparison),
        comparison=f"{discovery.comparison}/report.html" if comparison else None,
        command=discovery.command,
        recipes=[FoldedRecipe(DISCOVERED, str(recipe.name), recipe.read_text())] if recipe.is_file() else [],
    )


def _moments(stages: Sequence[Stage]) -> dict[str, Stage]:
    """A few stages from the first to the last, by the words of their step."""
    places = np.unique(np.linspace(0, len(stages) - 1, min(N_LINES, len(stages))).round().astype(int))
    found = {}
    for place in places:
        stage = stages[place]
        words = "found" if place == len(stages) - 1 else f"after step {stage.step:,}"
        found[words] = stage
    return found


def _profile_figure(key: str, title: str, moments: dict[str, Stage], chosen: dict[str, Style]) -> Markup:
    n_layers = max(len(stage.layers) for stage in moments.values())

    def paint(axes: Axes) -> None:
        for name, stage in moments.items():
            style, layers = chosen[name], range(1, len(stage.layers) + 1)
            sizes = [layer[key] for layer in stage.layers]
            look = {"color": style.colour, "linestyle": style.dash, "marker": style.marker, "markersize": 4}
            axes.plot(layers, sizes, label=named(name), **look)
        axes.set_ylim(bottom=0)
        label_axes(axes, "layer (1 reads the tokens)", f"{title}, channels", whole=True)
        axes.set_xticks(layer_ticks(n_layers))

    label = f"{title.capitalize()} of each layer at {len(moments)} moments of the search."
    return draw(f"profile-{key}", label, INCHES, paint, line_legend(chosen))
