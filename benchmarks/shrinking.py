"""A trained model cut to a share of its FLOPs, healed, and compared with the same shapes trained from scratch.

python benchmarks/shrinking.py [--quick] [--out benchmarks/results/shrinking.json]

One parent a seed, of `configs/quickstart.yaml`. Every cut is healed on the same batches, which the parent has not seen;
`whole` is the parent trained on with them, and `distilled` cuts learn its predictions too. From scratch the shape is
trained for as many steps as parent and healing together. Losses are of the recipe's held-out
text, nats per token.
"""

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from widthwise.config_io import checked_copy
from widthwise.files import write_atomic
from widthwise.growth.choices import ShrinkOptions
from widthwise.model.config import ModelConfig
from widthwise.recipe.recipe import Recipe, parse_recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment
from widthwise.runs.shrink import shrink_run
from widthwise.runs.train import resume, train
from widthwise.yaml_io import read_recipe

PARENT_STEPS, HEALING_STEPS, SHARE, N_SEEDS = 200, 60, 0.7, 3
HEALING = ("optimizer.lr=0.002", "schedule.warmup_steps=5", "train.validate_every=1000")
CUTS = ("found", "x", "uniform")
DISTILLED = ("found", "uniform")
"""Cuts that are healed by the parent's predictions too."""
FROM_SCRATCH = ("found", "uniform")
MULTIPLE = 4
"""Of widths and hidden units, so that all shapes come near the budget."""


def loss_of(run: Path) -> float:
    result = RunDir(run).result()
    assert result is not None
    return float(result["val_loss"])


def parent_of(seed: int, n_steps: int, folder: Path) -> Path:
    overrides = [f"train.steps={n_steps}", f"train.seed={seed}", "train.validate_every=1000"]
    data = read_recipe("quickstart", overrides)
    del data["compare"]
    train(parse_recipe(data, "quickstart"), folder)
    return folder


def from_scratch(recipe: Recipe, n_steps: int, like: Recipe, folder: Path) -> float:
    """Train the recipe's model with the rates of the parent."""
    steps = like.train.model_copy(update={"steps": n_steps})
    train(checked_copy(like, "recipe", model=recipe.explicit_model, train=steps), folder)
    return loss_of(folder)


def measured(seed: int, folder: Path, n_parent: int, n_healing: int) -> dict[str, Any]:
    """Return the losses of everything that comes of one parent, by the name of its cut."""
    parent = parent_of(seed, n_parent, folder / "parent")
    like, found = saved_recipe(RunDir(parent)), {}
    healing = [*HEALING, f"train.steps={n_healing}", f"train.seed={1000 + seed}"]

    def cut(name: str, options: ShrinkOptions, to: ModelConfig | None = None, *overrides: str) -> Path:
        run = folder / name.replace(", ", "-").replace(" ", "-")
        record = shrink_run(parent, run, options, [*healing, *overrides], to=to)
        resume(run)
        flops = record.after.flops_per_token / record.before.flops_per_token
        found[name] = {"cut": record.loss_after, "healed": loss_of(run), "flops_ratio": flops}
        found[name]["params_ratio"] = record.after.params / record.before.params
        print(f"seed {seed} {name}: {found[name]}", flush=True)
        return run

    cut("whole", ShrinkOptions(flops=1.0))
    options = {name: ShrinkOptions(flops=SHARE, shape=name, multiple=MULTIPLE) for name in CUTS}
    runs = {name: cut(name, options[name]) for name in CUTS}
    smaller = saved_recipe(RunDir(runs["found"])).explicit_model
    cut("found, reversed", ShrinkOptions(), checked_copy(smaller, "model", layers=smaller.layers[::-1]))
    for name in DISTILLED:
        cut(f"{name}, distilled", options[name], None, f"train.distill.teacher={parent}")
    for name in FROM_SCRATCH:
        own = saved_recipe(RunDir(runs[name]))
        found[name]["scratch"] = from_scratch(own, n_parent + n_healing, like, folder / f"scratch-{name}")
        print(f"seed {seed} {name} from scratch: {found[name]['scratch']}", flush=True)
    return {"parent": loss_of(parent), "cuts": found}


def differences(seeds: list[dict[str, Any]], key: str, baseline: str) -> dict[str, Any]:
    """Return by cut the mean difference to a baseline over seeds, with its 95% interval."""
    found = {}
    for name, own in seeds[0]["cuts"].items():
        if name == baseline or key not in own or key not in seeds[0]["cuts"][baseline]:
            continue
        paired = np.array([each["cuts"][name][key] - each["cuts"][baseline][key] for each in seeds])
        half = (
            float(t.ppf(0.975, len(paired) - 1) * paired.std(ddof=1) / len(paired) ** 0.5) if len(paired) > 1 else None
        )
        mean = float(paired.mean())
        found[name] = {
            "mean": mean,
            "low": None if half is None else mean - half,
            "high": None if half is None else mean + half,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    n_parent, n_healing, n_seeds = (24, 24, 2) if given.quick else (PARENT_STEPS, HEALING_STEPS, N_SEEDS)
    with tempfile.TemporaryDirectory() as folder:
        seeds = [measured(seed, Path(folder) / str(seed), n_parent, n_healing) for seed in range(1, n_seeds + 1)]
    result = {
        "command": " ".join(["python", "benchmarks/shrinking.py", *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "share_of_flops": SHARE,
        "steps": {"parent": n_parent, "healing": n_healing},
        "seeds": seeds,
        "against_uniform": {key: differences(seeds, key, "uniform") for key in ("cut", "healed", "scratch")},
        "against_whole": {"healed": differences(seeds, "healed", "whole")},
    }
    print(json.dumps({key: result[key] for key in ("against_uniform", "against_whole")}, indent=1))
    if given.out is not None:
        write_atomic(given.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
