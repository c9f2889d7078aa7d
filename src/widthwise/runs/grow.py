"""Growth of a run's model to another recipe's or to other sizes, as a new run that continues from the same step."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from widthwise.config_io import checked_copy, to_data
from widthwise.data.config import open_data
from widthwise.data.identity import DATA_KEY, IMPORTED, TOKENIZER_KEY, has_seen_data
from widthwise.data.loader import Loader
from widthwise.files import check_free, new_folder
from widthwise.growth.certificate import certify, model_size
from widthwise.growth.choices import SAME_SIZES, GrowOptions, NewSizes
from widthwise.growth.correspondence import align
from widthwise.growth.describe import KeptConstant, expansions, kept_constants
from widthwise.growth.plan import GrowthPlan, grown_factors, grown_states, plan_growth, with_recipe_constants
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.model.memory import allocating
from widthwise.recipe.growth_events import Rewarmup
from widthwise.recipe.larger import larger_model
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.schedule import FlopBudget
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment
from widthwise.runs.open import RunCheckpoint, check_finite, check_tokenizer
from widthwise.shape.template import ModelTemplate
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.growth_step import set_optimizer_state
from widthwise.training.observer import Observer, SilentObserver
from widthwise.training.state import RunState
from widthwise.yaml_io import apply_overrides, read_recipe, to_yaml

TEMPLATE_KEYS = {"d_model"} | (ModelTemplate.model_fields.keys() - ModelConfig.model_fields.keys())
"""Keys of `model` that describe all layers at once, so that they cannot change a model with explicit layers."""
DEFAULT_OPTIONS = GrowOptions()


def grow_run(
    path: Path | str,
    out: Path | str | None,
    to: Path | str | None = None,
    sizes: NewSizes = SAME_SIZES,
    overrides: Sequence[str] = (),
    options: GrowOptions = DEFAULT_OPTIONS,
    step: int | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Grow the model of a run to the model of the recipe `to`, or to other sizes, as a run to resume.

    out: folder of the new run; None: only plan, without reading weights. step: of the checkpoint; default: the newest
    undamaged one. Returns the changes, with their certificate. Raises UserError if the function cannot be preserved,
    and if `out` is neither missing nor an empty folder.
    """
    source = RunCheckpoint.of(path, step)
    recipe = target_recipe(source, None if to is None else Path(to), overrides, sizes)
    growth = plan_run_growth(source, recipe, options)
    if out is None:
        return growth.record()
    return _carry_out(source, growth, Path(out), observer or SilentObserver())


def target_recipe(
    source: RunCheckpoint, to: Path | None, overrides: Sequence[str], sizes: NewSizes = SAME_SIZES
) -> Recipe:
    """Return the recipe `to`, or the run's recipe with other sizes, with overrides `a.b=c`.

    A budget of training FLOPs in it includes the FLOPs that the run has spent. Raises UserError for a mistake in the
    recipe, for sizes together with `to`, and if neither recipe, sizes nor overrides are given.
    """
    data, where = _target_data(source, to, overrides, sizes)
    recipe = parse_recipe(data, where)
    budget = FlopBudget.of(data)
    if budget is None:
        return recipe
    steps = recipe.steps_within(budget, source.step, source.spent.training_flops)
    return checked_copy(recipe, "recipe", train=recipe.train.model_copy(update={"steps": steps}))


def _target_data(
    source: RunCheckpoint, to: Path | None, overrides: Sequence[str], sizes: NewSizes
) -> tuple[dict[str, Any], str]:
    """Return the recipe as plain data, and its file for error messages."""
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
    data = to_data(source.recipe) | {"model": to_data(model), "growth": ()}  # validated after the overrides
    for override in overrides:
        key = override.partition("=")[0].strip()
        section, _, subkey = key.partition(".")
        name = subkey.partition(".")[0]
        if key == "model.residual" or (section == "model" and name in TEMPLATE_KEYS):
            raise UserError(
                f"{key}: {source.run.path} has explicit layers and no rule for all of them; give the run's recipe, as "
                f"--to RECIPE '{override}', name layers, as model.layers.0.ffn.d_ff=96, or use --d-model, --d-ff, "
                "--add-layers, ..."
            )
    apply_overrides(data, overrides)
    return data, where


