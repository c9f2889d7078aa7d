"""The training loop: steps, and what happens between them."""

import math
import statistics
import time
from typing import Any, NoReturn

import torch

from widthwise.analysis.token_widths.relations import analyse_widths
from widthwise.analysis.virtual_width import analyse_virtual_width
from widthwise.data.loader import Loader
from widthwise.data.prepared import PreparedData
from widthwise.model.compiling import compile_layers
from widthwise.model.config import cost_summary
from widthwise.model.decoder import Decoder, build
from widthwise.model.memory import allocating
from widthwise.recipe.growth_events import Phase
from widthwise.recipe.optimizer import set_lr
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir, RunFailed
from widthwise.training import checkpoint
from widthwise.training.choice_metrics import ChoiceMeans, choice_record, dead_scores
from widthwise.training.compute import Spent, inherited
from widthwise.training.growth_step import carried_prices, grow
from widthwise.training.metrics import Stopwatch, model_flops_utilization, peak_memory_bytes
from widthwise.training.mtp_losses import MTPLosses
from widthwise.training.objective import NestedPasses, WidthBudget
from widthwise.training.observer import Observer
from widthwise.training.result import run_result
from widthwise.training.state import RunState
from widthwise.training.step import StepOutcome, optimizer_step
from widthwise.training.stopping import Interrupted, SignalWatch
from widthwise.training.validation import Validation, validate


