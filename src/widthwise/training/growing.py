"""A run directory from another: its newest checkpoint grown, baked or padded, to be trained on from the same step."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from widthwise.config_io import UserError, apply_override, to_data
from widthwise.files import check_free
from widthwise.growth.bake.baked import bake_plan, left_explicit
from widthwise.growth.certify.certificate import Certificate, Size, certify
from widthwise.growth.describe import Kept, expansions, kept_constants
from widthwise.growth.maps.correspondence import align
from widthwise.growth.optimizer_state import Reset, State, grown_factors, grown_state
from widthwise.growth.pad import PADDING, Multiples, pad_plan
from widthwise.growth.plan.fresh import Fresh
from widthwise.growth.plan.model_plan import NewLayers, Plan, plan_growth
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.model.memory import allocating
from widthwise.run_dir import RunDir
from widthwise.shape.template import ModelTemplate
from widthwise.training import checkpoint
from widthwise.training.compute import Spent, inherited
from widthwise.training.config import Recipe, load_recipe, parse_recipe, saved_recipe
from widthwise.training.descendant import continued_feed, continued_state, write_run
from widthwise.training.growth_events import Rewarmup, rewarmup_length, with_constants_of
from widthwise.training.growth_step import adopt, state_by_name
from widthwise.training.observer import Observer, Silence
from widthwise.training.optimizer import Optimizer
from widthwise.training.state import RunState
from widthwise.training.trained import newest_checkpoint

CERTIFICATE = "certificate.json"
OF_ALL_LAYERS = {"d_model"} | (ModelTemplate.model_fields.keys() - ModelConfig.model_fields.keys())
"""What a recipe says of all layers at once, and a model with every layer written out cannot."""


@dataclass(frozen=True)
class GrowOptions:
    """How a model grows, beside what into."""

    layers: tuple[int | None, ...] | None = None
    """For each layer of the larger model the one that it comes from, or None for one that is added; where not given,
    added layers lie evenly among the others."""
    new_layers: NewLayers = "drawn"
    reset: Reset = "none"
    """What the optimizer forgets; see `grown_state`."""
    seed: int = 0
    """Of what is drawn."""
    allow_change: bool = False
    """Whether constants are those of the recipe, though the function changes."""
    rewarmup_steps: int | None = None
    """Over which all rates rise again from 0; where not given, the steps that the optimizer's averages look back, but
    no more than are left."""


@dataclass(frozen=True)
class Intention:
    """What is to become of a run, before its weights are looked at."""

    verb: Literal["grown", "baked", "padded"]
    """The event in the records of the new run; see `compute.DESCENDED`."""
    recipe: Recipe
    """Of the new run, with the new model, but for `scaled` of its optimizer, which follows from the plan."""
    plan: Plan
    reset: Reset = "none"
    seed: int = 0
    fresh: Fresh | None = None
    constants: tuple[Kept, ...] = ()
    """In which the new model is not what its recipe says."""
    changes: tuple[str, ...] = ()
    """Of constants."""
    may_change: bool = False
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """As plain data."""
        sizes = [to_data(Size.of(model, self.recipe.seq_len)) for model in (self.plan.old, self.plan.new)]
        return {
            "expansions": expansions(self.plan),
            "constants": [str(constant) for constant in self.constants],
            "changes": list(self.changes),
            "before": sizes[0],
            "after": sizes[1],
            "bake_helps": any(constant.is_baked for constant in self.constants),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Source:
    """A run at its newest good checkpoint."""

    run: RunDir
    recipe: Recipe
    newest: Path
    damages: tuple[checkpoint.Damage, ...]

    @classmethod
    def of(cls, path: Path | str) -> "Source":
        """Raises UserError where it is no run directory or has no usable checkpoint."""
        run = RunDir(path)
        recipe = saved_recipe(run)
        found, damages = newest_checkpoint(run)
        return cls(run, recipe, found, tuple(damages))

    @property
    def step(self) -> int:
        return checkpoint.step_of(self.newest)

    @property
    def spent(self) -> Spent:
        """By the step of the checkpoint."""
        return inherited(self.run.metrics()).until(self.recipe, self.step)

    @property
    def model(self) -> ModelConfig:
        """Of the checkpoint."""
        return self.recipe.model_at(self.step)

    @property
    def optimizer(self) -> Optimizer:
        """That which made its last step."""
        return self.recipe.optimizer_of(self.recipe.phase_at(self.step))

    def load(self) -> tuple[dict[str, Tensor], State, RunState]:
        """Weights and optimizer state by parameter, and where the run stands. Sets torch's random state."""
        model = build(self.model, seed=0)
        optimizer = self.optimizer.build(model)
        state = RunState(**checkpoint.load(self.newest, model, optimizer))
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        return weights, state_by_name(model, optimizer), state


