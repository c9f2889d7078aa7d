"""Growth of a run's model into the model of another recipe, or by changes to its sizes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from widthwise.config_io import checked_copy, mistakes_at, to_data
from widthwise.growth.choices import SAME_SIZES, GrowOptions, NewSizes
from widthwise.growth.correspondence import align
from widthwise.growth.describe import kept_constants
from widthwise.growth.plan import GrowthPlan, plan_growth, with_constants_of
from widthwise.mistakes import UserError
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
"""Keys that describe all layers at once; a model with explicit layers has none of them."""
DEFAULT = GrowOptions()


def wanted_recipe(
    source: RunCheckpoint, to: Path | None, overrides: Sequence[str], sizes: NewSizes = SAME_SIZES
) -> Recipe:
    """Return the recipe of a file, or of the run at its checkpoint with other sizes, with overrides `a.b=c`.

    A budget of training FLOPs in it includes the FLOPs that the run has spent. Raises UserError.
    """
    data, where = _wanted_data(source, to, overrides, sizes)
    recipe = parse_recipe(data, where)
    budget = FlopBudget.of(data)
    if budget is None:
        return recipe
    steps = recipe.steps_within(budget, source.step, source.spent.training_flops)
    return checked_copy(recipe, "recipe", train=recipe.train.model_copy(update={"steps": steps}))


def _wanted_data(
    source: RunCheckpoint, to: Path | None, overrides: Sequence[str], sizes: NewSizes
) -> tuple[dict[str, Any], str]:
    """Return the recipe as plain data, and its file."""
    if to is not None:
        if sizes != SAME_SIZES:
            option = next(name for name, size in vars(sizes).items() if size).replace("_", "-")
            raise UserError(f"--to: conflicts with --{option}, because the recipe defines all sizes")
        return read_recipe(to, overrides), str(to)
    if sizes == SAME_SIZES and not overrides:
        raise UserError(
            "grow: no target given; give --to RECIPE, sizes such as --d-ff 96, or changes such as "
            "model.layers.0.ffn.d_ff=96"
        )
    where = f"{source.run.path}/config.yaml"
    model = larger_model(source.model, sizes)
    data = to_data(source.recipe) | {"model": to_data(model), "growth": ()}  # checked together with the overrides
    for override in overrides:  # the run's model has explicit layers
        key = override.partition("=")[0].strip()
        section, name = [*key.split("."), ""][:2]
        if section == "model" and name in OF_ALL_LAYERS:
            raise UserError(
                f"{key}: {source.run.path} has explicit layers and no rule for all of them; give the run's recipe, as "
                f"--to RECIPE '{override}', name layers, as model.layers.0.ffn.d_ff=96, or use --d-model, --d-ff, "
                "--add-layers, ..."
            )
    residual: list[str] = []
    if any(override.startswith("model.residual=") for override in overrides):
        residual = [override for override in overrides if override.startswith(("model.residual=", "model.residual."))]
    apply_overrides(data, [override for override in overrides if override not in residual])
    if residual:
        data["model"]["residual"] = _residual(residual, parse_recipe(data, where).explicit_model)
    return data, where


def _residual(overrides: Sequence[str], model: ModelConfig) -> dict[str, Any]:
    """Return another residual, given as in a recipe, with its sizes at the widths of a model."""
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
    """Grow the model of a run to the model of the recipe `to`, or to other sizes, as a run to resume.

    out: folder of the new run; None: nothing is written, and no weights are read. step: of the checkpoint; default:
    the newest undamaged one. Returns the changes, with their certificate. Raises UserError if the function cannot be
    preserved, and if `out` is not free.
    """
    source = RunCheckpoint.of(path, step)
    recipe = wanted_recipe(source, None if to is None else Path(to), overrides, sizes)
    intention = growth_intended(source, recipe, options)
    return intention.record() if out is None else carry_out(source, intention, out, observer)


def growth_intended(source: RunCheckpoint, recipe: Recipe, options: GrowOptions) -> Intention:
    """Plan the growth of a run's model to a recipe's. Raises UserError if it is impossible."""
    new_model = recipe.explicit_model
    plan = plan_growth(source.model, new_model, align(source.model, new_model, options.layers))
    constants = tuple(kept_constants(plan, new_model))
    changes: tuple[str, ...] = ()
    if options.allow_change and constants:
        plan = with_constants_of(new_model, plan)
        changes = tuple(constant.change for constant in constants)
        constants = ()
    if recipe.train.steps < source.step:
        raise UserError(
            f"train.steps: got {recipe.train.steps}; must be at least {source.step}, the steps that {source.run.path} "
            "has made"
        )
    for index, event in enumerate(recipe.growth):
        if event.at_step <= source.step:
            raise UserError(
                f"growth.{index}: at_step must be above {source.step}, the step that {source.run.path} has reached"
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
    """Return the rewarmup after growth; None without one. Raises UserError for more steps than remain."""
    if options.rewarmup_steps is None and options.freeze_steps == 0 and plan.new == plan.old:
        return None
    n_left = recipe.train.steps - source.step
    rewarmup = Rewarmup.after(source.step, options, recipe.optimizer.settling_steps, n_left, is_verb=True)
    if rewarmup.steps == rewarmup.freeze_steps == 0:
        return None
    if rewarmup.freeze_steps == 0:
        return rewarmup
    return checked_copy(rewarmup, "rewarmup", grown_from=plan.old, layers=plan.correspondence.layers)