class TrainingLoop:
    """A run at work, from nothing or from its last checkpoint. For the holder of the run's lock."""

    def __init__(self, recipe: Recipe, data: PreparedData, run: RunDir, observer: Observer):
        """Builds the model of a resolved recipe at step 0; `restore` moves it to a checkpoint."""
        self.recipe, self.run, self.observer = recipe, run, observer
        self.config = recipe.train
        self._name = run.path.resolve().name
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(self.config.seed)
        self._enter(recipe.phases[0])
        self.held_out = recipe.held_out(data)
        self.loader = Loader(
            data.train, seq_len=recipe.seq_len, batch_size=self.config.batch_size, seed=self.config.seed
        )
        self.state = RunState(self.config.loss_window_steps)
        self._started = time.perf_counter()
        self._stopwatch = Stopwatch()
        self._pending: list[StepOutcome] = []
        self._grad_norm, self._choices, self._mtp_losses = math.nan, ChoiceMeans(), MTPLosses()
        self._saved_step = self._validated_step = self._grown_step = 0
        self._inherited = Spent()
        self._damaged: list[checkpoint.Damage] = []

    def _enter(self, phase: Phase) -> None:
        """Makes the untrained model of a phase the one at work."""
        model = build(phase.model, self.config.seed, self.device)
        self._work_on(model, self.recipe.optimizer_of(phase).build(model))

    def _work_on(self, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
        """Everything that follows from the model at work."""
        self.model, self.optimizer = model, optimizer
        if self.config.compile:
            torch.compiler.reset()  # what was compiled for a smaller model counts towards the limit of graphs
            compile_layers(model)
        budget, nested = self.config.width_budget, self.config.nested
        self.width_budget = None if budget is None else WidthBudget(budget, model.config, self.device)
        self.nested_passes = None if nested is None else NestedPasses(nested, model.config)
        self.cost = cost_summary(model.config, self.recipe.seq_len)

    def restore(self) -> None:
        """Goes to the newest good checkpoint, or stays at step 0 where there is none, and rewinds the metrics to it."""
        path, self._damaged = checkpoint.latest_valid(self.run.checkpoints)
        if path is not None:
            phase = self.recipe.phase_at(checkpoint.step_of(path))
            if phase.growth is not None:
                self._enter(phase)
            self.state = RunState(**checkpoint.load(path, self.model, self.optimizer))
            if self.state.loader:  # a run that begins with a checkpoint has seen no data at step 0
                self.loader.load_state_dict(self.state.loader)
            if self.width_budget is not None:
                self.width_budget.load_state(self.state.width_prices)
        for damage in self._damaged:
            self.note(f"{damage}; went on from step {self.state.step} instead")
        self.run.rewind_metrics(self.state.step)
        records = self.run.metrics()
        self._inherited = inherited(records)
        self._saved_step = self.state.step
        self._validated_step, self._grown_step = (_last_step(records, each) for each in ("validation", "growth"))
        self._started -= self.state.wall_seconds

    def note(self, text: str) -> None:
        """Tells the user, and keeps the text for the result; a text is said once in a run."""
        if text not in self.state.notes:
            self.observer.message(text)
            self.state.notes.append(text)

    def go(self, watch: SignalWatch) -> dict[str, Any]:
        """Trains to the last step and writes the result. Raises RunFailed (diverging loss) and Interrupted (signal)."""
        self.observer.starting(self._name, self.state.step, self.config.steps)
        self._set_progress()
        self._validate_if_due()  # the run may have ended between the checkpoint and the validation of one step
        while self.state.step < self.config.steps:
            self._grow_if_due()
            self._step()
            self._save_if_due(watch.received is not None)
            if watch.received is not None:
                raise Interrupted(self._interruption(), watch.received)
            self._validate_if_due()
        self._save_if_due(must_save=True)
        self._prune()  # a kill may have come between the last checkpoint and its pruning
        result = self._result()
        self.run.write_result(result)
        return result

    def _step(self) -> None:
        self._stopwatch.go()
        batch = next(self.loader).to(self.device)
        self.state.step += 1
        self._set_progress()
        set_lr(self.optimizer, self._lr(self.state.step))
        self._pending.append(self._optimizer_step(batch))
        self._stopwatch.count_step()
        must_log = self._is_due(self.config.log_every) or self.state.step == self.config.steps
        if must_log or self._is_due(self.config.checkpoint_every) or self._is_due(self.config.validate_every):
            self._collect()  # inside the measured time, because it waits for the device
        self._stopwatch.pause()
        if must_log:
            self._log()
        self.observer.step_done(self.state.step)

    def _grow_if_due(self) -> None:
        """Makes the model of the next step, where it is another. A checkpoint of this step holds the one before."""
        phase = self.recipe.phase_at(self.state.step + 1)
        if phase.growth is None or phase.start != self.state.step:
            return
        is_recorded = self._grown_step == self.state.step  # before a kill
        before = None if is_recorded else self._validate()
        prices = [] if self.width_budget is None else self.width_budget.state()
        config = self.recipe.optimizer_of(phase)
        with allocating(f"growth.{phase.growth.index}: the larger model does not fit into the memory of the device"):
            self._work_on(*grow(self.model, self.optimizer, phase.growth, config, self.config.seed))
        if self.width_budget is not None:
            self.width_budget.load_state(carried_prices(prices, self.width_budget.config, phase.growth.plan))
        self._set_progress()
        if before is not None:
            self._record(
                "growth",
                tokens=self._spent().tokens,
                training_flops=self._spent().training_flops,
                params_before=phase.growth.plan.old.cost().params,
                params_after=phase.growth.plan.new.cost().params,
                loss_before=before.loss,
                loss_after=validate(self.model, self.held_out).loss,
            )
            self._grown_step = self.state.step

    def _set_progress(self) -> None:
        self.model.progress.fill_(self.state.step / self.config.steps)

    def _optimizer_step(self, batch: torch.Tensor) -> StepOutcome:
        micro_batch_size = self.config.sequences_per_pass
        with allocating(
            f"train.micro_batch_size: {micro_batch_size} sequences do not fit into the memory of the device; "
            f"use a smaller divisor of train.batch_size = {self.config.batch_size}"
        ):
            return optimizer_step(
                self.model,
                self.optimizer,
                batch,
                micro_batch_size=micro_batch_size,
                precision=self.config.precision,
                z_loss=self.config.z_loss,
                max_grad_norm=self.config.max_grad_norm,
                passes=(None,) if self.nested_passes is None else self.nested_passes.draw(),
                width_budget=self.width_budget,
            )

    def _spent(self) -> Spent:
        return self._inherited.until(self.recipe, self.state.step)

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0

    def _lr(self, step: int) -> float:
        return self.recipe.optimizer.lr * self.recipe.lr_factor(step)

    def _collect(self) -> None:
        """Waits for the device and takes over the losses of the steps since the last time."""
        if not self._pending:
            return
        pairs = torch.stack([torch.stack((each.loss, each.grad_norm.double())) for each in self._pending]).tolist()
        self._choices, self._mtp_losses = self._pending[-1].choices, self._pending[-1].mtp_losses
        self._pending.clear()
        for step, (loss, grad_norm) in enumerate(pairs, start=self.state.step - len(pairs) + 1):
            if not math.isfinite(loss) or not math.isfinite(grad_norm):
                self._fail(step, f"loss {loss:.4g}, gradient norm {grad_norm:.4g}")
            self.state.add_loss(loss)
        self._grad_norm = pairs[-1][1]

    def _log(self) -> None:
        loss = self._checked_loss()
        self.state.lowest_loss = loss if self.state.lowest_loss is None else min(loss, self.state.lowest_loss)
        self.state.unlogged_losses.clear()
        step_seconds = self._stopwatch.step_seconds()
        tokens_per_second = self.recipe.tokens_per_step / step_seconds
        flops_per_token = self.cost["flops_per_token"]["training"] * self.config.n_passes
        choices = choice_record(self.model, self._choices, self.width_budget)
        for warning in dead_scores(choices):
            self.note(warning)
        self._record(
            "train",
            loss=loss,
            lr=self._lr(self.state.step),
            grad_norm=self._grad_norm,
            tokens=self._spent().tokens,
            tokens_per_second=tokens_per_second,
            step_seconds=step_seconds,
            mfu=model_flops_utilization(tokens_per_second, flops_per_token, self.device),
            memory_bytes=peak_memory_bytes(self.device),
            **self._mtp_losses.record(),
            **choices,
        )

    def _checked_loss(self) -> float:
        """Mean loss since the last record. Raises RunFailed where it is far above the lowest one."""
        loss, lowest = statistics.fmean(self.state.unlogged_losses), self.state.lowest_loss
        rise = self.config.max_loss_rise
        if lowest is not None and loss > lowest + rise:
            self._fail(
                self.state.step, f"loss {loss:.4g}, above the lowest ({lowest:.4g}) by train.max_loss_rise = {rise:g}"
            )
        return loss

    def _fail(self, step: int, what: str) -> NoReturn:
        self._record("stopped", step=step, reason=what)
        kept = f"the checkpoint of step {self._saved_step} is kept" if self._saved_step else "there is no checkpoint"
        raise RunFailed(
            f"{self.run.path}: stopped at step {step} of {self.config.steps}: {what}; the learning rate was "
            f"{self._lr(step):.4g}, try a lower optimizer.lr or more schedule.warmup_steps; {kept}"
        )

    def _record(self, event: str, **values: Any) -> None:
        record = {"step": self.state.step, "event": event, **values}
        self.run.append_metrics([record])
        self.observer.record(record)

    def _save_if_due(self, must_save: bool) -> None:
        """Saves a checkpoint unless the loss says that it would be of a failed run."""
        if self.state.step == self._saved_step or not (must_save or self._is_due(self.config.checkpoint_every)):
            return
        self._collect()
        if self.state.unlogged_losses:
            self._checked_loss()
        self.state.loader = self.loader.state_dict()
        self.state.width_prices = [] if self.width_budget is None else self.width_budget.state()
        self.state.wall_seconds = time.perf_counter() - self._started
        self.run.fsync_metrics()  # a resumed run writes no record again that is older than its checkpoint
        checkpoint.save(self.run.checkpoints, self.state.step, self.model, self.optimizer, self.state.as_data())
        self._saved_step = self.state.step
        self._prune()

    def _prune(self) -> None:
        checkpoint.prune(self.run.checkpoints, self.config.keep_last, self._damaged)
        self._damaged = []

    def _interruption(self) -> str:
        return (
            f"{self.run.path}: stopped at step {self.state.step} of {self.config.steps}, with a checkpoint; "
            f"`widthwise resume {self.run.path}` goes on"
        )

    def _validate_if_due(self) -> None:
        at_end = self.state.step in (0, self.config.steps)  # the end has its own
        if self._is_due(self.config.validate_every) and not at_end and self._validated_step < self.state.step:
            self._validate()

    def _validate(self) -> Validation:
        """Validates at this step, and records it unless that was done before a kill."""
        found = validate(self.model, self.held_out)
        if self._validated_step < self.state.step:
            self._record("validation", **found.record())
            self._validated_step = self.state.step
        return found

    def _result(self) -> dict[str, Any]:
        validation, token_widths = self._validate(), None
        if validation.token_widths is not None:
            token_widths = analyse_widths(self.model, self.held_out, validation.token_widths)
        virtual_width = analyse_virtual_width(self.model, self.held_out)
        self.state.wall_seconds = time.perf_counter() - self._started
        return run_result(
            self._name, self.recipe, self.state, validation, token_widths, virtual_width, self.run.metrics()
        )


def _last_step(records: list[dict[str, Any]], event: str) -> int:
    """Of the last record of an event, 0 where there is none."""
    return max((record["step"] for record in records if record["event"] == event), default=0)
