"""Made-up searches on disk: a discovery with its stages and rivals, and others of whose profile a test decides."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fake_comparison import write_comparison
from page_section import change, write


def stage(step: int, widths: Sequence[int], **further: Any) -> dict[str, Any]:
    layers = [{"width": width, "attention": width / 2, "hidden": 4 * width} for width in widths]
    candidates = [
        {"layer": 1, "part": "hidden", "gain": 0.03, "gain_error": 0.004, "cost": 1e4, "is_taken": True},
        {"layer": 2, "part": "width", "gain": 0.01, "cost": 1e4, "is_taken": step == 30},
    ]
    sizes = {"layers": layers, "cost": 1e5, "loss": 4.5 - step / 1e3}
    return {"step": step, **sizes, "candidates": candidates, **further}


Profile = Mapping[str, Sequence[float]]
"""widths, attention and hidden -> points of the curve that was found."""


def write_search(folder: Path, curve: Profile, title: str = "tiny", **further: Any) -> Path:
    """One with nothing but what the common page of several reads. further: other fields of the record."""
    found = {"curve": curve, "stages": [], "tokens": 61_440, "flops": 3e12}
    discovery = {"title": title, "method": "growing", "match": "params", "budget": 2e5, "seed": 3, "found": found}
    return write(folder / "discovery.json", {**discovery, "command": "widthwise discover tiny.yaml", **further})


def write_searches(folder: Path) -> list[Path]:
    """Two on each of two texts; the first layer is the widest in all of them."""
    curves = [
        {"widths": [1.0, 0.5, low], "attention": [0.5, 1.0, high], "hidden": [high, 1.0, 0.5]}
        for low, high in ((0.6, 1.8), (0.7, 1.9), (0.8, 1.7), (0.75, 1.6))
    ]
    return [write_search(folder / f"{i}", curve, "python" if i < 2 else "books") for i, curve in enumerate(curves)]


def write_discovery(folder: Path) -> Path:
    """Three stages of a profile that widens at its ends."""
    write_comparison(folder / "comparison", ("uniform", "discovered", "reversed"))
    stages = [stage(0, [48, 48, 48]), stage(30, [64, 48, 64]), stage(60, [96, 48, 80], candidates=[])]
    write_search(
        folder,
        {"widths": [1.5, 0.75, 1.25]},
        comparison="comparison",
        how="grown where it gained most",
        options={"kind": "growing", "step": 0.125, "parts": ["width", "hidden"]},
        environment={"torch": "2.13.0", "cpu": "a CPU", "commit": "abc"},
    )
    return change(folder / "discovery.json", lambda data: data["found"].update(stages=stages))
