"""Several sizes branched from one run, or one for each seed: each grown from its newest checkpoint and trained to the
end of its recipe, and controls that train the same models alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from widthwise.config_io import UserError, checked_copy, mistakes_of
from widthwise.experiments.equal_loss import validations_of
from widthwise.experiments.jobs import Jobs, Run, process_group
from widthwise.experiments.outcome import SeedRuns, variant_of
from widthwise.experiments.plan import seeded
from widthwise.experiments.scheduler import RunPolicy, Schedule, train_all
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.recipe.schedule import FlopBudget
from widthwise.records.estimate import CONFIDENCE
from widthwise.records.outcome import SIZE, Alone, Family, FamilyControl, FamilyMember, Outcome
from widthwise.records.record import finite
from widthwise.records.run import PlannedRun, PlannedRuns, RunResult
from widthwise.run_dir import RunDir
from widthwise.runs.conversion import Intention, carry_out
from widthwise.runs.environment import command_line
from widthwise.runs.grow import GrowOptions, growth_intended, wanted_recipe
from widthwise.runs.trained import RunCheckpoint
from widthwise.training.observer import Observer
from widthwise.training.state import Spent, inherited
from widthwise.yaml_io import recipe_name


@dataclass(frozen=True)
class Branch:
    """One size of a family, grown from the run of one seed."""

    run: Run
    intention: Intention
    source: RunCheckpoint
    control: Run | None
    """The same model, trained alone."""

    @property
    def name(self) -> str:
        return self.run.point

    @property
    def seed(self) -> int:
        return self.source.recipe.train.seed

    @property
    def runs(self) -> list[Run]:
        """Its run and its control's."""
        return [self.run, *([] if self.control is None else [self.control])]

    @property
    def inherited(self) -> Spent:
        """Tokens and compute spent before it branched off."""
        return inherited(RunDir(self.run.path).metrics())


def plan_family(
    source: RunCheckpoint,
    recipes: Sequence[Path],
    overrides: Sequence[str],
    folder: Path,
    further: Sequence[RunCheckpoint] = (),
    alone: Alone | None = None,
) -> list[Branch]:
    """Return the branches of a run and of further runs of other seeds, named after their recipes.

    With several runs, each branch and its control have the seed of their run. alone: the quantity in which a control
    equals its branch; None for no controls. Raises UserError if one cannot be grown.
    """
    names = [recipe_name(path) for path in recipes]
    if len(set(names)) < len(names):
        raise UserError(f"--to: got {', '.join(map(str, recipes))}; two have the same name, which names their folders")
    for other in further:
        _check_alike(source, other)
    seeds = [each.recipe.train.seed for each in (source, *further)]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--also: got runs of the seeds {', '.join(map(str, seeds))}; each must have another")
    branches = []
    for name, path in zip(names, recipes):
        for each in (source, *further):
            with mistakes_of(str(path)):
                branches.append(_branch(each, name, wanted_recipe(each, path, overrides), folder, bool(further), alone))
    paths = [run.path for each in branches for run in each.runs]
    if twice := next((path for path in paths if paths.count(path) > 1), None):  # of a model and a control
        raise UserError(f"--to: two runs would have the folder {twice}; give a recipe another name")
    return branches


def _check_alike(source: RunCheckpoint, other: RunCheckpoint) -> None:
    """Raises UserError where two runs differ in more than their seed."""
    first, second = (each.recipe.model_copy(update={"train": seeded(each.recipe, 0).train}) for each in (source, other))
    if first != second:
        raise UserError(f"--also: {other.run.path} has another recipe than {source.run.path}; only the seed may differ")
    if source.step != other.step:
        raise UserError(f"--also: {other.run.path} is at step {other.step}, and {source.run.path} at {source.step}")


def _branch(
    source: RunCheckpoint, name: str, wanted: Recipe, folder: Path, has_seeds: bool, alone: Alone | None
) -> Branch:
    """Return the branch of one recipe from one run. has_seeds: True if there are other seeds, which names tell.

    Raises UserError if its folder holds the run of another recipe.
    """
    seed = source.recipe.train.seed
    ending = f"-seed{seed}" if has_seeds else ""
    wanted = seeded(wanted, seed) if has_seeds else wanted
    intention = growth_intended(source, wanted, GrowOptions(seed=seed if has_seeds else 0))
    run, control = Run(folder / f"{name}{ending}", intention.recipe, name, source.step), None
    if RunDir(run.path).exists:
        saved = saved_recipe(RunDir(run.path))
        if (saved.explicit_model, saved.train) != (run.recipe.explicit_model, run.recipe.train):
            raise UserError(f"{run.path}: holds a run of another recipe; choose another folder with --out")
    if alone is not None:
        recipe = wanted if alone == "tokens" else _of_equal_flops(wanted, source)
        control = Run(folder / f"{name}-alone{ending}", recipe, name)
    return Branch(run, intention, source, control)


