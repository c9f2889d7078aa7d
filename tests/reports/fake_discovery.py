"""A made-up discovery on disk: three stages of a profile that widens at its ends, with and beside its rivals.

In the last stage a layer is added in the middle, which has more blocks.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_comparison import write_comparison


def stage(step: int, widths: Sequence[int], blocks: Sequence[int], **further: Any) -> dict[str, Any]:
    layers = [
        {"width": width, "attention": width / 2, "hidden": 4 * width, "blocks": n} for width, n in zip(widths, blocks)
    ]
    candidates = [
        {"layer": 1, "part": "hidden", "gain": 0.03, "gain_error": 0.004, "cost": 1e4, "is_taken": True},
        {"layer": 2, "part": "blocks", "gain": 0.01, "cost": 1e4, "is_taken": step == 30},
        {"layer": 2, "part": "layer", "gain": 0.02, "cost": 3e4, "is_taken": step == 30, "is_gap": True},
        {"layer": 3, "part": "layer", "gain": 0.01, "gain_error": 0.0, "cost": 3e4, "is_gap": True},
    ]
    sizes = {"layers": layers, "cost": 1e5, "loss": 4.5 - step / 1e3}
    return {"step": step, **sizes, "candidates": candidates, **further}


def write_discovery(folder: Path) -> Path:
    write_comparison(folder / "comparison", ("uniform", "discovered", "reversed"))
    stages = [
        stage(0, [48, 48, 48], [2, 2, 2]),
        stage(30, [64, 48, 64], [2, 2, 2]),
        stage(60, [96, 48, 48, 80], [2, 2, 2, 3], sources=[0, 1, None, 2], candidates=[]),
    ]
    curve = {"widths": [1.5, 0.75, 0.75, 1.25], "blocks": [1.0, 1.0, 1.0, 1.5]}
    found = {"curve": curve, "n_layers": 4, "stages": stages, "tokens": 61_440, "flops": 3e12}
    discovery = {"title": "tiny", "method": "growing", "match": "params", "budget": 2e5, "seed": 3, "found": found}
    discovery |= {"command": "widthwise discover configs/tiny.yaml", "comparison": "comparison"}
    discovery |= {
        "how": "grown where it gained most",
        "options": {"kind": "growing", "step": 0.125, "parts": ["width", "hidden"]},
        "environment": {"torch": "2.13.0", "cpu": "a CPU", "commit": "abc"},
    }
    (folder / "discovery.json").write_text(json.dumps(discovery))
    return folder
