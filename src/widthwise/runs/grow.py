"""The larger model of a run: grown into the model of another recipe, or by changes to its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from widthwise.config_io import UserError, checked_copy, mistakes_at, to_data
from widthwise.growth.choices import SAME_SIZES, GrowOptions, NewSizes
from widthwise.growth.correspondence import align
from widthwise.growth.describe import kept_constants
from widthwise.growth.plan import GrowthPlan, plan_growth, with_constants_of
from widthwise.model.config import ModelConfig
from widthwise.model.residual import ResidualTemplate
from widthwise.recipe.growth_events import Rewarmup
from widthwise.recipe.larger import larger_model
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.schedule import FlopBudget
from widthwise.runs.conversion import Intention, carry_out, check_can_go_on, pending
from widthwise.runs.trained import RunCheckpoint
from widthwise.shape.template import ModelTemplate
from widthwise.training.observer import Observer
from widthwise.yaml_io import apply_overrides, read_recipe

OF_ALL_LAYERS = {"d_model"} | (ModelTemplate.model_fields.keys() - ModelConfig.model_fields.keys())
"""Keys that describe all layers at once; a model with every layer written out has none of them."""
DEFAULT = GrowOptions()


def wanted_recipe(
    source: RunCheckpoint, to: Path | None, overrides: Sequence[str], sizes: NewSizes = SAME_SIZES
) -> Recipe:
    """The recipe of a file, or of the run at its checkpoint with other sizes; with changes `a.b=c`.

    A budget of training FLOPs in it is for the grown run, with what the run has spent. Raises UserError.
    """
    data, where = _wanted_data(source, to, overrides, sizes)
    recipe, budget = parse_recipe(data, where), FlopBudget.of(data)
    if budget is None:
        return recipe
    steps = recipe.steps_within(budget, source.step, source.spent.training_flops)
    return checked_copy(recipe, "recipe", train=recipe.train.model_copy(update={"steps": steps}))


def _wanted_data(
    source: RunCheckpoint, to: Path | None, overrides: Sequence[str], sizes: NewSizes
) -> tuple[dict[str, Any], str]:
    """The data of that recipe, and where they are from."""
    if to is not None:
        if sizes != SAME_SIZES:
            named = next(name for name, size in vars(sizes).items() if size)
            raise UserError(f"--to: conflicts with --{named.replace('_', '-')}; a recipe has sizes of its own")
        return read_recipe(to, overrides), str(to)
    if sizes == SAME_SIZES and not overrides:
        raise UserError(
            "grow: no target given; give --to RECIPE, sizes such as --d-ff 96, or changes such as "
            "model.layers.0.ffn.d_ff=96"
        )
    model, where = larger_model(source.model, sizes), f"{source.run.path}/config.yaml"
    data = to_data(source.recipe) | {"model": to_data(model), "growth": ()}  # checked with the changes
    for override in overrides:  # the run's model has each layer written out
        key = override.partition("=")[0].strip()
        section, name = [*key.split("."), ""][:2]
        if section == "model" and name in OF_ALL_LAYERS:
            raise UserError(
                f"{key}: {source.run.path} has every layer written out, and not the rule for all; give the recipe that "
                f"it was trained from, as --to RECIPE '{override}', name layers, as model.layers.0.ffn.d_ff=96, or use "
                "--d-model, --d-ff, --add-layers, ..."
            )
    residual = [each for each in overrides if each.startswith(("model.residual=", "model.residual."))]
    if not any(each.startswith("model.residual=") for each in residual):
        residual = []
    apply_overrides(data, [each for each in overrides if each not in residual])
    if residual:
        data["model"]["residual"] = _residual(residual, parse_recipe(data, where).explicit_model)
    return data, where


def _residual(overrides: Sequence[str], model: ModelConfig) -> dict[str, Any]:
    """Another residual, given as in a recipe, with the sizes that it has in layers of these widths."""
    data: dict[str, Any] = {"model": {}}
    apply_overrides(data, overrides)
    with mistakes_at("model.residual"):
        template = TypeAdapter(ResidualTemplate).validate_python(data["model"]["residual"])
        return to_data(template.at_widths(model.d_model, model.widths))


def grow_run(
    path: Path | str,
    out: Path | str | None,
    to: Path | str | None = None,
    sizes: NewSizes = SAME_SIZES,
    overrides: Sequence[str] = (),
    options: GrowOptions = DEFAULT,
    step: int | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Grow the model of a run to the model of the recipe `to`, or to other sizes, as a run to continue.

    out: folder of the new run; None: nothing is written, and no weights are read. step: of the checkpoint; the newest
    good one where not given. Returns what grew, with its certificate. Raises UserError where the function cannot be
    preserved, and where `out` is not free.
    """
    source = RunCheckpoint.of(path, step)
    recipe = wanted_recipe(source, None if to is None else Path(to), overrides, sizes)
    intention = growth_intended(source, recipe, options)
    return intention.record() if out is None else carry_out(source, intention, out, observer)


def growth_intended(source: RunCheckpoint, recipe: Recipe, options: GrowOptions) -> Intention:
    """Plan the growth of a run's model to a recipe's. Raises UserError if it is impossible."""
    old, wanted = source.model, recipe.explicit_model
    plan = plan_growth(old, wanted, align(old, wanted, options.layers))
    constants, changes = tuple(kept_constants(plan, wanted)), ()
    if options.allow_change and constants:
        plan, changes, constants = with_constants_of(wanted, plan), tuple(c.change for c in constants), ()
    if recipe.train.steps < source.step:
        raise UserError(
            f"train.steps: got {recipe.train.steps}; {source.run.path} has made {source.step} steps already; it must "
            "not be less"
        )
    for index, event in enumerate(recipe.growth):
        if event.at_step <= source.step:
            raise UserError(
                f"growth.{index}: comes before step {source.step}, which {source.run.path} has reached already"
            )
    check_can_go_on(source)
    if source.recipe.rewarmup is not None:
        source.recipe.rewarmup.check_next(source.step, str(source.run.path))
    rewarmup = _rewarmup(source, recipe, plan, options)
    if rewarmup is not None and recipe.growth:
        rewarmup.check_next(recipe.growth[0].at_step, "growth.0")
    return Intention(
        checked_copy(recipe, "recipe", model=plan.new, rewarmup=rewarmup),
        plan,
        reset=options.reset,
        seed=options.seed,
        constants=constants,
        changes=changes,
        may_change=options.allow_change,
        notes=pending(source) if recipe.growth == () else (),
    )


def _rewarmup(source: RunCheckpoint, recipe: Recipe, plan: GrowthPlan, options: GrowOptions) -> Rewarmup | None:
    """None where nothing is to be said of the rates. Raises UserError for more steps than are left."""
    if options.rewarmup_steps is None and options.freeze_steps == 0 and plan.new == plan.old:
        return None
    n_left = recipe.train.steps - source.step
    rewarmup = Rewarmup.after(source.step, options, recipe.optimizer.settling_steps, n_left, is_verb=True)
    if rewarmup.steps == rewarmup.freeze_steps == 0:
        return None
    if rewarmup.freeze_steps == 0:
        return rewarmup
    return checked_copy(rewarmup, "rewarmup", grown_from=plan.old, layers=plan.correspondence.layers)
