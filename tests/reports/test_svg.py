import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest
from matplotlib.axes import Axes

from widthwise.reports.svg import MUTED, SERIES, draw, styles, swatch


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
