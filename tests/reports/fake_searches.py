"""Searches on disk whose profiles a test chooses, with nothing but what their common page reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from page_section import write

Profile = Mapping[str, Sequence[float]]
"""widths, attention and hidden -> points of the curve that was found."""


def discovery_data(curve: Profile, title: str = "tiny", **further: Any) -> dict[str, Any]:
    """further: other fields of the record."""
    found = {"curve": {name: list(points) for name, points in curve.items()}, "stages": []}
    found |= {"tokens": 61_440, "flops": 3e12}
    discovery = {"title": title, "method": "growing", "match": "params", "budget": 2e5, "seed": 3, "found": found}
    return {**discovery, "command": "widthwise discover configs/tiny.yaml --only-search", **further}


def write_search(folder: Path, curve: Profile, title: str = "tiny", **further: Any) -> Path:
    return write(folder / "discovery.json", discovery_data(curve, title, **further))


def write_searches(folder: Path) -> list[Path]:
    """Two on each of two texts; the first layer is the widest in all of them."""
    curves = [
        {"widths": [1.0, 0.5, low], "attention": [0.5, 1.0, high], "hidden": [high, 1.0, 0.5]}
        for low, high in ((0.6, 1.8), (0.7, 1.9), (0.8, 1.7), (0.75, 1.6))
    ]
    return [write_search(folder / f"{i}", curve, "python" if i < 2 else "books") for i, curve in enumerate(curves)]
