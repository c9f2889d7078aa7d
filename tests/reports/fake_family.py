"""A made-up family on disk: one size, grown and trained alone with two seeds."""

import json
from pathlib import Path

from fake_comparison import SHAPES, write_comparison, write_run
from page_section import write

SIZE = {"size": "wide"}


def write_family(folder: Path) -> Path:
    write_comparison(folder)
    data = json.loads((folder / "outcome.json").read_text())
    alone, grown, _ = data.pop("points")
    data |= {"title": "family of runs/small", "baseline": None, "matched": None, "baseline_group": "alone"}
    data["points"] = [
        {**point, "name": name, "runs": [f"{name}-seed{seed}" for seed in (1, 2)], "group": group, "values": SIZE}
        for name, group, point in (("wide", "grown", grown), ("wide-alone", "alone", alone))
    ]
    for point in data["points"]:
        for seed, run in enumerate(point["runs"], start=1):
            write_run(folder / run, point["name"], seed, SHAPES["x"], 0.0)
    members = [
        {"name": "wide", "seed": seed, "run": f"runs/wide-seed{seed}", "params": 10, "start": 1, "tokens": 136}
        | {"flops_own": 3.0, "flops": 5.0, "flops_alone": 6.0, "val_loss": 2.5, "val_bits_per_byte": 1.5}
        for seed in (1, 2)
    ]
    controls = [{"name": "wide", "seed": seed, "run": f"runs/wide-alone-seed{seed}"} for seed in (1, 2)]
    costs = {"shared_flops": 2.0, "family_flops": 5.0, "flops_alone": 6.0}
    data["family"] = {"sources": ["runs/small"], "alone": "tokens", **costs, "members": members, "controls": controls}
    return write(folder / "outcome.json", data)
