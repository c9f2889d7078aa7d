"""Figures: Altair charts in one look, coloured by the page that shows them, and as SVG or PDF files."""

import json
import math
import re
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import altair as alt
import vl_convert
from markupsafe import Markup

from widthwise.config_io import UserError
from widthwise.records.estimate import Estimate
from widthwise.records.record import finite
from widthwise.reports.formats import clean, printable, shorten

_BLOCKS = re.findall(r":root \{(.*?)\}", (Path(__file__).parent / "page.css").read_text(encoding="utf-8"), re.DOTALL)
COLOURS: Mapping[str, tuple[str, str]] = {
    name: (light, dark)
    for (name, light), (_, dark) in zip(*(re.findall(r"--([\w-]+): (#\w{6});", block) for block in _BLOCKS))
}
"""CSS variable -> its colour on the light and on the dark page. Ink can be read on all of heat: blue, nothing, orange,
which the colour-blind tell apart."""


def colour(name: str) -> str:
    """Return a colour of the page, which follows its light and dark form."""
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
    """The look of one variant in every figure, unique by colour, dashes and marker."""

    colour: str
    dash: Sequence[float] = (1, 0)
    shape: str = "circle"
    is_area: bool = False
    """A legend shows a block of the colour instead of a line."""

    @property
    def swatch(self) -> Markup:
        """A piece of the variant's line, for a legend or a table."""
        if self.is_area:
            block = Markup('<svg class="swatch block" viewBox="0 0 12 12" aria-hidden="true">{}</svg>')
            return block.format(Markup('<path d="M0 0h12v12H0z" fill="{}"/>').format(self.colour))
        return Markup(
            '<svg class="swatch" viewBox="0 0 36 12" aria-hidden="true">'
            '<path d="M1 6H35" fill="none" stroke="{0}" stroke-width="2.4" stroke-dasharray="{1}"/>'
            '<path d="{2}" fill="{0}"/></svg>'
        ).format(self.colour, " ".join(map(str, self.dash)), _SHAPE_PATHS[self.shape])


Looks = Mapping[str, Style]
"""Name of what is drawn -> its look."""
BASELINE_STYLE = Style(MUTED, _DASHES[1])


def styles(names: Iterable[str], baseline: str | None = None) -> dict[str, Style]:
    """Return one style per name; the baseline is grey and dashed."""
    others = [name for name in names if name != baseline]
    chosen = {} if baseline is None or baseline not in names else {baseline: BASELINE_STYLE}
    for i, name in enumerate(others):
        dash = _DASHES[(i // len(SERIES)) % len(_DASHES)]
        chosen[name] = Style(SERIES[i % len(SERIES)], dash, _SHAPES[(i + 1) % len(_SHAPES)])
    return chosen


def areas(names: Sequence[str]) -> dict[str, Style]:
    """Return a colour for each part of a whole."""
    return {name: Style(SERIES[i % len(SERIES)], is_area=True) for i, name in enumerate(names)}


LOOK: Mapping[str, Any] = {
    "background": "transparent",
    "font": 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("gridColor", "domainColor", "tickColor"), GRID),
        **dict.fromkeys(("labelColor", "titleColor"), MUTED),
        **{"titleFontWeight": "normal", "titleFontSize": 11.5, "labelFontSize": 11, "labelLimit": 190, "ticks": False},
    },
    "axisX": {"grid": False, "labelPadding": 5, "labelFlush": False, "tickCount": 5, "labelOverlap": True},
    "axisY": {"domain": False, "labelPadding": 5, "tickCount": 6},
    "text": {"fill": MUTED, "fontSize": 11},
    "rule": {"stroke": INK},
    "point": {"filled": True, "size": 62, "opacity": 1, "stroke": CARD, "strokeWidth": 0.7},
    "line": {"strokeWidth": 1.9, "clip": True},
    "legend": {"title": None, "orient": "top", "columns": 3, "labelColor": INK, "labelLimit": 260},
}
"""Vega-Lite config of every figure. A page has legends of its own, which hide lines."""
MARGIN = 0.06
"""Room at each end of an axis, as a share of what it shows."""
_WIDTH = 460
"""Pixels of a figure as a file; on a page it is as wide as its column."""
VEGA_BYTES = 80 * 2**30
"""Addresses, not memory: the JavaScript engine of vl_convert reserves 64 GiB, the rest is for this process."""
FileKind = Literal["svg", "pdf"]


