"""Figures: Altair charts with one style, for pages (light or dark) and as SVG or PDF files."""

import json
import math
import re
import resource
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import altair as alt
import numpy as np
import vl_convert
import yaml
from markupsafe import Markup
from scipy.optimize import isotonic_regression

from widthwise.mistakes import UserError
from widthwise.reports.formats import clean, printable, shorten

_FOLDER = Path(__file__).parent
_BLOCKS = re.findall(r":root \{(.*?)\}", (_FOLDER / "page.css").read_text(encoding="utf-8"), re.DOTALL)
_LIGHT, _DARK = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in _BLOCKS)
COLOURS: Mapping[str, tuple[str, str]] = {name: (light, _DARK[name]) for name, light in _LIGHT.items()}
"""CSS variable -> colour on the light and on the dark page. `ink` is readable on all `heat` colours, which go from blue
to orange and can be distinguished by the colour-blind."""


def colours(is_dark: bool) -> dict[str, str]:
    """Return CSS variable -> colour of the light or the dark page."""
    return {name: dark if is_dark else light for name, (light, dark) in COLOURS.items()}


def colour(name: str) -> str:
    """Return a CSS colour that follows the theme of the page. name: one of COLOURS."""
    assert name in COLOURS
    return f"var(--{name})"


INK, MUTED, GRID, CARD = map(colour, ("ink", "muted", "grid", "card"))
SERIES = [colour(f"series-{i}") for i in range(1, 8)]
HEAT = [colour(f"heat-{i}") for i in range(1, 10)]
_DASHES: Sequence[Sequence[float]] = ([1, 0], [9, 3], [2, 2.5], [11, 3, 2, 3])
_SHAPE_PATHS = {
    "circle": "M14 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "M14.4 2.4h7.2v7.2h-7.2z",
    "diamond": "M18 1l5 5-5 5-5-5z",
    "triangle-up": "M18 1.5l4.6 8.4h-9.2z",
    "triangle-down": "M18 10.5l4.6-8.4h-9.2z",
    "cross": "M16.6 1.8h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8V7.4h-2.8V4.6h2.8z",
    "triangle-right": "M22.5 6l-8.4 4.6V1.4z",
}
_SHAPES = tuple(_SHAPE_PATHS)


@dataclass(frozen=True)
class Style:
    """The style of one variant in all figures. Up to 28 variants differ in colour (and marker) or dashes."""

    colour: str
    dash: Sequence[float] = (1, 0)
    shape: str = "circle"

    @property
    def swatch(self) -> Markup:
        """A sample of the variant's line, for a legend or a table."""
        return Markup(
            '<svg class="swatch" viewBox="0 0 36 12" aria-hidden="true">'
            '<path d="M1 6H35" fill="none" stroke="{0}" stroke-width="2.4" stroke-dasharray="{1}"/>'
            '<path d="{2}" fill="{0}"/></svg>'
        ).format(self.colour, " ".join(map(str, self.dash)), _SHAPE_PATHS[self.shape])


Looks = Mapping[str, Style]
"""Name of a variant, run or group -> its style."""
BASELINE_STYLE = Style(MUTED, _DASHES[1])


