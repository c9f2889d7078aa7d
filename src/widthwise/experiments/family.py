"""Several sizes branched from one run: each grown from its newest checkpoint and trained to the end of its recipe."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from widthwise.bundled import recipe_name
from widthwise.config_io import UserError
from widthwise.experiments.agenda import Agenda, Work
from widthwise.experiments.jobs import Jobs, do_all
from widthwise.experiments.runs import arrived
from widthwise.files import write_atomic
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir
from widthwise.runs.conversion import Intention, carry_out
from widthwise.runs.grow import GrowOptions, growth_intended, wanted_recipe
from widthwise.runs.source import Source
from widthwise.runs.train import resume
from widthwise.training.compute import Spent, inherited
from widthwise.training.observer import Observer
from widthwise.training.stopping import interruption_adds


@dataclass(frozen=True)
class Branch:
    """One size of a family."""

    name: str
    run: RunDir
    intention: Intention

    @property
    def is_begun(self) -> bool:
        return self.run.exists

    def check(self) -> None:
        """Raises UserError if the folder holds the run of another recipe."""
        if self.is_begun:
            saved, recipe = saved_recipe(self.run), self.intention.recipe
            if (saved.explicit_model, saved.train) != (recipe.explicit_model, recipe.train):
                raise UserError(f"{self.run.path}: holds a run of another recipe; choose another folder with --out")

    @property
    def inherited(self) -> Spent:
        """Tokens and compute already spent when it branched off."""
        return inherited(self.run.metrics())


def plan_family(source: Source, recipes: Sequence[Path], overrides: Sequence[str], folder: Path) -> list[Branch]:
    """The branches of a run, named after their recipes. Raises UserError if one cannot be grown."""
    names = [recipe_name(path) for path in recipes]
    if len(set(names)) < len(names):
        raise UserError(f"--to: got {', '.join(map(str, recipes))}; two have the same name, which names their folders")
    branches = []
    for name, path in zip(names, recipes):
        try:
            intention = growth_intended(source, wanted_recipe(source, path, overrides), GrowOptions())
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        branches.append(Branch(name, RunDir(folder / name), intention))
        branches[-1].check()
    return branches


def run_family(
    source: Source, branches: Sequence[Branch], folder: Path, observer: Observer, jobs: Jobs | None = None
) -> dict[str, Any]:
    """Grows the branches that have not begun, and trains those that have not finished; writes family.json.

    jobs: how many are trained at a time. Returns the family.
    """
    works = {branch.name: Work.of(branch.intention.recipe, source.step) for branch in branches}
    agenda = Agenda(observer, works)
    for branch in branches:
        if not branch.is_begun:
            carry_out(source, branch.intention, branch.run.path, observer)

    def observing(name: str, waiting: list[str], shown: Observer) -> AbstractContextManager[Observer]:
        unfinished = [each.name for each in branches if each.name in waiting and not each.run.has_result]
        return agenda.at_work_on(name, unfinished, observer=shown)

    with interruption_adds("the same family command goes on with the family"):
        tasks = {branch.name: partial(resume, branch.run.path) for branch in branches}
        do_all(tasks, jobs or Jobs(), observer, observing)
    results = [arrived(branch.run) for branch in branches]
    family = summarise(source, branches, results)
    write_atomic(folder / "family.json", json.dumps(family, indent=2) + "\n")
    return family


def summarise(source: Source, branches: Sequence[Branch], results: Sequence[RunResult]) -> dict[str, Any]:
    """The family as data. results: one per branch.

    FLOPs are training FLOPs over all steps. `flops_alone` is what a run of the same model would take from scratch over
    as many tokens; the shared steps are counted once.
    """
    members = [_member(branch, result) for branch, result in zip(branches, results)]
    shared = max((branch.inherited.training_flops for branch in branches), default=0.0)
    return {
        "source": str(source.run.path),
        "shared_flops": shared,
        "family_flops": shared + sum(member["flops_own"] for member in members),
        "flops_alone": sum(member["flops_alone"] for member in members),
        "members": members,
    }


def _member(branch: Branch, result: RunResult) -> dict[str, Any]:
    recipe, before = saved_recipe(branch.run), branch.inherited
    per_token = recipe.final_model.cost().training_flops(recipe.seq_len) * recipe.train.n_passes
    return {
        "name": branch.name,
        "run": str(branch.run.path),
        "params": recipe.final_model.cost().params,
        "start": before.step,
        "tokens": result.tokens,
        "flops_own": finite(result.training_flops) - before.training_flops,
        "flops": result.training_flops,
        "flops_alone": finite(result.tokens) * per_token,
        "val_loss": result.val_loss,
        "val_bits_per_byte": result.val_bits_per_byte,
    }
