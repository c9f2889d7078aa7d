"""A made-up discovery on disk: three stages of a profile that widens at its ends, with and beside its rivals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_comparison import write_comparison
from page_section import write


def stage(step: int, widths: Sequence[int], **further: Any) -> dict[str, Any]:
    layers = [{"width": width, "attention": width / 2, "hidden": 4 * width} for width in widths]
    candidates = [
        {"layer": 1, "part": "hidden", "gain": 0.03, "gain_error": 0.004, "cost": 1e4, "is_taken": True},
        {"layer": 2, "part": "width", "gain": 0.01, "cost": 1e4, "is_taken": step == 30},
    ]
    sizes = {"layers": layers, "cost": 1e5, "loss": 4.5 - step / 1e3}
    return {"step": step, **sizes, "candidates": candidates, **further}


def write_discovery(folder: Path) -> Path:
    write_comparison(folder / "comparison", ("uniform", "discovered", "reversed"))
    stages = [stage(0, [48, 48, 48]), stage(30, [64, 48, 64]), stage(60, [96, 48, 80], candidates=[])]
    curve = {"widths": [1.5, 0.75, 1.25]}
    found = {"curve": curve, "stages": stages, "tokens": 61_440, "flops": 3e12}
    discovery = {"title": "tiny", "method": "growing", "match": "params", "budget": 2e5, "seed": 3, "found": found}
    discovery |= {"command": "widthwise discover configs/tiny.yaml", "comparison": "comparison"}
    discovery |= {
        "how": "grown where it gained most",
        "options": {"kind": "growing", "step": 0.125, "parts": ["width", "hidden"]},
        "environment": {"torch": "2.13.0", "cpu": "a CPU", "commit": "abc"},
    }
    return write(folder / "discovery.json", discovery)