def styles(names: Collection[str], baseline: str | None = None) -> dict[str, Style]:
    """Return a style for each name; the baseline is grey and dashed."""
    looks = {baseline: BASELINE_STYLE} if baseline is not None and baseline in names else {}
    for i, name in enumerate(name for name in names if name != baseline):
        dash = _DASHES[(i // len(SERIES)) % len(_DASHES)]
        looks[name] = Style(SERIES[i % len(SERIES)], dash, _SHAPES[(i + 1) % len(_SHAPES)])
    return looks


VEGA_CONFIG: Mapping[str, Any] = yaml.safe_load((_FOLDER / "look.yaml").read_text(encoding="utf-8"))
"""Vega-Lite config of all figures."""
_LABEL_SHARE = 0.065
"""Height of a line of text, as a share of a y axis."""
_WIDTH = 320
"""Width of a figure file in pixels, 240 points: a column of a paper. Figures of a page fill the width of the page."""
_FILE_FONT = 12
"""Font size in a figure file in pixels: 9 points."""
VEGA_BYTES = 80 * 2**30
"""Address space (not memory) for figure files: 64 GiB for the JavaScript engine of vl_convert, 16 GiB for the rest."""
FileKind = Literal["svg", "pdf"]


@dataclass(frozen=True)
class Figure:
    """A chart with its title and its text alternative."""

    key: str
    """Name of the file, unique on the page."""
    title: str
    label: str
    """Text alternative, with the most important numbers."""
    chart: alt.TopLevelMixin
    legend: Looks = field(default_factory=dict)
    """Styles of the drawn names. On a page, a click on a name in the legend hides its lines."""
    height: int = 250
    is_small: bool = False
    is_named: bool = False
    """True if the names are written at the ends of the lines, so that a file needs no legend."""

    def spec(self, is_file: bool = False) -> dict[str, Any]:
        """Return the Vega-Lite specification, for a file with data as rows.

        For a page, data are columns, which take less space; the script of the page converts them to rows.
        """
        spec = self.chart.to_dict(validate=False) | {"height": self.height, "width": _WIDTH if is_file else "container"}
        spec = {key: value for key, value in spec.items() if key not in ("$schema", "config")}
        if not is_file:
            datasets = spec.get("datasets", {})
            spec["datasets"] = {}
            for name, rows in datasets.items():
                if rows:
                    keys = dict.fromkeys(key for row in rows for key in row)
                    spec["datasets"][name] = {key: [row.get(key) for row in rows] for key in keys}
        spec["params"] = [*spec.get("params", ()), {"name": "hidden", "value": []}]
        if not self.is_small:
            # Readers pan and zoom the quantitative axes of the layer with most such axes; of several, the last layer.
            layer = max(reversed(spec.get("layer", [spec])), key=lambda layer: len(_zoomed_axes(layer)))
            if axes := _zoomed_axes(layer):
                select = {"type": "interval", "encodings": axes, "zoom": "wheel![event.shiftKey || event.ctrlKey]"}
                layer["params"] = [*layer.get("params", ()), {"name": "zoom", "select": select, "bind": "scales"}]
        return spec

    def document(self, kind: FileKind, is_dark: bool = False) -> bytes:
        """Return the figure as a file with a legend."""
        spec = self.spec(is_file=True) | {"autosize": {"type": "fit-x", "contains": "padding"}}
        size = {"labelFontSize": _FILE_FONT, "titleFontSize": _FILE_FONT}
        config = {**VEGA_CONFIG, "axis": VEGA_CONFIG["axis"] | size}
        config["text"] = VEGA_CONFIG["text"] | {"fontSize": _FILE_FONT}
        config["axisX"] = VEGA_CONFIG["axisX"] | {"tickCount": 3}
        config["legend"] = VEGA_CONFIG["legend"] | {"columns": 2, "labelFontSize": _FILE_FONT, "disable": self.is_named}
        title = {"text": clean(self.title), "anchor": "start", "fontSize": _FILE_FONT, "limit": _WIDTH, "color": INK}
        text = json.dumps({**spec, "config": config, "title": title})
        for name, value in colours(is_dark).items():
            text = text.replace(colour(name), value)
        if kind == "pdf":
            return vega_library().vegalite_to_pdf(text)
        return printable(vega_library().vegalite_to_svg(text)).encode()


def vega_library() -> ModuleType:
    """Return vl_convert. Raises UserError if a limit on address space would end the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= VEGA_BYTES:
        return vl_convert
    raise UserError(
        f"figures: vl_convert reserves up to {VEGA_BYTES >> 30} GiB of address space, but this process is limited to "
        f"{limit >> 30} GiB; run `ulimit -v unlimited` first"
    )


def _zoomed_axes(layer: Mapping[str, Any]) -> list[str]:
    """Return the axes of a layer that are visible and quantitative, "x" and "y" in the order of the layer."""
    axes = []
    for axis, channel in layer.get("encoding", {}).items():
        is_field = axis in ("x", "y") and "field" in channel and "aggregate" not in channel
        if is_field and channel.get("type") == "quantitative" and channel.get("axis", {}) is not None:
            axes.append(axis)
    return axes


Rows = Sequence[Mapping[str, Any]]


def _number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def chart(rows: Rows) -> alt.Chart:
    """Return a chart of rows; rows with a hidden `name` are filtered out. Numbers have six digits; NaN is a gap."""
    values = [{key: _number(value) for key, value in row.items()} for row in rows]
    unfiltered = alt.Chart(alt.InlineData(values=values))
    has_names = bool(rows) and "name" in rows[0]
    return unfiltered.transform_filter("indexof(hidden, datum.name) < 0") if has_names else unfiltered


def name_encodings(looks: Looks, *channels: str) -> dict[str, Any]:
    """Return the encodings of the column `name`, which holds cleaned names. channels: by default the colour."""
    names = list(map(clean, looks))
    colours_of_names = [style.colour for style in looks.values()]
    ranges = {
        "shape": [style.shape for style in looks.values()],
        "strokeDash": [list(style.dash) for style in looks.values()],
    }
    encodings = {}
    for channel in channels or ("color",):
        values = ranges.get(channel, colours_of_names)
        if len(names) == 1:
            encodings[channel] = alt.value(values[0])
        else:
            encodings[channel] = {"field": "name", "type": "nominal", "scale": {"domain": names, "range": values}}
    return encodings


def _axis(
    kind: Any,
    name: str,
    title: str | list[str] | None,
    domain: Sequence[float] | None = None,
    log: bool = False,
    **axis: Any,
) -> Any:
    """Return a quantitative axis, which need not include 0.

    kind: alt.X or alt.Y. name: column of the data. title: one or several lines. domain: ends; None fits the data.
    """
    settings: dict[str, Any] = {"padding": 9} if domain is None else {"domain": list(domain)}
    settings |= {"nice": False} | ({"type": "log"} if log else {"zero": False})
    return kind(f"{name}:Q", title=title, scale=alt.Scale(**settings), axis=alt.Axis(**axis))


x = partial(_axis, alt.X)
y = partial(_axis, alt.Y)


@dataclass(frozen=True)
class Plot:
    """Layers with common axes. Rows have `name` and `y`; rows of bars and bands also have `low` and `high`."""

    x: alt.X
    y_title: str
    looks: Looks
    """The styles of the drawn names."""
    tip: Sequence[alt.Tooltip]
    domain: Sequence[float] | None = None
    """Ends of the y axis; None shows everything."""
    is_log: bool = False
    """True for a logarithmic y axis."""
    has_menu: bool = False
    """True if readers choose the column of the x axis (`with_x_menu`); `at` is then the chosen column."""

    def lines(self, rows: Rows, detail: str = "name", **mark: Any) -> alt.Chart:
        """Return lines. detail: the column that separates the lines of one name."""
        marks = self._encoded(chart(rows).mark_line(**mark), "y", "color", "strokeDash")
        return marks.encode(detail=f"{detail}:N")

    def points(self, rows: Rows, **mark: Any) -> alt.Chart:
        """Return markers."""
        return self._encoded(chart(rows).mark_point(clip=True, **mark), "y", "color", "shape")

    def targets(self, rows: Rows) -> alt.Chart:
        """Return invisible circles, which show a tooltip with the values of a line."""
        return self._encoded(chart(rows).mark_circle(size=70, opacity=0, clip=True), "y")

    def bars(self, rows: Rows) -> alt.Chart:
        """Return upright lines from low to high."""
        marks = chart(rows).mark_rule(strokeWidth=1.6, opacity=0.55, clip=True)
        return self._encoded(marks, "low").encode(y2="high:Q")

    def bands(self, rows: Rows) -> alt.Chart:
        """Return areas from low to high."""
        marks = chart(rows).mark_area(opacity=0.16, clip=True)
        return self._encoded(marks, "low", "fill").encode(y2="high:Q")

    def _encoded(self, marks: alt.Chart, column: str, *channels: str) -> alt.Chart:
        axis = {"format": ".4~g"} if self.is_log else {}
        up = y(column, self.y_title, self.domain, self.is_log, **axis)
        encodings = name_encodings(self.looks, *channels)
        return self._with_x(marks.encode(y=up, tooltip=list(self.tip), **encodings))

    def _with_x(self, marks: alt.Chart) -> alt.Chart:
        if self.has_menu:
            marks = marks.transform_calculate(at="datum[over]")  # `over` is the parameter of the menu
        return marks.encode(x=self.x)

    def vertical_lines(self, rows: Rows) -> alt.Chart:
        """Return dashed vertical lines across the figure. rows: with the column of x only."""
        rules = chart(rows).mark_rule(strokeDash=[4, 3], stroke=MUTED)
        return self._with_x(rules)

    def names_at(self, last: Mapping[str, float], domain: Sequence[float]) -> alt.Chart:
        """Return the name of each line at its last value, right of the plot; names do not overlap.

        last: finite values. domain: ends of the y axis.
        """
        low, high = domain
        names = sorted(last, key=lambda name: (last[name], name))
        # The nearest places that are at least a line of text apart: an isotonic regression after subtracting the gaps.
        gaps = _LABEL_SHARE * (high - low) * np.arange(len(names))
        free_places = np.clip([last[name] for name in names] - gaps, low, high - gaps[-1])
        places = isotonic_regression(free_places).x + gaps
        rows = [
            {"name": clean(name), "place": float(place), "colour": self.looks[name].colour}
            for name, place in zip(names, places)
        ]
        is_inside = alt.ExprRef("inrange(scale('y', datum.place), [-1, height + 1])")
        return text_at_right(rows, alt.Y("place:Q"), "name", opacity=is_inside)


def text_at_right(rows: Rows, up: alt.Y, column: str, **mark: Any) -> alt.Chart:
    """Return the text of a column, right of the plot and in the colour of the column `colour`."""
    marks = chart(rows).mark_text(align="left", x=alt.ExprRef("width + 8"), lineBreak="\n", clip=False, **mark)
    return marks.encode(y=up, text=f"{column}:N", color=alt.Color("colour:N", scale=None))


def text_alternative(start: str, numbers: Mapping[str, str]) -> str:
    """Return the text alternative of a figure: `start`, then the numbers of each name."""
    return f"{start} {'; '.join(f'{shorten(name, 40)} {text}' for name, text in numbers.items())}."


def tips(**columns: str) -> list[alt.Tooltip]:
    """Return tooltips. columns: column -> `FORMAT|TITLE`, such as `.4f|loss`; without a format for text."""
    tooltips = []
    for name, spec in columns.items():
        number_format, _, title = spec.partition("|")
        kind = {"format": number_format, "type": "quantitative"} if number_format else {"type": "nominal"}
        tooltips.append(alt.Tooltip(field=name, title=title or name, **kind))  # pyright: ignore[reportArgumentType]
    return tooltips


def with_x_menu(layers: Sequence[alt.Chart], columns: Mapping[str, str]) -> alt.TopLevelMixin:
    """Return the layers of a Plot with `has_menu`, with a menu for the column of the x axis and its title.

    columns: column -> title; the first is chosen.
    """
    menu = alt.binding_select(options=list(columns), labels=list(columns.values()), name="over ")
    chosen = alt.param("over", value=next(iter(columns)), bind=menu)
    title = {"expr": f"({json.dumps(columns)})[over]"}
    place = {"x": {"expr": "width / 2"}, "y": {"expr": "height + 31"}}
    size = VEGA_CONFIG["axis"]["titleFontSize"]
    text = alt.Chart(alt.Data(values=[{}])).mark_text(text=title, clip=False, fontSize=size, **place)  # pyright: ignore[reportArgumentType]
    return alt.layer(*layers, text).add_params(chosen)


def line_at(value: float, axis: Literal["x", "y"], dash: Sequence[float] = (1, 0), stroke: str = INK) -> alt.Chart:
    """Return a line across the figure at a value of an axis."""
    rule = alt.Chart(alt.Data(values=[{}])).mark_rule(strokeDash=list(dash), stroke=stroke)
    return rule.encode(**{axis: alt.datum(value)})  # pyright: ignore[reportArgumentType]
