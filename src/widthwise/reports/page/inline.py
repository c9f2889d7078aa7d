"""A matplotlib document as an element of an HTML page: small, in the page's colours, and with its numbers in it.

Where artists are named (`named`), the element says what its axes show, and the path of each line is written in the
numbers that the line shows, which a transform brings to their place. So `explore.js` reads values where everyone else
sees a line, and enlarges a part of the figure by another transform.
"""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from widthwise.reports.page.formats import clean
from widthwise.reports.page.ticks import TickFormatter

_FRACTION = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_TEXT_STYLE = re.compile(r"font-(size|family):[^;]*;? ?")
"""The page has one size and one kind of letters for all its figures."""


def named(name: str, *details: str) -> str:
    """The label of an artist that a reader can point at and switch off. name: as the legend has it."""
    return "\n".join(
        f" {clean(line)}" for line in (name, *details) if line
    )  # one that begins with _ would count as unnamed


def identified(axes: Axes) -> dict[str, Artist]:
    """Gives every named artist an id that the document will have. Returns id -> artist."""
    found: dict[str, Artist] = {}
    for artist in axes.get_children():
        label = artist.get_label()
        if isinstance(label, str) and label.startswith(" "):
            artist.set_gid(f"series-{len(found)}")
            found[f"series-{len(found)}"] = artist
    return found


def inline(
    document: str, key: str, label: str, axes: Axes, artists: Mapping[str, Artist], css: Mapping[str, str]
) -> Markup:
    """No prolog, no style sheet, ids unique on the page.

    key: of the figure. label: its text alternative. artists: those of `identified`. css: colour -> CSS variable.
    """
    root = ElementTree.fromstring(document)
    view_box = root.attrib["viewBox"]
    frame = {name: _axis(axes, name) for name in ("x", "y")}
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(name): value for name, value in element.attrib.items()}
        if artists and element.tag == "g":
            _tell(element, artists, frame)
    for element in root.iter():
        _tidy(element, key, css)
    root.attrib = {"viewBox": view_box, "role": "img", "aria-label": label, "class": "plot"}
    root.attrib["style"] = f"--width: {float(view_box.split()[2]):.0f}"
    if artists:
        root.attrib["data-axes"] = json.dumps(frame, ensure_ascii=False)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _axis(axes: Axes, name: str) -> dict[str, Any]:
    """What an axis says, from where to where it goes in the picture, and the numbers there.

    They are counted in a unit, a power of ten, because browsers draw with few digits; of a logarithmic axis they are
    decimal logarithms.
    """
    axis: Axis = getattr(axes, f"{name}axis")
    figure = axes.get_figure(root=True)
    assert figure is not None
    size = figure.get_size_inches() * 72
    box = axes.get_position()
    ends = (box.x0 * size[0], box.x1 * size[0]) if name == "x" else ((1 - box.y0) * size[1], (1 - box.y1) * size[1])
    is_log = axis.get_scale() == "log"
    low, high = axis.get_view_interval()
    unit = 1.0 if is_log else 10.0 ** math.floor(math.log10(max(abs(low), abs(high))))
    said: dict[str, Any] = {"title": axis.get_label_text(), "log": is_log, "unit": unit}
    said |= dict(zip(("low", "high"), _counted(np.array([low, high]), said).tolist()))
    said |= {"start": round(ends[0], 2), "end": round(ends[1], 2)}
    if not isinstance(axis.get_major_formatter(), TickFormatter):
        labels = [tick.get_text() for tick in axis.get_ticklabels()]
        said["labels"] = list(zip(_counted(np.array(axis.get_ticklocs()), said).tolist(), labels))
    return said


def _counted(values: NDArray[np.float64], axis: Mapping[str, Any]) -> NDArray[np.float64]:
    if not axis["log"]:
        return values.astype(float) / axis["unit"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(values)


def _tell(group: ElementTree.Element, artists: Mapping[str, Artist], frame: Mapping[str, Any]) -> None:
    """Says what a group is: a tick, a note in the picture, or an artist with its name and numbers."""
    identity = group.attrib.get("id", "")
    kind = identity.partition("_")[0]
    if kind in ("xtick", "ytick"):
        group.set("class", kind)
    elif kind == "axes":
        for child in group:
            if child.attrib.get("id", "").startswith("text_"):
                child.set("class", "note")
    for path in [child for child in group if "clip-path" in child.attrib and kind not in ("xtick", "ytick")]:
        # What is clipped moves within what clips it.
        group.set("clip-path", path.attrib.pop("clip-path"))
    if identity not in artists:
        return
    artist = artists[identity]
    name, *details = (line.strip() for line in str(artist.get_label()).split("\n"))
    group.set("data-name", name)
    if details:
        group.set("data-detail", "\n".join(details))
    if isinstance(artist, Line2D):
        _write_numbers(group, artist, frame)
    elif isinstance(artist, Patch):
        group.set("class", "area")


def _write_numbers(group: ElementTree.Element, line: Line2D, frame: Mapping[str, Any]) -> None:
    path = next((child for child in group if child.tag.endswith("path")), None)
    if path is None:
        path = ElementTree.SubElement(group, "path", {"style": "fill: none"})
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    places = np.column_stack([_counted(x, frame["x"]), _counted(y, frame["y"])])
    path.set("d", _path(f"{x:.9g} {y:.7g}" if np.isfinite(x + y) else None for x, y in places))
    path.set("class", "numbers")
    (a, e), (d, f) = (_onto(frame[name]) for name in ("x", "y"))
    path.set("transform", f"matrix({a:.10g} 0 0 {d:.10g} {e:.10g} {f:.10g})")


def _path(points: Iterable[str | None]) -> str:
    """Lines between neighbours; None interrupts."""
    runs = " ".join(point or "M" for point in points).split("M")
    return "".join(f"M{run.strip()}" for run in runs if run.strip())


def _onto(axis: Mapping[str, Any]) -> tuple[float, float]:
    """Factor and offset from numbers to the picture."""
    factor = (axis["end"] - axis["start"]) / (axis["high"] - axis["low"])
    return factor, axis["start"] - factor * axis["low"]


def _tidy(element: ElementTree.Element, key: str, css: Mapping[str, str]) -> None:
    """Unique ids, CSS colours, and nothing that nobody sees, such as thousandths of a point."""
    attributes = element.attrib
    if element.tag == "g":
        attributes.pop("id", None)
    if element.tag != "text":
        element.text = None
    element.tail = None
    for name, value in attributes.items():
        if name == "id":
            attributes[name] = f"{key}-{value}"
        elif name == "href":
            attributes[name] = f"#{key}-{value.removeprefix('#')}"
        elif name == "style":
            attributes[name] = _coloured(value, css)
        elif name in ("d", "x", "y") and attributes.get("class") != "numbers":
            attributes[name] = " ".join(_FRACTION.sub(_rounded, value).split())
        elif name == "clip-path":
            attributes[name] = value.replace("url(#", f"url(#{key}-")
    if element.tag == "text":
        attributes["style"] = _TEXT_STYLE.sub("", attributes.get("style", ""))
        attributes["transform"] = _FRACTION.sub(_rounded, attributes.get("transform", ""))
        if attributes["transform"].startswith("rotate(-0 ") or not attributes["transform"]:
            del attributes["transform"]
    for child in [child for child in element if child.tag in ("g", "defs") and not len(child)]:
        element.remove(child)


def _coloured(style: str, css: Mapping[str, str]) -> str:
    for colour, variable in css.items():
        style = style.replace(colour, variable)
    return style


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _local(name: str) -> str:
    return name.rpartition("}")[2]
