"""Going on with a run by other settings: more steps, other intervals of records and checkpoints."""

from collections.abc import Sequence

from widthwise.config_io import UserError, checked_copy, differences, parse, to_data
from widthwise.recipe.recipe import Recipe
from widthwise.records.recipe_changes import MAY_CONTINUE_WITH, Continuation
from widthwise.run_dir import RunDir
from widthwise.training import checkpoint_folder
from widthwise.yaml_io import apply_overrides


def with_overrides(run: RunDir, recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run with other settings. Raises UserError for one that would make it another run."""
    data = to_data(recipe)
    apply_overrides(data, overrides)
    changed = parse(Recipe, data, f"{run.path}: {' '.join(overrides)}")
    for path, *_ in differences(to_data(recipe), to_data(changed)):
        if not f"{path}.".startswith(tuple(f"{allowed}." for allowed in MAY_CONTINUE_WITH)):
            allowed = ", ".join(MAY_CONTINUE_WITH)
            raise UserError(
                f"{path}: cannot change in a run that was begun; allowed: {allowed}; "
                f"`widthwise grow {run.path} KEY=VALUE --out NEW` begins another run where this one stands"
            )
    return changed


def take_over(run: RunDir, before: Recipe, recipe: Recipe) -> None:
    """Writes down with what a run goes on, and opens one that has finished for the steps it gets. For its holder.

    before: the recipe until now. Raises UserError for fewer steps than are made, and where nothing is left to do.
    """
    result = run.result()
    reached = _steps_of_newest_checkpoint(run) if result is None else result.steps or before.train.steps
    old, new = to_data(before.train), to_data(recipe.train)
    pairs = {f"train.{key}": (old[key], new[key]) for key in new if old[key] != new[key]}
    is_longer = recipe.train.steps > reached
    if pairs and (recipe.train.steps < reached or (result is not None and not is_longer)):
        has = "has finished" if result is not None else "has made"
        least = "more than" if result is not None else "at least"
        raise UserError(
            f"train.steps: is {recipe.train.steps}; {run.path} {has} {reached} steps, so that it must be {least} that"
        )
    if pairs:
        before_after = [{path: pair[i] for path, pair in pairs.items()} for i in range(2)]
        run.continue_with(Continuation(after_step=reached, before=before_after[0], after=before_after[1]))
    if result is not None and is_longer:
        run.set_result_aside(reached)


def last_continuation(run: RunDir, recipe: Recipe) -> str | None:
    """What a reader of the result should know of the last time that settings were changed; None: they never were."""
    if not (known := run.continuations()):
        return None
    last = known[-1]
    words = f"resumed after step {last.after_step} with {last.words}"
    if "train.steps" not in last.after or last.after_step == 0:
        return words
    shorter = checked_copy(
        recipe, "recipe", train=checked_copy(recipe.train, "train", steps=last.before["train.steps"])
    )
    rates = [each.optimizer.lr * each.lr_factor(last.after_step + i) for i, each in enumerate((shorter, recipe))]
    return (
        f"{words}; by the schedule of {recipe.train.steps:,} steps the rate goes from {rates[0]:.3g} to {rates[1]:.3g}"
    )


def _steps_of_newest_checkpoint(run: RunDir) -> int:
    paths = checkpoint_folder.checkpoint_paths(run.checkpoints)
    return checkpoint_folder.step_of(paths[0]) if paths else 0