@dataclass(frozen=True)
class Figure:
    """A chart with its title and its text alternative."""

    key: str
    """Unique on the page; the name of its file."""
    title: str
    label: str
    """Text alternative: what the figure shows, with its most important numbers."""
    chart: alt.TopLevelMixin
    legend: Looks = field(default_factory=dict)
    """Names that `coloured` draws, which the page's legend lists and hides."""
    height: int = 250
    is_small: bool = False

    def spec(self, is_file: bool = False) -> dict[str, Any]:
        """Return the Vega-Lite specification; on a page, whose script makes rows of them, the data are columns."""
        spec = self.chart.to_dict(validate=False) | {"height": self.height, "width": _WIDTH if is_file else "container"}
        spec = {key: value for key, value in spec.items() if key not in ("$schema", "config")}
        if not is_file:
            named = spec.get("datasets", {}).items()
            spec["datasets"] = {
                name: {key: [row[key] for row in rows] for key in rows[0]} for name, rows in named if rows
            }
        spec["params"] = [*spec.get("params", ()), {"name": "hidden", "value": []}]
        if not self.is_small:
            _add_zoom(spec)
        return spec

    def document(self, kind: FileKind) -> bytes:
        """Return the figure as a file, in the colours of the light page and with its legend."""
        spec = self.spec(is_file=True)
        text = json.dumps({**spec, "config": LOOK, "title": {"text": clean(self.title), "anchor": "start"}})
        for name, (light, _) in COLOURS.items():
            text = text.replace(colour(name), light)
        if kind == "pdf":
            return vega_library().vegalite_to_pdf(text)
        return printable(vega_library().vegalite_to_svg(text)).encode()


