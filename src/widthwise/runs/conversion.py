"""Conversion of a run into a run with a larger model, which continues from the same step."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widthwise.config_io import checked_copy
from widthwise.data.config import open_data
from widthwise.data.identity import IMPORTED, KEY, TOKENIZER_KEY, has_seen_data
from widthwise.data.loader import Loader
from widthwise.files import check_free, new_folder
from widthwise.growth.certificate import certify, model_size
from widthwise.growth.choices import Reset
from widthwise.growth.describe import KeptConstant, expansions
from widthwise.growth.plan import GrowthPlan, grown_factors, grown_states
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder, build
from widthwise.model.memory import allocating
from widthwise.recipe.recipe import Recipe
from widthwise.records.certificate import Certificate
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment
from widthwise.runs.trained import RunCheckpoint, check_finite, check_tokenizer
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.growth_step import adopt
from widthwise.training.objective import carried_state
from widthwise.training.observer import Observer, SilentObserver
from widthwise.training.state import RunState
from widthwise.yaml_io import to_yaml


@dataclass(frozen=True)
class Intention:
    """The planned conversion of a run, made before its weights are read."""

    recipe: Recipe
    """The recipe of the new run, with the new model; `carry_out` sets `scaled` of its optimizer from the plan."""
    plan: GrowthPlan
    reset: Reset = "none"
    seed: int = 0
    constants: tuple[KeptConstant, ...] = ()
    """Kept constants, in which the new model differs from its recipe."""
    changes: tuple[str, ...] = ()
    """Changes of constants, one line each."""
    may_change: bool = False
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the conversion as plain data."""
        return {
            "expansions": expansions(self.plan),
            "constants": [str(constant) for constant in self.constants],
            "changes": list(self.changes),
            "before": model_size(self.plan.old, self.recipe.seq_len).to_data(),
            "after": model_size(self.plan.new, self.recipe.seq_len).to_data(),
            "notes": list(self.notes),
        }


def pending(source: RunCheckpoint) -> tuple[str, ...]:
    """Return a note on growth that the old run still planned, which the new run omits."""
    starts = [phase.start for phase in source.recipe.phases if phase.growth is not None and phase.start >= source.step]
    return (f"left out: the growth that the run would have made after step {starts[0]}",) if starts else ()


def check_can_go_on(source: RunCheckpoint) -> None:
    """Raise UserError if records of the run are missing or were changed, and while the old entries of its last growth
    are frozen, because the new run would not freeze them."""
    source.run.check_seal(checkpoint_folder.manifest_of(source.saved).seal, source.saved.name)
    growth = source.recipe.phase_at(source.step).growth
    if growth is not None:
        growth.rewarmup.check_next(source.step, str(source.run.path))


def carry_out(
    source: RunCheckpoint, intention: Intention, out: Path | str, observer: Observer | None = None
) -> dict[str, Any]:
    """Certify the new model, then write its run directory atomically.

    Returns `Intention.record` with the certificate. Raises UserError if the function is not preserved, unless the
    intention allows it, and if `out` is not free.
    """
    observer = observer or SilentObserver()
    out = Path(out)
    check_free(out)
    plan = intention.plan
    optimizer = intention.recipe.optimizer.with_scaled(grown_factors(plan, source.optimizer.adamw.scaled))
    recipe = checked_copy(intention.recipe, "recipe", optimizer=optimizer).resolved()
    recipe.check()
    n_params = f"{plan.new.cost().params:,.0f} parameters"
    with torch.random.fork_rng(), allocating(f"{source.run.path}: a model of {n_params} does not fit into memory"):
        weights, optimizer_state, state = source.load()
        check_finite(source.saved, weights.items())
        loader, identity, data_notes = _continued_data(source.run, source.recipe, recipe, state.loader, observer)
        model = build(plan.new, seed=0)
        model.set_weights(plan.weights(weights, intention.seed))
        certificate = _certified(intention, weights, model, source)
        optimizer = recipe.optimizer.build(model)
        if recipe.optimizer.kind == source.recipe.optimizer.kind:
            adopt(optimizer, model, grown_states(plan, optimizer_state, intention.reset))
        notes = [*intention.notes, *data_notes, *_notes(source, intention, recipe)]
        state = RunState(
            **{
                **state.as_data(),
                "window_steps": recipe.train.loss_window_steps,
                "loader": loader,
                "width_prices": carried_state(state.width_prices, source.recipe.train, recipe.train, plan),
                "grad_norms": [],
                "n_skipped": 0,
            }
        )
        state.notes += notes
        growth_record = {  # between the records of the old and the new model
            "event": "grown",
            "source": source.run.path.resolve().name,
            **source.spent._asdict(),
            "params_before": plan.old.cost().params,
            "params_after": plan.new.cost().params,
        }
        with new_folder(out) as folder:
            run = RunDir(folder)
            if source.run.tokenizer_folder.is_dir():
                shutil.copytree(source.run.tokenizer_folder, run.tokenizer_folder)
            records = [record for record in source.run.metrics() if record["step"] <= state.step]
            run.metrics_file.append([*records, growth_record])
            run.metrics_file.fsync()
            run.begin(to_yaml(recipe), {**environment(), **identity})
            snapshot = checkpoint.Snapshot.of(model, optimizer)
            checkpoint.write(run.checkpoints, state.step, snapshot, state.as_data(), run.seal())
            certificate.write(folder)
    return {
        "out": str(out),
        "step": source.step,
        "steps": recipe.train.steps,
        **intention.record(),
        "notes": notes,
        "certificate": certificate.to_data(),
        "lines": certificate.lines(),
    }