@dataclass(frozen=True)
class RunGrowth:
    """The planned growth of a run; planning reads no weights."""

    recipe: Recipe
    """The recipe of the new run, with the new model; `scaled` of its optimizer is not set yet."""
    plan: GrowthPlan
    options: GrowOptions
    constants: Sequence[KeptConstant]
    """Constants of the old model that the new model keeps, although its recipe has others."""
    changes: Sequence[str]
    """Constants that change with `allow_change`, one line each."""
    notes: Sequence[str]

    def record(self) -> dict[str, Any]:
        """Return the growth as plain data."""
        return {
            "expansions": expansions(self.plan),
            "constants": [str(constant) for constant in self.constants],
            "changes": list(self.changes),
            "before": model_size(self.plan.old, self.recipe.seq_len).to_data(),
            "after": model_size(self.plan.new, self.recipe.seq_len).to_data(),
            "notes": list(self.notes),
        }


def plan_run_growth(source: RunCheckpoint, recipe: Recipe, options: GrowOptions) -> RunGrowth:
    """Plan the growth of a run's model to the model of a recipe.

    Raises UserError if it is impossible, and while an earlier growth still freezes old entries, because the new run
    would not freeze them.
    """
    path = source.run.path
    new_model = recipe.explicit_model
    plan = plan_growth(source.model, new_model, align(source.model, new_model, options.layers))
    constants = list(kept_constants(plan, new_model))
    changes: list[str] = []
    if options.allow_change and constants:
        plan = with_recipe_constants(plan, new_model)
        changes = [constant.change for constant in constants]
        constants = []
    if recipe.train.steps < source.step:
        raise UserError(
            f"train.steps: got {recipe.train.steps}; must be at least {source.step}, the steps that {path} has made"
        )
    for index, event in enumerate(recipe.growth):
        if event.at_step <= source.step:
            raise UserError(f"growth.{index}: at_step must be above {source.step}, the step that {path} has reached")
    source.run.check_seal(checkpoint_folder.manifest_of(source.saved).seal, source.saved.name)
    last_growth = source.recipe.phase_at(source.step).growth
    for earlier in (None if last_growth is None else last_growth.rewarmup, source.recipe.rewarmup):
        if earlier is not None:
            earlier.check_next(source.step, str(path))
    rewarmup = _rewarmup(source, recipe, plan, options)
    if rewarmup is not None and recipe.growth:
        rewarmup.check_next(recipe.growth[0].at_step, "growth.0")
    later = [phase.start for phase in source.recipe.phases if phase.growth and phase.start >= source.step]
    notes = []
    if later and not recipe.growth:
        notes = [f"left out: the growth that the run would have made after step {later[0]}"]
    new_recipe = checked_copy(recipe, "recipe", model=plan.new, rewarmup=rewarmup)
    return RunGrowth(new_recipe, plan, options, constants, changes, notes)


def _rewarmup(source: RunCheckpoint, recipe: Recipe, plan: GrowthPlan, options: GrowOptions) -> Rewarmup | None:
    """Return the rewarmup after growth; None without one. Raises UserError for more steps than remain."""
    if options.rewarmup_steps is None and options.freeze_steps == 0 and plan.new == plan.old:
        return None
    n_left = recipe.train.steps - source.step
    rewarmup = Rewarmup.after(source.step, options, recipe.optimizer.settling_steps, n_left, is_cli=True)
    if rewarmup.steps == rewarmup.freeze_steps == 0:
        return None
    if rewarmup.freeze_steps == 0:
        return rewarmup
    return checked_copy(rewarmup, "rewarmup", grown_from=plan.old, layers=plan.correspondence.layers)