def wanted_recipe(source: Source, to: Path | None, overrides: Sequence[str]) -> Recipe:
    """The recipe of a file, or that of the run at its checkpoint, with changes `a.b=c`. Raises UserError."""
    if to is not None:
        return load_recipe(to, overrides)
    if not overrides:
        raise UserError("grow: got nothing to grow to; give --to RECIPE, or changes such as model.layers.0.ffn.d_ff=96")
    data = to_data(source.recipe.model_copy(update={"model": source.model, "growth": ()}))
    for override in overrides:
        _check_override(override, source)
        apply_override(data, override)
    return parse_recipe(data, f"{source.run.path}/config.yaml")


def _check_override(override: str, source: Source) -> None:
    """Raises UserError for what a recipe says of all layers, and a resolved one of each."""
    key = override.partition("=")[0].strip()
    section, name = [*key.split("."), ""][:2]
    if section == "model" and name in OF_ALL_LAYERS:
        raise UserError(
            f"{key}: {source.run.path} has every layer written out, so that this cannot be said of all at once; name "
            "them, as model.layers.0.ffn.d_ff=96, or give --to RECIPE"
        )


def growth_intended(source: Source, recipe: Recipe, options: GrowOptions) -> Intention:
    """How the model of a run becomes that of a recipe. Raises UserError where it cannot."""
    old, wanted = source.model, recipe.explicit_model
    plan = plan_growth(old, wanted, align(old, wanted, options.layers), options.new_layers)
    constants, changes = tuple(kept_constants(plan, wanted)), ()
    if options.allow_change and constants:
        plan, changes, constants = with_constants_of(wanted, plan), tuple(c.change for c in constants), ()
    _check_moments(source, recipe)
    return Intention(
        "grown",
        recipe.model_copy(
            update={"model": plan.new, "rewarmup": _rewarmup(source, recipe, plan, options.rewarmup_steps)}
        ),
        plan,
        reset=options.reset,
        seed=options.seed,
        constants=constants,
        changes=changes,
        may_change=options.allow_change,
        notes=_pending(source) if recipe.growth == () else (),
    )


def _rewarmup(source: Source, recipe: Recipe, plan: Plan, n_steps: int | None) -> Rewarmup | None:
    if n_steps is None and plan.new == plan.old:
        return None
    n_left = recipe.train.steps - source.step
    n_steps = rewarmup_length(n_steps, recipe.optimizer.settling_steps, n_left, "--rewarmup-steps")
    return Rewarmup(after_step=source.step, steps=n_steps) if n_steps > 0 else None


def _check_moments(source: Source, recipe: Recipe) -> None:
    if recipe.train.steps < source.step:
        raise UserError(
            f"train.steps: got {recipe.train.steps}; {source.run.path} has made {source.step} steps already; it must "
            "not be less"
        )
    for index, event in enumerate(recipe.growth):
        if event.step(recipe.tokens_per_step) <= source.step:
            raise UserError(
                f"growth.{index}: comes before step {source.step}, which {source.run.path} has reached already"
            )


def _pending(source: Source) -> tuple[str, ...]:
    later = [phase.start for phase in source.recipe.phases if phase.growth is not None and phase.start >= source.step]
    return (f"left out: the growth that the run would have made after step {later[0]}",) if later else ()


def bake_intended(source: Source, one_eps: bool) -> Intention:
    """How the model of a run gets the constants that its sizes give. Raises UserError where it has them."""
    plan = bake_plan(source.model, one_eps)
    changes = tuple(constant.change for constant in kept_constants(replace(plan, new=plan.old), plan.new))
    if not changes:
        raise UserError(f"{source.run.path}: has the constants that its sizes give; there is nothing to bake")
    left = tuple(f"left as it is: {line}" for line in left_explicit(plan.new))
    return Intention("baked", _recipe_with(source, plan), plan, changes=changes, notes=(*_pending(source), *left))


