"""One drawing style, and matplotlib figures as inline SVG whose colours follow the page, or as files.

Text stays text, which keeps files small and lets the page choose the font. Figures are drawn in the fixed colours
below; each is replaced by a CSS variable, so that one figure serves the light and the dark page.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from widthwise.reports.page.formats import printable, shorten
from widthwise.reports.page.inline import identified, inline

INK, MUTED, GRID, CARD = "#1b1d20", "#5c636b", "#e2e3e0", "#fefefe"
SERIES = ("#0a6ebd", "#c8500a", "#00856a", "#a8508c", "#8f6a00", "#2a8ca8", "#b3344a")
PARTS = ("#1f4e79", "#3a76a8", "#6ba3cd", "#a5c8e1", "#8b98a5", "#c3ccd4", "#5d6b78")
HEAT = ("#7db4e3", "#a3c9eb", "#c4dcf2", "#e0ecf7", "#f0f1ee", "#faead9", "#f7d5b5", "#f3bc8a", "#ec9f5f")
"""Blue, nothing, orange, which the colour-blind tell apart; ink can be read on each."""

_CSS_COLOURS = (
    {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", CARD: "var(--card)"}
    | {colour: f"var(--series-{i})" for i, colour in enumerate(SERIES, start=1)}
    | {colour: f"var(--part-{i})" for i, colour in enumerate(PARTS, start=1)}
    | {colour: f"var(--heat-{i})" for i, colour in enumerate(HEAT, start=1)}
)
_DASHES: tuple[Literal["-", "--"] | tuple[float, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (1.2, 1.4)),
    (0, (6, 1.5, 1.2, 1.5)),
)
_MARKERS = "osD^vPX"

_MARKER_PATHS = {
    "o": "M14 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "M14.4 2.4h7.2v7.2h-7.2z",
    "D": "M18 1l5 5-5 5-5-5z",
    "^": "M18 1.5l4.6 8.4h-9.2z",
    "v": "M18 10.5l4.6-8.4h-9.2z",
    "P": "M16.6 1.8h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8V7.4h-2.8V4.6h2.8z",
    "X": "M15.2 1.2L18 4L20.8 1.2L22.8 3.2L20 6L22.8 8.8L20.8 10.8L18 8L15.2 10.8L13.2 8.8L16 6L13.2 3.2z",
}

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "widthwise",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.size": 10.5,
    "axes.labelsize": 10.5,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@dataclass(frozen=True)
class Style:
    """How one variant is drawn in every figure: told apart by colour, by dashes and by marker."""

    colour: str
    dash: Literal["-", "--"] | tuple[float, tuple[float, ...]]
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """The look of a strong line with its markers."""
        marks = {"marker": self.marker, "markersize": 4.5, "markeredgecolor": CARD, "markeredgewidth": 0.6}
        return {"color": self.colour, "linestyle": self.dash, "linewidth": 1.9, **marks}


FACETS_PER_ROW = 4
"""Small figures beside each other in a file."""
BASELINE_STYLE = Style(MUTED, _DASHES[1], "o")


def styles(names: list[str], baseline: str | None = None) -> dict[str, Style]:
    """One style per name; the baseline is grey and dashed."""
    chosen = {name: BASELINE_STYLE for name in names if name == baseline}
    others = [name for name in names if name != baseline]
    for i, name in enumerate(others):
        dash = _DASHES[(i // len(SERIES)) % len(_DASHES)]
        chosen[name] = Style(SERIES[i % len(SERIES)], dash, _MARKERS[(i + 1) % len(_MARKERS)])
    return chosen


FileKind = Literal["svg", "pdf"]
_NO_METADATA: dict[FileKind, dict[str, None]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}


@dataclass(frozen=True)
class FigureFiles:
    """The figures drawn so far as documents of their own: key -> content."""

    kind: FileKind
    contents: dict[str, bytes]


_FILES: ContextVar[FigureFiles | None] = ContextVar("figure files", default=None)


@contextmanager
def as_files(kind: FileKind) -> Iterator[FigureFiles]:
    """Within it, `draw` keeps every figure also as a document with its own legend, in the colours of the light page."""
    files = FigureFiles(kind, {})
    token = _FILES.set(files)
    try:
        yield files
    finally:
        _FILES.reset(token)


def draw(
    key: str,
    label: str,
    size_inches: tuple[float, float],
    paint: Callable[[Axes], None],
    legend: Sequence[Artist] = (),
) -> Markup:
    """Paints one pair of axes as inline SVG. `key` is unique on the page; `label` is the text alternative.

    legend: what a file has of it; a page has its own, outside of its figures.
    """
    with _own_settings():
        figure, shown = _drawn(key, label, size_inches, paint)
        _keep(key, figure, legend)
    return shown


@dataclass(frozen=True)
class Facet:
    """One of several small figures with the same axes."""

    title: str
    """Above it in a file; a page has its own."""
    label: str
    paint: Callable[[Axes], None]


def draw_facets(
    key: str, facets: Sequence[Facet], size_inches: tuple[float, float], legend: Sequence[Artist] = ()
) -> list[Markup]:
    """Each as inline SVG of that size; a file has all of them as one figure. Otherwise as `draw`."""
    with _own_settings():
        shown = [_drawn(f"{key}-{i}", each.label, size_inches, each.paint)[1] for i, each in enumerate(facets)]
        n_columns = min(len(facets), FACETS_PER_ROW)
        n_rows = -(-len(facets) // n_columns)
        figure = Figure(figsize=(n_columns * size_inches[0], n_rows * size_inches[1]), layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        for axes, facet in zip(grid, facets):
            facet.paint(axes)
            lines = (shorten(line, 30) for line in facet.title.split("\n"))
            axes.set_title("\n".join(lines), loc="left", fontsize="medium")
        for axes in grid[len(facets) :]:
            axes.set_axis_off()
        _keep(key, figure, legend)
    return shown


@contextmanager
def _own_settings() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a matplotlibrc of the user's must not change the bytes
        matplotlib.rcParams.update(_SETTINGS)
        yield


def _drawn(
    key: str, label: str, size_inches: tuple[float, float], paint: Callable[[Axes], None]
) -> tuple[Figure, Markup]:
    figure = Figure(figsize=size_inches, layout="constrained")
    axes = figure.add_subplot()
    paint(axes)
    artists = identified(axes)
    return figure, inline(_saved(figure, "svg", "none").decode(), key, label, axes, artists, _CSS_COLOURS)


def _keep(key: str, figure: Figure, legend: Sequence[Artist]) -> None:
    """As a document of its own, where such are wanted."""
    if files := _FILES.get():
        if len(legend) > 1:
            figure.legend(handles=list(legend), loc="outside upper left", ncols=2, frameon=False)
        files.contents[key] = _saved(figure, files.kind, "white")


def line_legend(styles: Mapping[str, Style]) -> list[Line2D]:
    """A piece of each line with its marker, for the legend of a file."""
    return [
        Line2D([], [], color=style.colour, linestyle=style.dash, marker=style.marker, label=shorten(name, 30))
        for name, style in styles.items()
    ]


def _saved(figure: Figure, kind: FileKind, background: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=_NO_METADATA[kind], facecolor=background)
    content = buffer.getvalue()
    return printable(content.decode()).encode() if kind == "svg" else content  # XML allows no control characters


def swatch(style: Style) -> Markup:
    """A piece of the variant's line, for a legend."""
    dash = "" if isinstance(style.dash, str) else ",".join(f"{2 * length:g}" for length in style.dash[1])
    colour = _CSS_COLOURS[style.colour]
    return Markup(
        '<svg class="swatch" viewBox="0 0 36 12" aria-hidden="true">'
        '<path d="M1 6H35" fill="none" stroke="{0}" stroke-width="2.4" stroke-dasharray="{1}"/>'
        '<path d="{2}" fill="{0}"/></svg>'
    ).format(colour, dash or "none", _MARKER_PATHS[style.marker])


def block_swatch(part: int) -> Markup:
    """A block in the colour of cost part number `part` (from 0), for a legend."""
    return Markup(
        '<svg class="swatch block" viewBox="0 0 12 12" aria-hidden="true"><path d="M0 0h12v12H0z" fill="{}"/></svg>'
    ).format(_CSS_COLOURS[PARTS[part % len(PARTS)]])