def _of_equal_flops(wanted: Recipe, source: RunCheckpoint) -> Recipe:
    """Return the recipe of a run from scratch that spends the FLOPs of the source and of the steps after it."""
    follows = wanted.training_flops - wanted.training_flops_until(source.step)
    budget = FlopBudget(training_flops=source.spent.training_flops + follows)
    return checked_copy(wanted, "recipe", train=wanted.train.model_copy(update={"steps": wanted.steps_within(budget)}))


def run_family(
    branches: Sequence[Branch],
    folder: Path,
    observer: Observer,
    jobs: Jobs | None = None,
    alone: Alone | None = None,
    command: str | None = None,
) -> Outcome:
    """Grow the branches that have not begun, train those that have not finished, and write outcome.json.

    jobs: number of runs trained at a time; alone: as in `plan_family`. Returns the family.
    """
    command, title = command or command_line(), folder.resolve().name
    for branch in branches:
        if not RunDir(branch.run.path).exists:
            carry_out(branch.source, branch.intention, branch.run.path, observer)
    runs = [each.run for each in branches] + [each.control for each in branches if each.control is not None]
    planned = [
        PlannedRun(path=run.name, variant=run.name, seed=run.recipe.train.seed, n_steps=run.recipe.train.steps)
        for run in runs
    ]
    PlannedRuns(title=title, command=command, runs=planned).write(folder)
    with process_group(runs[0].recipe) as group:
        train_all(Schedule(runs, observer, RunPolicy()), group, jobs or Jobs(), "family")
    points, trained = [], list[SeedRuns]()
    for name in dict.fromkeys(branch.name for branch in branches):
        own = [branch for branch in branches if branch.name == name]
        controls = [branch.control.name for branch in own if branch.control is not None]
        grown = SeedRuns.read(folder, [branch.run.name for branch in own])
        control = SeedRuns.read(folder, controls) if controls else None
        trained += [grown] if control is None else [grown, control]
        points.append(variant_of(name, grown, control).with_changes(group="grown", values={SIZE: name}))
        if control is not None:
            found = variant_of(f"{name}-alone", control, control)
            points.append(found.with_changes(group="alone", values={SIZE: name}))
    family = Outcome(
        title=title,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        confidence=CONFIDENCE,
        seeds=list(dict.fromkeys(branch.seed for branch in branches)),
        baseline_group=None if alone is None else "alone",
        environment=RunDir(branches[0].run.path).environment(),
        validations=None if alone is None else validations_of(curve for each in trained for curve in each.curves),
        points=points,
        family=_family(branches, {path: run for each in trained for path, run in zip(each.paths, each.results)}, alone),
    )
    family.write(folder)
    return family


def _family(branches: Sequence[Branch], results: Mapping[str, RunResult], alone: Alone | None) -> Family:
    """Return the members with their costs. results: by name of the folder.

    FLOPs are training FLOPs over all steps. `flops_alone` counts runs of the same models from scratch over the same
    tokens; the shared steps are counted once.
    """
    members, controls = list[FamilyMember](), list[FamilyControl]()
    for branch in branches:
        recipe, before = saved_recipe(RunDir(branch.run.path)), branch.inherited
        per_token = recipe.train.flops_per_token(recipe.final_model, recipe.seq_len)
        own, *others = (
            {
                "name": run.point,
                "seed": branch.seed,
                "run": str(run.path),
                "tokens": results[run.name].tokens,
                "flops": results[run.name].training_flops,
                "val_loss": results[run.name].val_loss,
            }
            for run in branch.runs
        )
        member = FamilyMember(
            **own,
            params=recipe.final_model.cost().params,
            start=before.step,
            flops_own=finite(own["flops"]) - before.training_flops,
            flops_alone=finite(own["tokens"]) * per_token,
            val_bits_per_byte=results[branch.run.name].val_bits_per_byte,
        )
        members.append(member)
        controls += [FamilyControl(**other) for other in others]
    sources = {str(branch.source.run.path): branch for branch in branches}
    shared = sum(branch.inherited.training_flops for branch in sources.values())
    return Family(
        sources=list(sources),
        alone=alone,
        shared_flops=shared,
        family_flops=shared + sum(member.flops_own for member in members),
        flops_alone=sum(member.flops_alone for member in members),
        members=members,
        controls=controls,
    )