def pad_intended(source: Source, multiples: Multiples) -> Intention:
    """How the model of a run gets padded sizes. Raises UserError where they are multiples already, or cannot be."""
    plan = pad_plan(source.model, multiples)
    if plan.new == plan.old:
        raise UserError(f"{source.run.path}: has sizes that are such multiples already; there is nothing to pad")
    notes = _pending(source)
    return Intention("padded", _recipe_with(source, plan), plan, reset="new", fresh=PADDING, notes=notes)


def _recipe_with(source: Source, plan: Plan) -> Recipe:
    return source.recipe.model_copy(update={"model": plan.new, "growth": ()})


def carry_out(
    source: Source, intention: Intention, out: Path | str, observer: Observer | None = None
) -> dict[str, Any]:
    """Certifies the new model, then writes its run directory, or nothing.

    Returns `Intention.record` with the certificate. Raises UserError where the function would not be preserved, unless
    the intention allows it, and where `out` is not free.
    """
    observer, out = observer or Silence(), Path(out)
    check_free(out)
    plan = intention.plan
    factors = grown_factors(plan, source.optimizer.factors)
    optimizer_config = intention.recipe.optimizer.with_factors(factors)
    recipe = intention.recipe.model_copy(update={"optimizer": optimizer_config}).resolved()
    recipe.check()
    n_params = f"{plan.new.cost().params:,.0f} parameters"
    with torch.random.fork_rng(), allocating(f"{source.run.path}: a model of {n_params} does not fit into memory"):
        weights, optimizer_state, state = source.load()
        feed = continued_feed(source.run, source.recipe, recipe, state.loader, observer)
        model = build(plan.new, seed=0)
        model.set_weights(plan.weights(weights, intention.seed, intention.fresh))
        certificate = _certified(intention, weights, model, source)
        optimizer = recipe.optimizer.build(model)
        if recipe.optimizer.kind == source.recipe.optimizer.kind:
            adopt(optimizer, model, grown_state(plan, optimizer_state, intention.reset))
        notes = [*intention.notes, *feed.notes, *_said_of(source, intention, recipe)]
        state = continued_state(state, recipe, plan, feed, source.recipe.train.width_budget)
        state.notes += notes
        files = {CERTIFICATE: json.dumps(certificate.record(), indent=2) + "\n"}
        write_run(source.run, out, recipe, feed.identity, model, optimizer, state, _event(source, intention), files)
    found = {**intention.record(), "notes": notes, "certificate": certificate.record(), "lines": certificate.lines()}
    return {"out": str(out), "step": source.step, **found}


def _event(source: Source, intention: Intention) -> dict[str, Any]:
    """The record of metrics.jsonl that stands between those of the two models."""
    sizes = (intention.plan.old.cost().params, intention.plan.new.cost().params)
    return {
        "event": intention.verb,
        "source": source.run.path.resolve().name,
        **source.spent._asdict(),
        "params_before": sizes[0],
        "params_after": sizes[1],
    }


def _certified(intention: Intention, weights: dict[str, Tensor], model: Decoder, source: Source) -> Certificate:
    found = certify(
        intention.plan,
        weights,
        dict(model.named_parameters()),
        seq_len=intention.recipe.seq_len,
        lr=intention.recipe.optimizer.lr,
        seed=intention.seed,
        fresh=intention.fresh,
    )
    if not (found.is_preserved or intention.may_change):
        stored = max(found.logit_difference, found.stored_logit_difference)
        raise UserError(
            f"{source.run.path}: the {intention.verb} model would not compute the same: logits differ by {stored:.2g}, "
            f"old gradients by {found.gradient_difference:.2g} of the largest; nothing was written"
        )
    return found


def _said_of(source: Source, intention: Intention, recipe: Recipe) -> list[str]:
    """What the user should know of the new run."""
    old, new = (f"{model.cost().params:,.0f}" for model in (intention.plan.old, intention.plan.new))
    name = source.run.path.resolve().name
    damages = [f"{damage}; took step {source.step} instead" for damage in source.damages]
    notes = [*damages, f"{intention.verb} from {name} after step {source.step}: {old} -> {new} parameters"]
    kinds = [each.optimizer.kind for each in (source.recipe, recipe)]
    if kinds[0] != kinds[1]:
        notes.append(f"the optimizer begins anew: {kinds[1]} where it was {kinds[0]}")
    if recipe.train.steps == source.step:
        notes.append(
            f"train.steps = {recipe.train.steps} is the step reached: `widthwise resume` validates and finishes, and "
            "trains only with more"
        )
    return notes