def vega_library() -> ModuleType:
    """Return the library that draws figures. Raises UserError under a limit of memory that would end the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= VEGA_BYTES:
        return vl_convert
    raise UserError(
        f"figures: vl_convert reserves up to {VEGA_BYTES >> 30} GiB of addresses, and this process may have "
        f"{limit >> 30} GiB; run `ulimit -v unlimited` first"
    )


def _add_zoom(spec: dict[str, Any]) -> None:
    """Let a reader move and enlarge the axes that show numbers."""
    for unit in reversed(spec.get("layer", [spec])):
        numeric = [
            axis
            for axis, channel in unit.get("encoding", {}).items()
            if axis in ("x", "y") and "field" in channel and "aggregate" not in channel
            if channel.get("type") == "quantitative" and channel.get("axis", {}) is not None
        ]
        if numeric:
            select = {"type": "interval", "encodings": numeric, "zoom": "wheel![event.shiftKey || event.ctrlKey]"}
            unit["params"] = [*unit.get("params", ()), {"name": "zoom", "select": select, "bind": "scales"}]
            return


Rows = Sequence[Mapping[str, Any]]


def table_of(rows: Rows) -> alt.InlineData:
    """Return rows as the data of a chart, numbers with six digits; NaN is a gap."""
    return alt.InlineData(values=[{key: _number(value) for key, value in row.items()} for row in rows])


def _number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def chart(rows: Rows) -> alt.Chart:
    """Return a chart of rows, without those whose `name` the reader hid."""
    drawn = alt.Chart(table_of(rows))
    has_names = bool(rows) and "name" in rows[0]
    return drawn.transform_filter("indexof(hidden, datum.name) < 0") if has_names else drawn


def coloured(chosen: Looks, *channels: str) -> dict[str, Any]:
    """Return encodings of the column `name`, which holds cleaned names: its colour, and of `channels` also the rest."""
    names = list(map(clean, chosen))
    ranges = {
        **{each: [style.colour for style in chosen.values()] for each in ("color", "fill", "stroke")},
        "shape": [style.shape for style in chosen.values()],
        "strokeDash": [list(style.dash) for style in chosen.values()],
    }
    return {
        channel: alt.value(ranges[channel][0])
        if len(names) == 1
        else {"field": "name", "type": "nominal", "scale": {"domain": names, "range": ranges[channel]}}
        for channel in channels or ("color",)
    }


def _axis(
    kind: Any,
    name: str,
    title: str | list[str] | None,
    domain: Sequence[float] | None = None,
    log: bool = False,
    **axis: Any,
) -> Any:
    """Return a quantitative axis that need not show 0. title: one or several lines."""
    settings: dict[str, Any] = {"nice": False, "padding": 9} if domain is None else {"domain": list(domain)}
    settings |= {"type": "log"} if log else {"zero": False}
    return kind(f"{name}:Q", title=title, scale=alt.Scale(**settings), axis=alt.Axis(**axis))


x, y = partial(_axis, alt.X), partial(_axis, alt.Y)


@dataclass(frozen=True)
class Plot:
    """Layers over common axes. Rows have `name` and `y`; rows of bars and bands also `low` and `high`."""

    x: alt.X
    y_title: str
    looks: Looks
    """The looks of the names that are drawn."""
    tip: Sequence[alt.Tooltip]
    domain: Sequence[float] | None = None
    """Ends of the y axis; None: all that is drawn."""
    is_log: bool = False
    """True for a logarithmic y axis."""

    def lines(self, rows: Rows, detail: str = "name", **mark: Any) -> alt.Chart:
        """Return lines. detail: the column that tells lines of one name apart."""
        marks = self._encoded(chart(rows).mark_line(**mark), "y", "color", "strokeDash")
        return marks.encode(detail=f"{detail}:N")

    def points(self, rows: Rows, *channels: str, **mark: Any) -> alt.Chart:
        """Return markers."""
        return self._encoded(chart(rows).mark_point(clip=True, **mark), "y", *(channels or ("color", "shape")))

    def targets(self, rows: Rows) -> alt.Chart:
        """Return invisible circles, at which a pointer shows the values of a line."""
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
        return marks.encode(x=self.x, y=up, tooltip=list(self.tip), **coloured(self.looks, *channels))


def ends_of(estimate: Estimate) -> dict[str, float]:
    """Return the columns of a mean and its interval, NaN where one is unknown."""
    return {"y": finite(estimate.mean), "low": finite(estimate.low), "high": finite(estimate.high)}


def described(start: str, numbers: Mapping[str, str]) -> str:
    """Return the text alternative of a figure, which ends with a number or some of each name."""
    return f"{start} {'; '.join(f'{shorten(name, 40)} {text}' for name, text in numbers.items())}."


def tips(**columns: str) -> list[alt.Tooltip]:
    """Return tooltips: column -> format of its number, or "" for words; a title follows after a bar: `.4f|loss`."""
    tooltips = []
    for name, described in columns.items():
        shown, _, title = described.partition("|")
        kind = {"format": shown, "type": "quantitative"} if shown else {"type": "nominal"}
        tooltips.append(alt.Tooltip(field=name, title=title or name, **kind))  # pyright: ignore[reportArgumentType]
    return tooltips


def line_at(value: float, axis: Literal["x", "y"], dash: Sequence[float] = (1, 0), stroke: str = INK) -> alt.Chart:
    """Return a line across the figure, where an axis has a value."""
    rule = alt.Chart(alt.Data(values=[{}])).mark_rule(strokeDash=list(dash), stroke=stroke)
    return rule.encode(**{axis: alt.datum(value)})  # pyright: ignore[reportArgumentType]


def span(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the ends of an axis that shows all finite values with a margin; None without any."""
    finite_values = [value for value in values if math.isfinite(value)]
    if not finite_values:
        return None
    low, high = min(finite_values), max(finite_values)
    room = MARGIN * (high - low) or 0.01
    return low - room, high + room


def limits_of(estimates: Sequence[Estimate], marks: Sequence[float] = ()) -> tuple[float, float]:
    """Return the ends of an axis of means with intervals, of which long ones run off it so that means stay apart.

    marks: what else it must show; one of them or a mean is known.
    """
    means = [each.mean for each in estimates if each.mean is not None]
    low, high = min([*means, *marks]), max([*means, *marks])
    room = (high - low) or 0.01
    lowest = min([low, *(each.low for each in estimates if each.low is not None)])
    highest = max([high, *(each.high for each in estimates if each.high is not None)])
    return max(lowest, low - room) - 0.08 * room, min(highest, high + room) + 0.08 * room
