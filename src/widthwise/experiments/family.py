"""Several sizes branched from one run, or one for each seed: each grown from its newest checkpoint and trained to the
end of its recipe, beside controls that train the same models alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from widthwise.config_io import UserError, checked_copy
from widthwise.experiments.equal_loss import LossCurve, validations_of
from widthwise.experiments.experiment import seeded
from widthwise.experiments.jobs import Jobs, Run, process_group
from widthwise.experiments.outcome import SeedRuns, load_result, variant_of
from widthwise.experiments.scheduler import Schedule, train_all
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

    name: str
    run: RunDir
    intention: Intention
    source: RunCheckpoint
    control: Run | None = None
    """The same model, trained alone."""

    @property
    def is_begun(self) -> bool:
        return self.run.exists

    @property
    def seed(self) -> int:
        return self.source.recipe.train.seed

    def check(self) -> None:
        """Raises UserError if the folder holds the run of another recipe."""
        if self.is_begun:
            saved, recipe = saved_recipe(self.run), self.intention.recipe
            if (saved.explicit_model, saved.train) != (recipe.explicit_model, recipe.train):
                raise UserError(f"{self.run.path}: holds a run of another recipe; choose another folder with --out")

    @property
    def inherited(self) -> Spent:
        """Tokens and compute spent before it branched off."""
        return inherited(self.run.metrics())

    @property
    def recipes(self) -> list[Recipe]:
        """The recipes of its runs."""
        return [self.intention.recipe, *([] if self.control is None else [self.control.recipe])]

    @property
    def runs(self) -> list[RunDir]:
        """Its run and that of its control."""
        return [self.run, *([] if self.control is None else [RunDir(self.control.path)])]


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
            try:
                branches.append(_branch(each, name, path, overrides, folder, bool(further), alone))
            except UserError as error:
                raise UserError(f"{path}: {error}") from None
            branches[-1].check()
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
        raise UserError(f"--also: {other.run.path} stands at step {other.step}, and {source.run.path} at {source.step}")


def _branch(
    source: RunCheckpoint,
    name: str,
    path: Path,
    overrides: Sequence[str],
    folder: Path,
    has_seeds: bool,
    alone: Alone | None,
) -> Branch:
    """Return the branch of one recipe from one run. has_seeds: True if there are other seeds, which names tell."""
    seed, ending = source.recipe.train.seed, ""
    wanted = wanted_recipe(source, path, overrides)
    if has_seeds:
        wanted, ending = seeded(wanted, seed), f"-seed{seed}"
    intention = growth_intended(source, wanted, GrowOptions(seed=seed if has_seeds else 0))
    control = None
    if alone is not None:
        recipe = wanted if alone == "tokens" else _of_equal_flops(wanted, source)
        control = Run(folder / f"{name}-alone{ending}", recipe, name)
    return Branch(name, RunDir(folder / f"{name}{ending}"), intention, source, control)


def _of_equal_flops(wanted: Recipe, source: RunCheckpoint) -> Recipe:
    """Return the recipe of a run from scratch that spends the FLOPs of the source and of the steps after it."""
    follows = wanted.training_flops - wanted.training_flops_until(source.step)
    budget = FlopBudget(training_flops=source.spent.training_flops + follows)
    return checked_copy(wanted, "recipe", train=wanted.train.model_copy(update={"steps": budget.steps(wanted)}))


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
    for branch in branches:
        if not branch.is_begun:
            carry_out(branch.source, branch.intention, branch.run.path, observer)
    runs = [Run(each.run.path, each.intention.recipe, each.name, each.source.step) for each in branches]
    runs += [each.control for each in branches if each.control is not None]
    planned = [
        PlannedRun(path=run.name, variant=run.name, seed=run.recipe.train.seed, n_steps=run.recipe.train.steps)
        for run in runs
    ]
    title = f"family of {branches[0].source.run.path}"
    PlannedRuns(title=title, command=command or command_line(), runs=planned).write(folder)
    with process_group(branches[0].intention.recipe) as group:
        train_all(Schedule(runs, observer), group, jobs or Jobs(), "family")
    family = summarise(branches, {run.name: load_result(RunDir(run.path)) for run in runs}, alone, command)
    family.write(folder)
    return family


def summarise(
    branches: Sequence[Branch], results: Mapping[str, RunResult], alone: Alone | None, command: str | None
) -> Outcome:
    """Return the record of a family. results: by name of the folder.

    FLOPs are training FLOPs over all steps. `flops_alone` counts runs of the same models from scratch over the same
    tokens; the shared steps are counted once.
    """
    members = [_member(branch, results[branch.run.path.name]) for branch in branches]
    curves = {run.path.name: LossCurve.of(run.metrics()) for branch in branches for run in branch.runs}

    def read(runs: Sequence[RunDir]) -> SeedRuns:
        names = [run.path.name for run in runs]
        return SeedRuns(names, [results[name] for name in names], [curves[name] for name in names])

    points = []
    for name in dict.fromkeys(branch.name for branch in branches):
        own = [branch for branch in branches if branch.name == name]
        controls = [RunDir(branch.control.path) for branch in own if branch.control is not None]
        grown, control = read([branch.run for branch in own]), read(controls) if controls else None
        points.append(variant_of(name, grown, control).with_changes(group="grown", values={SIZE: name}))
        if control is not None:
            found = variant_of(f"{name}-alone", control, control)
            points.append(found.with_changes(group="alone", values={SIZE: name}))
    validations = None if alone is None else validations_of(curves.values())
    sources = {str(branch.source.run.path): branch for branch in branches}
    shared = sum(branch.inherited.training_flops for branch in sources.values())
    return Outcome(
        title=f"family of {next(iter(sources))}",
        command=command or command_line(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        confidence=CONFIDENCE,
        seeds=list(dict.fromkeys(branch.seed for branch in branches)),
        baseline_group=None if alone is None else "alone",
        environment=branches[0].run.environment(),
        validations=validations,
        points=points,
        family=Family(
            sources=list(sources),
            alone=alone,
            shared_flops=shared,
            family_flops=shared + sum(member.flops_own for member in members),
            flops_alone=sum(member.flops_alone for member in members),
            members=members,
            controls=[_control(each.control, results) for each in branches if each.control is not None],
        ),
    )


def _member(branch: Branch, result: RunResult) -> FamilyMember:
    recipe, before = saved_recipe(branch.run), branch.inherited
    per_token = recipe.train.flops_per_token(recipe.final_model, recipe.seq_len)
    return FamilyMember(
        name=branch.name,
        seed=branch.seed,
        run=str(branch.run.path),
        params=recipe.final_model.cost().params,
        start=before.step,
        tokens=result.tokens,
        flops_own=finite(result.training_flops) - before.training_flops,
        flops=result.training_flops,
        flops_alone=finite(result.tokens) * per_token,
        val_loss=result.val_loss,
        val_bits_per_byte=result.val_bits_per_byte,
    )


def _control(control: Run, results: Mapping[str, RunResult]) -> FamilyControl:
    result = results[control.name]
    return FamilyControl(
        name=control.point,
        seed=control.recipe.train.seed,
        run=str(control.path),
        tokens=result.tokens,
        flops=result.training_flops,
        val_loss=result.val_loss,
    )
