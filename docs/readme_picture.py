"""Draws the picture of the README and of the home page from committed comparisons.

`python docs/readme_picture.py` writes `widths_{wide,narrow}_{light,dark}.svg` into docs/pictures: the widths of the
layers of a uniform model and of an x, and the report's figure of differences at two sizes after twenty tokens per
parameter.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from cited_numbers import D32, D48, E6, at_d48, minus, variant

from widthwise.evaluation.estimate import verdict
from widthwise.records.estimate import Estimate
from widthwise.reports.charts import colours
from widthwise.reports.forest import Effect, forest

ROOT = Path(__file__).parents[1]
KINDS = {
    "hourglass": "hourglass",
    "virtual-2-3": "virtual width",
    "x": "x",
    "x-head-size": "x, equal heads",
    "found": "found shape",
    "cut": "shape of a cut",
}
"""Variant -> its name in the picture."""
PANEL_WIDTH, PANEL_HEIGHT = 350, 310
LAYER_HEIGHT = 26


def picture(is_dark: bool, is_wide: bool) -> str:
    """Return the SVG with three panels, side by side or below each other."""
    step_x, step_y = (PANEL_WIDTH, 0) if is_wide else (0, PANEL_HEIGHT)
    width, height = PANEL_WIDTH + 2 * step_x, PANEL_HEIGHT + 2 * step_y
    of_d32 = {name: minus(D32, name) for name in KINDS}
    of_d48 = {name: at_d48(name) for name in KINDS}
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14">',
            *shapes(colours(is_dark)),
            differences(f"Loss at 20 tokens a parameter, {size_of(D32)}", of_d32, is_dark, step_x, step_y),
            differences(f"Loss at 20 tokens a parameter, {size_of(D48)}", of_d48, is_dark, 2 * step_x, 2 * step_y),
            "</svg>\n",
        ]
    )


def size_of(record: str) -> str:
    return f"{variant(record, 'uniform').cost.params['total'] / 1e6:.2g}M"


def differences(title: str, by_kind: dict[str, Estimate], is_dark: bool, x: int, y: int) -> str:
    """Return the report's figure of differences from uniform, placed at x and y."""
    effects = [Effect(KINDS[name], estimate, verdict(estimate)) for name, estimate in by_kind.items()]
    figure = forest("differences", title, effects, ["nats above uniform: left of 0 is better"], n_decimals=3)
    assert figure is not None
    svg = figure.document("svg", is_dark).decode()
    # Ids are counted over all figures of a process, and the panels of a document share them.
    for i, name in enumerate(dict.fromkeys(re.findall(r"\bclip\d+", svg))):
        svg = re.sub(rf"\b{name}\b", f"clip-{x + y}-{i}", svg)
    return svg.replace("<svg ", f'<svg x="{x}" y="{y}" overflow="visible" ', 1)


def shapes(theme: dict[str, str]) -> Iterator[str]:
    """Yield a bar for each layer of both models, the first layer at the bottom, its width in it."""
    yield text(PANEL_WIDTH / 2, 14, "Width of each layer, at equal parameters", theme["ink"], bold=True)
    for name, centre, colour in (("uniform", 90, theme["muted"]), ("x", 250, theme["series-1"])):
        for layer, width in enumerate(variant(E6, name).cost.widths):
            length, y = width * 0.45, 220 - LAYER_HEIGHT * layer
            yield (
                f'<rect x="{centre - length / 2:g}" y="{y}" width="{length:g}" height="20" rx="3" fill="{colour}"'
                ' fill-opacity="0.35"/>'
            )
            yield text(centre, y + 15, str(width), theme["ink"], size=12)
        yield text(centre, 266, name, colour, bold=True)


def text(x: float, y: float, words: str, fill: str, size: int = 12, bold: bool = False) -> str:
    """Return a line of text with its middle at x."""
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:g}" y="{y:g}" text-anchor="middle"'
    return f'<text {place} font-size="{size}" fill="{fill}"{weight}>{escape(words)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    out: Path = parser.parse_args().out
    for theme in ("light", "dark"):
        for form in ("wide", "narrow"):
            path = out / f"widths_{form}_{theme}.svg"
            path.write_text(picture(theme == "dark", form == "wide"))


if __name__ == "__main__":
    main()