def _certified(intention: Intention, weights: dict[str, Tensor], model: Decoder, source: RunCheckpoint) -> Certificate:
    certificate = certify(
        intention.plan,
        weights,
        dict(model.named_parameters()),
        seq_len=intention.recipe.seq_len,
        lr=intention.recipe.optimizer.lr,
        seed=intention.seed,
    )
    if not (certificate.is_preserved or intention.may_change):
        logit_difference = max(certificate.logit_difference, certificate.stored_logit_difference)
        raise UserError(
            f"{source.run.path}: the grown model would not compute the same: logits differ by {logit_difference:.2g}, "
            f"old gradients by {certificate.gradient_difference:.2g} of the largest; nothing was written"
        )
    return certificate


def _notes(source: RunCheckpoint, intention: Intention, recipe: Recipe) -> list[str]:
    """Return notes for the user on the new run."""
    old_params, new_params = (f"{model.cost().params:,.0f}" for model in (intention.plan.old, intention.plan.new))
    name = source.run.path.resolve().name
    damages = [f"{damage}; took step {source.step} instead" for damage in source.damages]
    notes = [*damages, f"grown from {name} after step {source.step}: {old_params} -> {new_params} parameters"]
    old_kind = source.recipe.optimizer.kind
    if recipe.optimizer.kind != old_kind:
        notes.append(f"optimizer state reset: kind changed from {old_kind} to {recipe.optimizer.kind}")
    if recipe.train.steps == source.step:
        notes.append(
            f"train.steps = {recipe.train.steps} is the current step: `widthwise resume` only validates and finishes; "
            "to train, give more steps"
        )
    return notes


def _continued_data(
    run: RunDir, old: Recipe, new: Recipe, loader: dict[str, int], observer: Observer
) -> tuple[dict[str, int], dict[str, Any], list[str]]:
    """Continue the data of a run at its position if the recipes agree, and restart other data from the beginning.

    Returns the state of the loader, empty if it has read no data; the entries of environment.json on the data and the
    imported model; and notes. Unchanged data are not opened. loader: the state of the run's loader. Raises UserError
    if changed data are unavailable or have another tokenizer.
    """
    recorded = run.environment()
    origin = {key: recorded[key] for key in (KEY, TOKENIZER_KEY, IMPORTED) if key in recorded}
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
    differing = new_loader.differing(loader)
    if not differing:
        return loader, identity, []
    if differing == ["batch_size"]:
        n_read = loader["step"] * loader["batch_size"]
        return {**fresh, "step": -(-n_read // fresh["batch_size"])}, identity, []
    return fresh, identity, [f"data restarted from the beginning: {', '.join(differing)} changed"]


def batches_from(recipe: Recipe, step: int, n: int, observer: Observer) -> list[Tensor]:
    """Return n batches from a step on: integers (batch_size, seq_len + 1). Raises UserError if data are unavailable."""
    train = recipe.train
    windows = open_data(recipe.data, observer.preparing).train
    loader = Loader(windows, seq_len=recipe.seq_len, batch_size=train.batch_size, seed=train.seed)
    return [loader.batch(step + index) for index in range(n)]
