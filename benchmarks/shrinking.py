"""A trained model cut to a share of its FLOPs, healed, and compared with the same shapes trained from scratch.

python benchmarks/shrinking.py [--recipe quickstart --parent-steps 200 --healing-steps 60] [--out FILE] [--runs FOLDER]

One parent a seed. Every cut is healed on the same batches, which the parent has not seen, at half of its rate; `whole`
is the parent trained on with them, and a cut that is `distilled` learns the parent's predictions too. `reversed` has
the sizes of `found` from the last layer to the first, `permuted` in a drawn order. From scratch a shape is trained at
the parent's rate, for as many steps as healing took (`scratch_healing`) or parent and healing together (`scratch`);
it rises for at most a quarter of them.
Losses are of the recipe's held-out text, nats per token. With --runs, runs that are there already are not made again.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from widthwise.config_io import checked_copy
from widthwise.evaluation.estimate import seed_interval
from widthwise.files import write_atomic
from widthwise.growth.choices import ShrinkOptions
from widthwise.recipe.recipe import Recipe, parse_recipe, saved_recipe
from widthwise.records.resizing import Shrinking
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment
from widthwise.runs.shrink import shrink_run
from widthwise.runs.train import resume, train_or_resume
from widthwise.yaml_io import read_recipe

SHARE = 0.7
SHAPES = ("found", "x", "uniform")
CONTROLS = ("reversed", "permuted")
"""Sizes of `found` in another order of layers."""
SCRATCH = ("scratch_healing", "scratch")
MULTIPLE = {64: 4}
"""By d_model, of widths and hidden units, so that all shapes come near the budget; 8 elsewhere."""


class Work(NamedTuple):
    """One parent and the models that come of it."""

    recipe: str
    seed: int
    n_parent: int
    n_healing: int
    folder: Path

    @property
    def parent(self) -> Path:
        return self.folder / "parent"

    def parent_recipe(self, n_steps: int | None = None) -> Recipe:
        n_steps = n_steps or self.n_parent
        data = read_recipe(self.recipe, [f"train.steps={n_steps}", f"train.seed={self.seed}"])
        data["train"]["validate_every"] = 100_000
        data["schedule"]["warmup_steps"] = min(data["schedule"]["warmup_steps"], n_steps // 4)
        data.pop("compare", None)
        return parse_recipe(data, self.recipe)

    def cut(self, name: str, is_distilled: bool = False) -> dict[str, float]:
        """Cut the parent and heal what is left; return both losses and the costs as ratios."""
        run = self.folder / (f"{name}-distilled" if is_distilled else name)
        if not RunDir(run).exists:
            before = self.parent_recipe()
            overrides = [
                f"optimizer.lr={before.optimizer.lr / 2}",
                f"schedule.warmup_steps={min(5, self.n_healing // 4)}",
            ]
            overrides += [f"train.steps={self.n_healing}", f"train.seed={1000 + self.seed}"]
            overrides += [f"train.distill.teacher={self.parent}"] * is_distilled
            to, options = None, ShrinkOptions()
            if name in CONTROLS:
                found = saved_recipe(RunDir(self.folder / "found")).explicit_model
                layers = list(found.layers[::-1])
                if name == "permuted":
                    random.Random(self.seed).shuffle(layers)
                to = checked_copy(found, "model", layers=tuple(layers))
            else:
                share, shape = (1.0, "uniform") if name == "whole" else (SHARE, name)
                multiple = MULTIPLE.get(before.explicit_model.d_model, 8)
                options = ShrinkOptions.model_validate({"flops": share, "shape": shape, "multiple": multiple})
            shrink_run(self.parent, run, options, overrides, to=to)
        result = RunDir(run).result() or resume(run).to_data()
        record = Shrinking.read(run)
        flops = record.after.flops_per_token / record.before.flops_per_token
        ratios = {"flops_ratio": flops, "params_ratio": record.after.params / record.before.params}
        return {"cut": record.loss_after, "healed": float(result["val_loss"]), **ratios}

    def from_scratch(self, name: str, n_steps: int) -> float:
        """Train the shape of a cut with the settings of the parent and return its loss."""
        model = saved_recipe(RunDir(self.folder / name)).explicit_model
        recipe = checked_copy(self.parent_recipe(n_steps), "recipe", model=model)
        return train_or_resume(recipe, self.folder / f"{name}-scratch-{n_steps}").val_loss

    def begin(self) -> None:
        """Train the parent, and make the cut whose sizes others have."""
        train_or_resume(self.parent_recipe(), self.parent)
        self.cut("found")

    def made(self, name: str, key: str) -> float | dict[str, float]:
        """Return the losses of a cut, or that of its shape from scratch."""
        if key == "scratch":
            return self.from_scratch(name, self.n_parent + self.n_healing)
        if key == "scratch_healing":
            return self.from_scratch(name, self.n_healing)
        return self.cut(name.removesuffix(", distilled"), name.endswith(", distilled"))


def measured(works: list[Work], n_workers: int) -> Iterator[list[dict[str, Any]]]:
    """Yield what is known so far of each parent: the losses of all that comes of it, by the name of its cut."""
    cuts = ["whole", *SHAPES, *CONTROLS, *(f"{name}, distilled" for name in SHAPES)]
    seeds: list[dict[str, Any]] = []
    with ProcessPoolExecutor(n_workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(Work.begin, works))
        for work in works:
            result = RunDir(work.parent).result()
            assert result is not None
            seeds.append({"parent": result["val_loss"], "cuts": {name: {} for name in cuts}})
        of_scratch = [(key, names) for names in (SHAPES, CONTROLS) for key in SCRATCH]
        for key, names in (("cut", cuts), *of_scratch):
            jobs = [(work, name) for work in works for name in names]
            found = pool.map(Work.made, *zip(*((work, name, key) for work, name in jobs), strict=True))
            for (work, name), losses in zip(jobs, found, strict=True):
                seeds[works.index(work)]["cuts"][name] |= losses if key == "cut" else {key: losses}
                print(f"seed {work.seed} {name} {key}: {losses}", flush=True)
            yield seeds


def differences(seeds: list[dict[str, Any]], key: str, baseline: str, of: str | None = None) -> dict[str, Any]:
    """Return by cut the mean difference of a loss to that of a baseline over seeds, with its 95% interval.

    of: the loss of the baseline, if another one.
    """
    found, of = {}, of or key
    for name, own in seeds[0]["cuts"].items():
        if (name, key) == (baseline, of) or key not in own or of not in seeds[0]["cuts"][baseline]:
            continue
        paired = seed_interval([each["cuts"][name][key] - each["cuts"][baseline][of] for each in seeds])
        found[name] = {"mean": paired.mean, "low": paired.low, "high": paired.high}
    return found


def against_scratch(seeds: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Return by shape the difference of its cut, healed, to its training from scratch."""
    known = [name for name, own in seeds[0]["cuts"].items() if key in own]
    return {name: differences(seeds, "healed", name, key)[name] for name in known}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--parent-steps", type=int, default=200)
    parser.add_argument("--healing-steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.runs or Path(temporary)).resolve()
        steps = (given.parent_steps, given.healing_steps)
        works = [Work(given.recipe, seed, *steps, folder / str(seed)) for seed in range(1, given.seeds + 1)]
        for seeds in measured(works, given.workers):
            result = summary(works[0], seeds)
            if given.out is not None:
                write_atomic(given.out, json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("against_uniform", "against_whole", "healed_against_scratch")}))


def summary(work: Work, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the record: settings, all losses, and what follows from them."""
    return {
        "command": " ".join(["python", "benchmarks/shrinking.py", *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "recipe": work.recipe,
        "share_of_flops": SHARE,
        "steps": {"parent": work.n_parent, "healing": work.n_healing},
        "tokens_per_step": work.parent_recipe().tokens_per_step,
        "seeds": seeds,
        "against_uniform": {key: differences(seeds, key, "uniform") for key in ("cut", "healed", *SCRATCH)},
        "against_whole": {"healed": differences(seeds, "healed", "whole")},
        "healed_against_scratch": {key: against_scratch(seeds, key) for key in SCRATCH},
    }


if __name__ == "__main__":
    main()
