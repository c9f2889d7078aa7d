"""Draws the picture of the README and of the home page from a committed comparison.

`python docs/readme_picture.py` writes `widths_{wide,narrow}_{light,dark}.svg` into docs/pictures: the widths of the
layers of a uniform model and of an x, beside (or, narrow, above) the differences in loss of all kinds of width.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from widthwise.records.outcome import Outcome, Variant
from widthwise.records.record import finite

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "evidence_6m"
ROWS = {
    "virtual-2-3": "virtual width",
    "grown-at-0.7m": "discovered at 0.66M",
    "grown": "discovered at 6.3M",
    "dynamic": "width per token",
    "x": "x",
    "hourglass": "hourglass",
}
"""Variant -> its name in the picture, from top to bottom."""
THEMES = {
    "light": {
        "ink": "#1b1d20",
        "muted": "#5c636b",
        "grid": "#d0d4d8",
        "x": "#0a6ebd",
        "good": "#00694f",
        "bad": "#9c2f1c",
    },
    "dark": {
        "ink": "#e8e8e4",
        "muted": "#a0a7ae",
        "grid": "#444a50",
        "x": "#62b2f4",
        "good": "#6fd6b4",
        "bad": "#f5a08c",
    },
}
"""The colours of the reports, on a transparent ground."""
PANEL_WIDTH, PANEL_HEIGHT = 400, 300
LOW, HIGH = -0.25, 0.3
"""Ends of the axis of differences, in nats."""


def picture(found: Outcome, theme: Mapping[str, str], columns: int) -> str:
    """Return the SVG with both panels, in one or two columns."""
    width, height = PANEL_WIDTH * columns, PANEL_HEIGHT * 2 // columns
    beside = (PANEL_WIDTH, 0) if columns == 2 else (0, PANEL_HEIGHT)
    variants = {each.name: each for each in found.variants}
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14">',
            *shapes(variants["uniform"], variants["x"], theme),
            f'<g transform="translate({beside[0]} {beside[1]})">',
            *forest([(title, variants[name]) for name, title in ROWS.items()], theme),
            "</g>",
            "</svg>\n",
        ]
    )


def shapes(uniform: Variant, x: Variant, theme: Mapping[str, str]) -> Iterator[str]:
    """Yield a bar for each layer of both models, the first layer at the bottom, its width in it or beside it."""
    yield text(PANEL_WIDTH / 2, 20, "Width of each layer, at equal parameters", theme["ink"], bold=True)
    for model, centre, colour in ((uniform, 110, theme["muted"]), (x, 290, theme["x"])):
        for layer, width in enumerate(model.cost.widths):
            length, y = width * 0.5, 228 - 26 * layer
            yield (
                f'<rect x="{centre - length / 2:g}" y="{y}" width="{length:g}" height="20" rx="3" fill="{colour}"'
                ' fill-opacity="0.35"/>'
            )
            yield text(centre, y + 15, str(width), theme["ink"], size=12)
        yield text(centre, 275, model.name, colour, bold=True)


def forest(rows: Sequence[tuple[str, Variant]], theme: Mapping[str, str]) -> Iterator[str]:
    """Yield a point and a 95% interval for each variant: held-out loss minus the uniform model's."""
    left, right, top, bottom = 166, PANEL_WIDTH - 16, 50, 240

    def at(nats: float) -> float:
        return round(left + (nats - LOW) / (HIGH - LOW) * (right - left), 1)

    yield text(PANEL_WIDTH / 2, 20, "Loss minus the uniform model's, in nats", theme["ink"], bold=True)
    yield text(at(0) - 8, 42, "better", theme["good"], anchor="end")
    yield text(at(0) + 8, 42, "worse", theme["bad"], anchor="start")
    for tick in (-0.2, -0.1, 0.0, 0.1, 0.2, 0.3):
        stroke = theme["ink"] if tick == 0 else theme["grid"]
        yield f'<line x1="{at(tick)}" y1="{top}" x2="{at(tick)}" y2="{bottom}" stroke="{stroke}"/>'
        yield text(at(tick), bottom + 17, f"{tick:+.1f}" if tick else "0", theme["muted"], size=12)
    for row, (title, variant) in enumerate(rows):
        y = top + (row + 0.5) * (bottom - top) / len(rows)
        assert variant.difference is not None, variant.name
        found = variant.difference
        mean, low, high = at(finite(found.mean)), at(finite(found.low)), at(finite(found.high))
        colour = {"better": theme["good"], "worse": theme["bad"]}.get(variant.verdict or "", theme["muted"])
        yield text(left - 8, y + 5, title, theme["ink"], anchor="end")
        yield f'<line x1="{low}" y1="{y:g}" x2="{high}" y2="{y:g}" stroke="{colour}" stroke-width="3"/>'
        yield f'<circle cx="{mean}" cy="{y:g}" r="5" fill="{colour}"/>'
    size, seeds = rows[0][1].cost.params["total"] / 1e6, len(rows[0][1].runs)
    yield text(PANEL_WIDTH / 2, 282, f"{size:.1f}M parameters, {seeds} seeds, 95% intervals", theme["muted"], size=12)


def text(
    x: float, y: float, words: str, fill: str, *, anchor: str = "middle", size: int = 14, bold: bool = False
) -> str:
    """Return a line of text; the anchor is the part of it that is at x."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{weight}>'
        f"{escape(words)}</text>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    out: Path = parser.parse_args().out
    found = Outcome.read(RESULT)
    for theme, colours in THEMES.items():
        for form, columns in (("wide", 2), ("narrow", 1)):
            (out / f"widths_{form}_{theme}.svg").write_text(picture(found, colours, columns))


if __name__ == "__main__":
    main()
