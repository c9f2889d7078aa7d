"""What a deep stream of slots does to gradients: their norms at every step, and the gain of the product of all carries.

The recipe has the command of SWEEP.

widthwise analyze SWEEP/runs/NAME ... --out ANALYSIS
python benchmarks/deep_carries.py SWEEP ANALYSIS --out benchmarks/results/compare_manifold_deep_rates/carries.json
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from harness import environment

from widthwise.files import write_atomic
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.analysis import Analysis
from widthwise.run_dir import RunDir

SPIKE = 4.0
"""A norm so many times as large as the median is a spike."""


def gradient_norms(run: RunDir) -> dict[str, Any]:
    """Return the median and the largest norm after the warmup, their ratio, and the number of spikes."""
    warmup_steps = saved_recipe(run).schedule.warmup_steps
    steps = [record for record in run.metrics() if record["event"] == "train" and record["step"] > warmup_steps]
    norms = [step["grad_norm"] for step in steps]
    median = statistics.median(norms)
    n_spikes = sum(norm > SPIKE * median for norm in norms)
    return {"n_steps": len(norms), "median": median, "largest_ratio": max(norms) / median, "n_spikes": n_spikes}


def product_gains(analysis: Analysis) -> dict[str, dict[str, float]]:
    """Return for each model the spectral norm of the product of the carries up to a site, mean over tokens."""
    return {
        model.name: {site.name: site.spectrum.product_norm for site in model.virtual_width.sites}
        for model in analysis.models
        if model.virtual_width is not None
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("analysis", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    runs = {run.name: gradient_norms(RunDir(run)) for run in sorted((arguments.sweep / "runs").iterdir())}
    gains = product_gains(Analysis.read(arguments.analysis))
    report = {"environment": environment(), "spike": SPIKE, "gradient_norms": runs, "product_gains": gains}
    write_atomic(arguments.out, json.dumps(report, indent=1) + "\n")
    for name, norms in runs.items():
        print(f"{name}: largest {norms['largest_ratio']:.1f} times the median; spikes: {norms['n_spikes']}")
    for name, by_site in gains.items():
        print(f"{name}: the product of all carries has a norm of {list(by_site.values())[-1]:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
