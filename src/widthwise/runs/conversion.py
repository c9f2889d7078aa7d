"""A run directory from another: a checkpoint grown, baked or padded, to be trained on from the same step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widthwise.config_io import UserError, checked_copy
from widthwise.files import check_free
from widthwise.growth.certificate import certify, model_size
from widthwise.growth.choices import Reset
from widthwise.growth.describe import KeptConstant, expansions
from widthwise.growth.optimizer_state import grown_factors, grown_states
from widthwise.growth.plan import GrowthPlan
from widthwise.growth.tensor_plan import Fresh
from widthwise.model.decoder import Decoder, build
from widthwise.model.memory import allocating
from widthwise.recipe.recipe import Recipe
from widthwise.records.certificate import Certificate
from widthwise.records.run import Descent
from widthwise.runs.descendant import continued_feed, continued_state, write_run
from widthwise.runs.source import Source
from widthwise.training.growth_step import adopt
from widthwise.training.observer import Observer, Silence


@dataclass(frozen=True)
class Intention:
    """The planned conversion of a run, known before its weights are read."""

    verb: Descent
    """The event in the records of the new run."""
    recipe: Recipe
    """The recipe of the new run, with the new model; `scaled` of its optimizer still follows from the plan."""
    plan: GrowthPlan
    reset: Reset = "none"
    seed: int = 0
    fresh: Fresh | None = None
    constants: tuple[KeptConstant, ...] = ()
    """Kept constants, in which the new model differs from its recipe."""
    changes: tuple[str, ...] = ()
    """Changes of constants, one line each."""
    may_change: bool = False
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """The conversion as plain data."""
        sizes = [model_size(model, self.recipe.seq_len).to_data() for model in (self.plan.old, self.plan.new)]
        return {
            "expansions": expansions(self.plan),
            "constants": [str(constant) for constant in self.constants],
            "changes": list(self.changes),
            "before": sizes[0],
            "after": sizes[1],
            "bake_helps": any(constant.is_baked for constant in self.constants),
            "notes": list(self.notes),
        }


def pending(source: Source) -> tuple[str, ...]:
    """A note on growth that the run had still planned, which its descendant will not do."""
    later = [phase.start for phase in source.recipe.phases if phase.growth is not None and phase.start >= source.step]
    return (f"left out: the growth that the run would have made after step {later[0]}",) if later else ()


def recipe_with(source: Source, plan: GrowthPlan) -> Recipe:
    """The recipe of a run with another model, which grows no further. Raises UserError while new and old entries of its
    last growth learn at rates of their own, which would be lost."""
    check_rates_are_alike(source)
    return checked_copy(source.recipe, "recipe", model=plan.new, growth=())


def check_rates_are_alike(source: Source) -> None:
    """Raises UserError where new and old entries of a growth of the run learn at rates of their own."""
    growth = source.recipe.phase_at(source.step).growth
    if growth is not None:
        growth.pace.check_next(source.step, str(source.run.path))


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
    recipe = checked_copy(intention.recipe, "recipe", optimizer=optimizer_config).resolved()
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
            adopt(optimizer, model, grown_states(plan, optimizer_state, intention.reset))
        notes = [*intention.notes, *feed.notes, *_said_of(source, intention, recipe)]
        state = continued_state(state, recipe, plan, feed, source.recipe.train)
        state.notes += notes
        files = {Certificate.file_name: certificate.to_json() + "\n"}
        write_run(source.run, out, recipe, feed.identity, model, optimizer, state, _event(source, intention), files)
    found = {**intention.record(), "notes": notes, "certificate": certificate.to_data(), "lines": certificate.lines()}
    return {"out": str(out), "step": source.step, **found}


def _event(source: Source, intention: Intention) -> dict[str, Any]:
    """The record of metrics.jsonl between those of the old and of the new model."""
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
    """Notes for the user on the new run."""
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
