import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import pytest
from matplotlib.axes import Axes

from widthwise.reports.page import svg
from widthwise.reports.page.svg import (
    HEAT,
    INK,
    MUTED,
    SERIES,
    Facet,
    as_files,
    draw,
    draw_facets,
    line_legend,
    styles,
    swatch,
)


def hostile(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=SERIES[0], marker="o")
    axes.set_title(r"$\frac$ <script>&amp;</script> ]]> -->")
    axes.set_yticks([0, 1], [r"$\undefined{$", "_hidden"])


def test_text_stays_text_and_is_not_read_as_mathematics_or_markup() -> None:
    root = ElementTree.fromstring(draw("key", 'label "<&>"', (3, 2), hostile))
    texts = ["".join(element.itertext()) for element in root.iter("text")]
    assert r"$\frac$ <script>&amp;</script> ]]> -->" in texts
    assert r"$\undefined{$" in texts
    assert "_hidden" in texts
    assert root.attrib["aria-label"] == 'label "<&>"'
    assert {element.tag for element in root.iter()} <= {"svg", "g", "defs", "path", "use", "text", "clipPath", "rect"}


def test_control_characters_of_a_label_do_not_break_the_figure() -> None:
    with as_files("svg") as files:
        svg = draw("a", "a", (3, 2), lambda axes: axes.set_title("red \x1b[31m \x9b2J"))
    assert "red \N{REPLACEMENT CHARACTER}[31m \N{REPLACEMENT CHARACTER}2J" in svg
    ElementTree.fromstring(files.contents["a"])


def test_colours_follow_the_page_and_ids_are_told_apart() -> None:
    first, second = (str(draw(key, "label", (3, 2), hostile)) for key in ("a", "b"))
    assert "var(--series-1)" in first
    assert SERIES[0] not in first
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (first, second)]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', first)) <= {(i, "") for i in ids[0]} | {
        ("", i) for i in ids[0]
    }


def test_settings_of_the_user_neither_matter_nor_change() -> None:
    plain = draw("a", "label", (3, 2), hostile)
    with matplotlib.rc_context({"font.size": 30, "text.usetex": True, "lines.linewidth": 9}):
        assert draw("a", "label", (3, 2), hostile) == plain
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.parametrize("n_variants", [1, 7, 28])
def test_no_two_variants_look_alike(n_variants: int) -> None:
    chosen = styles([f"v{i}" for i in range(n_variants)] + ["base"], "base")
    assert len(set(chosen.values())) == n_variants + 1
    assert chosen["base"].colour == MUTED
    assert len({str(swatch(style)) for style in chosen.values()}) == n_variants + 1


def test_a_file_has_the_legend_and_the_colours_that_the_page_keeps_outside() -> None:
    legend = line_legend(styles(["first", "$second$"]))
    with as_files("svg") as files:
        inline = draw("key", "label", (3, 2), hostile, legend)
    assert inline == draw("key", "label", (3, 2), hostile, legend)
    root = ElementTree.fromstring(files.contents["key"])
    texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"first", "$second$", r"$\frac$ <script>&amp;</script> ]]> -->"} <= set(texts)
    assert "$second$" not in inline
    assert SERIES[0].encode() in files.contents["key"]
    assert b"var(" not in files.contents["key"]


def test_a_pdf_file_is_a_pdf_and_the_same_each_time() -> None:
    contents = []
    for _ in range(2):
        with as_files("pdf") as files:
            draw("key", "label", (3, 2), hostile)
        contents.append(files.contents["key"])
    assert contents[0].startswith(b"%PDF-")
    assert contents[0] == contents[1]


def test_outside_of_it_no_files_are_kept() -> None:
    with as_files("svg") as files:
        pass
    draw("key", "label", (3, 2), hostile)
    assert files.contents == {}


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_ink_can_be_read_on_every_cell_of_a_heat_map_in_light_and_in_dark() -> None:
    page = (Path(svg.__file__).parent / "template.html").read_text()
    light, dark, *_ = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    for block in (light, dark):
        values = dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        for i in range(1, len(HEAT) + 1):
            bright, dim = sorted((luminance(values["ink"]), luminance(values[f"heat-{i}"])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5
    values = dict(re.findall(r"--([\w-]+): (#\w{6});", light))
    assert [values[f"heat-{i}"] for i in range(1, len(HEAT) + 1)] == list(HEAT)
    assert values["ink"] == INK


@pytest.mark.parametrize("n_facets", [1, 3, 5])
def test_facets_are_small_figures_on_a_page_and_one_figure_in_a_file(n_facets: int) -> None:
    facets = [Facet(f"panel {i}\nof {n_facets}", f"label {i}", hostile) for i in range(n_facets)]
    with as_files("svg") as files:
        shown = draw_facets("key", facets, (3, 2))
    roots = [ElementTree.fromstring(each) for each in shown]
    assert [root.attrib["aria-label"] for root in roots] == [f"label {i}" for i in range(n_facets)]
    assert {root.attrib["viewBox"] for root in roots} == {"0 0 216 144"}
    assert list(files.contents) == ["key"]
    document = ElementTree.fromstring(files.contents["key"])
    texts = ["".join(each.itertext()).strip() for each in document.iter() if each.tag.endswith("text")]
    for i in range(n_facets):
        assert texts.count(f"panel {i}") == 1
    assert texts.count(f"of {n_facets}") == n_facets
    n_columns = min(n_facets, 4)
    assert document.attrib["viewBox"] == f"0 0 {216 * n_columns} {144 * math.ceil(n_facets / n_columns)}"
