"""Several sizes grown from one run per seed, and the same models trained alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from widthwise.config_io import checked_copy, mistakes_of
from widthwise.experiments.jobs import Run
from widthwise.experiments.matching import Point
from widthwise.experiments.plan import Plan, seeded
from widthwise.experiments.results import Results
from widthwise.mistakes import UserError, counted
from widthwise.recipe.recipe import saved_recipe
from widthwise.recipe.schedule import FlopBudget
from widthwise.records.outcome import SIZE, Alone, Family, FamilyControl, FamilyMember, OpenPoint, Outcome, Variant
from widthwise.records.record import finite
from widthwise.run_dir import RunDir
from widthwise.runs.grow import GrowOptions, Intention, carry_out, growth_intended, wanted_recipe
from widthwise.runs.trained import RunCheckpoint
from widthwise.training.state import inherited
from widthwise.yaml_io import recipe_name

# Groups of the points
GROWN = "grown"  # sizes grown from another run
ALONE = "alone"  # the same models trained from scratch


@dataclass(frozen=True, kw_only=True)
class FamilyPlan(Plan):
    """Sizes grown from one parent run per seed, each compared with the same model trained alone."""

    kind = "family"
    parents: Mapping[int, RunCheckpoint]
    """Dict from seed to the run from which all sizes of this seed are grown."""
    growth: Mapping[tuple[str, int], Intention]
    """Dict from name and seed of a grown run to its growth."""
    alone: Alone | None
    """Quantity in which a model trained alone equals the grown one; None trains no such models."""

    @property
    def order(self) -> list[tuple[str, int]]:
        points = sorted(self.points.values(), key=lambda point: point.group == ALONE)
        return [(point.name, seed) for point in points for seed in self.seeds]

    def baseline_of(self, group: str, values: Mapping[str, Any]) -> str | None:
        return self.alone and f"{values[SIZE]}-alone"

    @property
    def in_words(self) -> str:
        return f"{counted(len(self.order), 'run')}: {len(self.growth)} of them grown"


def plan_family(
    parents: Sequence[RunCheckpoint], recipes: Sequence[Path], overrides: Sequence[str], alone: Alone | None = None
) -> FamilyPlan:
    """Return the sizes that runs are grown into, named after their recipes.

    parents: runs that differ only in the seed. A size and its control use the seed of their parent. Raises UserError if
    a parent cannot be grown.
    """
    first = parents[0]
    for parent in parents[1:]:
        if seeded(parent.recipe, 0) != seeded(first.recipe, 0):
            raise UserError(
                f"--also: {parent.run.path} has another recipe than {first.run.path}; only the seed may differ"
            )
        if parent.step != first.step:
            raise UserError(f"--also: {parent.run.path} is at step {parent.step}, and {first.run.path} at {first.step}")
    by_seed = {parent.recipe.train.seed: parent for parent in parents}
    if len(by_seed) < len(parents):
        seeds = ", ".join(str(parent.recipe.train.seed) for parent in parents)
        raise UserError(f"--also: got runs with the seeds {seeds}; each must have a different seed")
    growth = dict[tuple[str, int], Intention]()
    points = list[Point]()
    for path in recipes:
        name = recipe_name(path)
        with mistakes_of(str(path)):
            wanted = [seeded(wanted_recipe(parent, path, overrides), seed) for seed, parent in by_seed.items()]
            for (seed, parent), recipe in zip(by_seed.items(), wanted):
                growth[name, seed] = growth_intended(parent, recipe, GrowOptions(seed=seed if len(parents) > 1 else 0))
            points.append(Point(name, growth[name, first.recipe.train.seed].recipe, GROWN, {SIZE: name}))
            if alone is not None:
                recipe = wanted[0]
                if alone == "flops":
                    remaining = recipe.training_flops - recipe.training_flops_until(first.step)
                    budget = FlopBudget(training_flops=first.spent.training_flops + remaining)
                    train = recipe.train.model_copy(update={"steps": recipe.steps_within(budget)})
                    recipe = checked_copy(recipe, "recipe", train=train)
                points.append(Point(f"{name}-alone", recipe, ALONE, {SIZE: name}))
    names = [point.name for point in points]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--to: two models have the name {name}, which names their folders; rename a recipe")
    return FamilyPlan(
        title=first.run.path.name,
        points=dict(zip(names, points)),
        seeds=tuple(by_seed),
        parents=by_seed,
        growth=growth,
        alone=alone,
    )


class FamilyResults(Results[FamilyPlan]):
    """The results and costs of a family; a run that fails stops it."""

    def begin(self) -> list[Run]:
        """Grow the missing runs, and begin. Raises UserError if a folder holds the run of another recipe."""
        for (name, seed), growth in self.plan.growth.items():
            run = self._run(self.plan.points[name], seed)
            if not RunDir(run.path).exists:
                carry_out(self.plan.parents[seed], replace(growth, recipe=run.recipe), run.path, self.observer)
                continue
            saved = saved_recipe(RunDir(run.path))
            if (saved.explicit_model, saved.train) != (run.recipe.explicit_model, run.recipe.train):
                raise UserError(f"{run.path}: holds a run of another recipe; choose another folder with --out")
        return super().begin()

    def _run(self, point: Point, seed: int) -> Run:
        run = super()._run(point, seed)
        return run if point.group == ALONE else replace(run, grown_at=self.plan.parents[seed].step)

    def _check_data(self, run: RunDir, first: RunDir) -> None:
        """Accept any data: the record of a grown run also names the data of its parent."""

    def _record(self, points: Sequence[Variant | OpenPoint], **fields: Any) -> Outcome:
        return super()._record(points, baseline_group=self.plan.alone and ALONE, family=self._family(), **fields)

    def _family(self) -> Family:
        """Return the members with their costs over all steps. The sums count shared steps once."""
        members = list[FamilyMember]()
        controls = list[FamilyControl]()
        shared = dict[int, float]()
        for name, point in self.plan.points.items():
            trained = self._trained[name]
            for seed, path, result in zip(self.plan.seeds, trained.paths, trained.results):
                costs = {"tokens": result.tokens, "flops": result.training_flops, "val_loss": result.val_loss}
                about = {"name": point.values[SIZE], "seed": seed, "run": str(self.folder / path), **costs}
                if point.group == ALONE:
                    controls.append(FamilyControl(**about))
                    continue
                recipe = saved_recipe(RunDir(self.folder / path))
                before = inherited(RunDir(self.folder / path).metrics())
                shared[seed] = before.training_flops
                per_token = recipe.train.flops_per_token(recipe.final_model, recipe.seq_len)
                member = FamilyMember(
                    **about,
                    params=recipe.final_model.cost().params,
                    start=before.step,
                    flops_own=finite(result.training_flops) - before.training_flops,
                    flops_alone=finite(result.tokens) * per_token,
                    val_bits_per_byte=result.val_bits_per_byte,
                )
                members.append(member)
        return Family(
            sources=[str(parent.run.path) for parent in self.plan.parents.values()],
            alone=self.plan.alone,
            shared_flops=sum(shared.values()),
            family_flops=sum(shared.values()) + sum(member.flops_own for member in members),
            flops_alone=sum(member.flops_alone for member in members),
            members=members,
            controls=controls,
        )
