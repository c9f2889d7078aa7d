"""A made-up discovery on disk: three stages of a profile that widens at its ends, with and beside its rivals."""

import json
from pathlib import Path
from typing import Any

from fake_comparison import write_comparison


def stage(step: int, widths: list[int]) -> dict[str, Any]:
    layers = [{"width": width, "attention": width / 2, "hidden": 4 * width} for width in widths]
    candidates = [{"layer": 1, "part": "hidden", "gain": 0.03, "cost": 1e4, "is_taken": True}]
    return {"step": step, "layers": layers, "cost": 1e5, "loss": 4.5 - step / 1e3, "candidates": candidates}


def write_discovery(folder: Path) -> Path:
    write_comparison(folder / "comparison", ("uniform", "discovered", "reversed"))
    stages = [stage(0, [48, 48, 48]), stage(30, [64, 48, 64]), stage(60, [96, 48, 80])]
    found = {"curve": {"widths": [1.5, 0.75, 1.25]}, "stages": stages, "tokens": 61_440, "flops": 3e12}
    discovery = {"title": "tiny", "method": "growing", "match": "params", "budget": 2e5, "seed": 3, "found": found}
    discovery |= {"command": "widthwise discover configs/tiny.yaml", "comparison": "comparison"}
    (folder / "discovery.json").write_text(json.dumps(discovery))
    return folder
