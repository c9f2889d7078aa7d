"""Draws the picture of the README and of the home page from committed comparisons.

`python docs/readme_picture.py` writes `widths_{wide,narrow}_{light,dark}.svg` into docs/pictures: the widths of the
layers of a uniform model and of an x, and right of them (or, narrow, below) how much each kind of width changes the
loss early in training and at its end.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from widthwise.records.outcome import Outcome, Variant
from widthwise.records.record import finite

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EARLY, TRAINED = "evidence_6m", "compute_optimal_d32"
"""Records of both moments: 0.16 tokens for each of 6.3M parameters, and 20 for each of 0.16M."""
ROWS = {
    "hourglass": ("hourglass", EARLY, "hourglass"),
    "virtual width": ("virtual-2-3", EARLY, "virtual-2-3"),
    "x": ("x", EARLY, "x"),
    "found shape": ("found", "found_6m", "mean"),
    "width per token": ("dynamic", EARLY, "dynamic"),
    "shape of a cut": ("cut", None, None),
}
"""Name in the picture -> its variant in TRAINED, and the record and the variant of the early difference."""
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


def picture(theme: Mapping[str, str], columns: int) -> str:
    """Return the SVG with both panels, in one or two columns."""
    width, height = PANEL_WIDTH * columns, PANEL_HEIGHT * 2 // columns
    second = (PANEL_WIDTH, 0) if columns == 2 else (0, PANEL_HEIGHT)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14">',
            *shapes(variant(EARLY, "uniform"), variant(EARLY, "x"), theme),
            f'<g transform="translate({second[0]} {second[1]})">',
            *forest(theme),
            "</g>",
            "</svg>\n",
        ]
    )


def variant(record: str, name: str) -> Variant:
    """Return a variant of a committed comparison."""
    return next(variant for variant in Outcome.read(RESULTS / record).variants if variant.name == name)


def shapes(uniform: Variant, x: Variant, theme: Mapping[str, str]) -> Iterator[str]:
    """Yield a bar for each layer of both models, the first layer at the bottom, its width in it."""
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


def forest(theme: Mapping[str, str]) -> Iterator[str]:
    """Yield two points with 95% intervals for each row: held-out loss minus the uniform model's, early and trained."""
    left, right, top, bottom = 166, PANEL_WIDTH - 16, 50, 236

    def at(nats: float) -> float:
        return round(left + (nats - LOW) / (HIGH - LOW) * (right - left), 1)

    def interval(shown: Variant, y: float, is_trained: bool) -> Iterator[str]:
        difference = shown.difference
        assert difference is not None, shown.name
        mean, low, high = (at(finite(value)) for value in (difference.mean, difference.low, difference.high))
        colour = {"better": theme["good"], "worse": theme["bad"]}.get(shown.verdict or "", theme["muted"])
        stroke = f'stroke="{colour}" stroke-width="{3 if is_trained else 1}"'
        yield f'<line x1="{low}" y1="{y:g}" x2="{high}" y2="{y:g}" {stroke}/>'
        yield dot(mean, y, colour, is_trained)

    def dot(x: float, y: float, colour: str, is_trained: bool) -> str:
        fill = f'fill="{colour}"' if is_trained else f'fill="none" stroke="{colour}" stroke-width="1.5"'
        return f'<circle cx="{x:g}" cy="{y:g}" r="{4.5 if is_trained else 3.5}" {fill}/>'

    yield text(PANEL_WIDTH / 2, 20, "Loss minus the uniform model's, in nats", theme["ink"], bold=True)
    yield text(at(0) - 8, 42, "better", theme["good"], anchor="end")
    yield text(at(0) + 8, 42, "worse", theme["bad"], anchor="start")
    for tick in (-0.2, -0.1, 0.0, 0.1, 0.2, 0.3):
        stroke = theme["ink"] if tick == 0 else theme["grid"]
        yield f'<line x1="{at(tick)}" y1="{top}" x2="{at(tick)}" y2="{bottom}" stroke="{stroke}"/>'
        yield text(at(tick), bottom + 16, f"{tick:+.1f}" if tick else "0", theme["muted"], size=12)
    for row, (title, (trained, record, early)) in enumerate(ROWS.items()):
        y = top + (row + 0.5) * (bottom - top) / len(ROWS)
        yield text(left - 8, y + 5, title, theme["ink"], anchor="end")
        yield from interval(variant(TRAINED, trained), y + 5, True)
        if record is not None and early is not None:
            yield from interval(variant(record, early), y - 6, False)
    for y, record, words in ((272, TRAINED, "20 tokens a parameter"), (290, EARLY, "early in training")):
        uniform = variant(record, "uniform")
        size, seeds = uniform.cost.params["total"] / 1e6, len(uniform.runs)
        yield dot(48, y - 4, theme["muted"], record == TRAINED)
        caption = f"{words}: {size:.2g}M parameters, {seeds} seeds"
        yield text(58, y, caption, theme["muted"], anchor="start", size=12)


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
    for theme, colours in THEMES.items():
        for form, columns in (("wide", 2), ("narrow", 1)):
            (out / f"widths_{form}_{theme}.svg").write_text(picture(colours, columns))


if __name__ == "__main__":
    main()