def _carry_out(source: RunCheckpoint, growth: RunGrowth, out: Path, observer: Observer) -> dict[str, Any]:
    """Certify the new model, then write its run directory atomically.

    Returns `RunGrowth.record` with the certificate. Raises UserError if the function is not preserved, unless the
    options allow it, and if `out` is neither missing nor an empty folder.
    """
    check_free(out)
    old_run = source.run
    options = growth.options
    plan = growth.plan
    old_params, new_params = (f"{model.cost().params:,.0f}" for model in (plan.old, plan.new))
    optimizer = growth.recipe.optimizer.with_scaled(grown_factors(plan, source.optimizer.adamw.scaled))
    recipe = checked_copy(growth.recipe, "recipe", optimizer=optimizer).resolved()
    recipe.check()
    too_large = f"{old_run.path}: a model of {new_params} parameters does not fit into memory"
    with torch.random.fork_rng(), allocating(too_large):
        weights, optimizer_state, state = source.load()
        check_finite(source.saved, weights.items())
        loader, identity, data_notes = _continued_data(old_run, source.recipe, recipe, state.loader, observer)
        model = build(plan.new, seed=0)
        model.set_weights(plan.weights(weights, options.seed))
        parameters = dict(model.named_parameters())
        certificate = certify(
            plan, weights, parameters, seq_len=recipe.seq_len, lr=recipe.optimizer.lr, seed=options.seed
        )
        if not (certificate.is_preserved or options.allow_change):
            logit_difference = max(certificate.logit_difference, certificate.stored_logit_difference)
            raise UserError(
                f"{old_run.path}: the grown model would not compute the same: logits differ by {logit_difference:.2g}, "
                f"old gradients by {certificate.gradient_difference:.2g} of the largest; nothing was written"
            )
        name = old_run.path.resolve().name
        notes = [
            *growth.notes,
            *data_notes,
            *(f"{damage}; took step {source.step} instead" for damage in source.damages),
            f"grown from {name} after step {source.step}: {old_params} -> {new_params} parameters",
        ]
        optimizer = recipe.optimizer.build(model)
        old_kind = source.recipe.optimizer.kind
        if recipe.optimizer.kind == old_kind:
            set_optimizer_state(optimizer, model, grown_states(plan, optimizer_state))
        else:
            notes.append(f"optimizer state reset: kind changed from {old_kind} to {recipe.optimizer.kind}")
        if recipe.train.steps == source.step:
            notes.append(
                f"train.steps = {recipe.train.steps} is the current step: `widthwise resume` only validates and "
                "finishes; to train, give more steps"
            )
        state = RunState(
            **{
                **state.as_data(),
                "window_steps": recipe.train.loss_window_steps,
                "loader": loader,
                "width_prices": [] if recipe.train.width_budget is None else state.width_prices,
                "grad_norms": [],
                "n_skipped": 0,
            }
        )
        state.notes += notes
        growth_record = {  # between the records of the old and the new model
            "event": "grown",
            "source": name,
            **source.spent._asdict(),
            "params_before": plan.old.cost().params,
            "params_after": plan.new.cost().params,
        }
        with new_folder(out) as folder:
            run = RunDir(folder)
            if old_run.tokenizer_folder.is_dir():
                shutil.copytree(old_run.tokenizer_folder, run.tokenizer_folder)
            records = [record for record in old_run.metrics() if record["step"] <= state.step]
            run.metrics_file.append([*records, growth_record])
            run.metrics_file.fsync()
            run.begin(to_yaml(recipe), {**environment(), **identity})
            snapshot = checkpoint.take_snapshot(model, optimizer)
            checkpoint.write(run.checkpoints, state.step, snapshot, state.as_data(), run.seal())
            certificate.write(folder)
    return {
        "out": str(out),
        "step": source.step,
        "steps": recipe.train.steps,
        **growth.record(),
        "notes": notes,
        "certificate": certificate.to_data(),
        "lines": certificate.lines(),
    }


def _continued_data(
    run: RunDir, old: Recipe, new: Recipe, loader: dict[str, int], observer: Observer
) -> tuple[dict[str, int], dict[str, Any], list[str]]:
    """Return the state of the new run's loader, its entries of environment.json on data and import, and notes.

    The same data continue at their position, even if the batch size changed; other data restart from the beginning.
    Unchanged data are not opened. loader: the state of the run's loader; empty if it has read no data. Raises UserError
    if changed data are unavailable or have another tokenizer.
    """
    recorded = run.environment()
    origin = {key: recorded[key] for key in (DATA_KEY, TOKENIZER_KEY, IMPORTED) if key in recorded}
    if not has_seen_data(run):
        if old.data != new.data and origin.get(TOKENIZER_KEY) is not None:
            check_tokenizer(run, open_data(new.data, observer.preparing).tokenizer)
        return loader, origin, []
    settings = [(recipe.data, recipe.seq_len, recipe.train.batch_size, recipe.train.seed) for recipe in (old, new)]
    if settings[0] == settings[1]:
        return loader, origin, []
    data = open_data(new.data, observer.preparing)
    check_tokenizer(run, data.tokenizer)
    identity = {**origin, **data.identity.record()}
    train = new.train
    new_loader = Loader(data.train, seq_len=new.seq_len, batch_size=train.batch_size, seed=train.seed)
    fresh = new_loader.state_dict()
    differing = new_loader.changed_keys(loader)
    if not differing:
        return loader, identity, []
    if differing == ["batch_size"]:
        n_read = loader["step"] * loader["batch_size"]
        return {**fresh, "step": -(-n_read // fresh["batch_size"])}, identity, []
    return fresh, identity, [f"data restarted from the beginning: {', '.join(differing)} changed"]
