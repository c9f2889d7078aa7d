"""Draws the pictures of the README, of the home page and of the results from committed comparisons.

`python docs/readme_picture.py` writes into docs/pictures `widths_{wide,narrow}_{light,dark}.svg`, the widths of the
layers of a uniform model and of an x with the report's figure of differences at two sizes after twenty tokens per
parameter, and `during_training.svg`, the report's figure of differences during training at two sizes.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

from cited_numbers import AT_16, AT_39, D32, D64, E6, pooled, variant

from widthwise.evaluation.estimate import verdict
from widthwise.reports.charts import Figure, colours, styles
from widthwise.reports.experiment_figures import Effect, forest, gap_figures

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
IN_ALL_SIZES = ("hourglass", "virtual-2-3", "x-head-size")
PANEL_WIDTH, PANEL_HEIGHT = 350, 310
LAYER_HEIGHT = 26


def picture(is_dark: bool, is_wide: bool) -> str:
    """Return the SVG with three panels, side by side or below each other."""
    step_x, step_y = (PANEL_WIDTH, 0) if is_wide else (0, PANEL_HEIGHT)
    panels = [
        *shapes(colours(is_dark)),
        differences(AT_16, is_dark, step_x, step_y),
        differences(AT_39, is_dark, 2 * step_x, 2 * step_y),
    ]
    return document(PANEL_WIDTH + 2 * step_x, PANEL_HEIGHT + 2 * step_y, panels)


def during_training() -> str:
    """Return the SVG with two panels, on white."""
    width = 2 * PANEL_WIDTH
    background = f'<rect width="{width}" height="{PANEL_HEIGHT}" fill="white"/>'
    panels = [gaps(record, i * PANEL_WIDTH) for i, record in enumerate((D32, D64))]
    return document(width, PANEL_HEIGHT, [background, *panels])


def document(width: int, height: int, panels: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14">',
            *panels,
            "</svg>\n",
        ]
    )


def differences(records: Sequence[str], is_dark: bool, x: int, y: int) -> str:
    """Return the report's figure of differences from uniform over the seeds of some records, placed at x and y."""
    by_kind = {name: pooled(records, name) for name in KINDS}
    effects = [Effect(KINDS[name], estimate, verdict(estimate)) for name, estimate in by_kind.items()]
    title = f"Loss at 20 tokens a parameter, {size_of(records[0])}"
    axis = "nats above uniform: left of 0 is better"
    return placed(forest("differences", title, effects, [axis], n_decimals=3), is_dark, x, y)


def gaps(record: str, x: int) -> str:
    """Return the report's figure of differences from uniform during training, placed at x."""
    variants = [variant(record, name) for name in IN_ALL_SIZES]
    by_name = {KINDS[each.name]: each.model_copy(update={"name": KINDS[each.name]}) for each in variants}
    figure, _ = gap_figures("val_loss", list(by_name.values()), styles(by_name), "uniform")
    assert figure is not None
    title = f"Loss minus uniform's, {size_of(record)} parameters"
    return placed(replace(figure, title=title), False, x, 0)


def size_of(record: str) -> str:
    return f"{variant(record, 'uniform').cost.params['total'] / 1e6:.2g}M"


def placed(figure: Figure | None, is_dark: bool, x: int, y: int) -> str:
    """Return a figure of a report as an SVG placed at x and y."""
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
    (out / "during_training.svg").write_text(during_training())


if __name__ == "__main__":
    main()
