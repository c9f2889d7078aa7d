"""The training loop: steps, and what happens between them."""

import math
import time
from pathlib import Path
from typing import Any

import torch

from widthwise.data.loader import Loader
from widthwise.data.mixture import OpenedData
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir, RunFailed, Seal
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.choice_metrics import ChoiceMeans, choice_record, dead_scores
from widthwise.training.compute import Spent, inherited
from widthwise.training.learner import Learner
from widthwise.training.metrics import PeakMemory, Stopwatch, model_flops_utilization
from widthwise.training.mtp_losses import MTPLosses
from widthwise.training.observer import Observer
from widthwise.training.processes import ALONE, Processes
from widthwise.training.saving import Saver
from widthwise.training.spikes import Diverged, check_step, checked_loss, skipped_record
from widthwise.training.state import RunState
from widthwise.training.step import StepOutcome
from widthwise.training.stopping import Interrupted, SignalWatch
from widthwise.training.validation import Validation, validate


class TrainingLoop:
    """A run at work, from nothing or from its last checkpoint. For the holder of the run's lock.

    Of several processes each has a loop; all take the same decisions, and the first one alone speaks and writes.
    """

    def __init__(self, recipe: Recipe, data: OpenedData, run: RunDir, observer: Observer, processes: Processes = ALONE):
        """Builds the model of a resolved recipe at step 0; `restore` moves it to a checkpoint."""
        self.recipe, self.run, self.observer, self.processes = recipe, run, observer, processes
        self.config = recipe.train
        self.name = run.path.resolve().name
        self._memory = PeakMemory(processes.device)
        torch.manual_seed(self.config.seed)
        self.learner = Learner.untrained(recipe, recipe.phases[0], processes)
        self.held_out = recipe.held_out(data)
        self.loader = Loader(
            data.train,
            seq_len=recipe.seq_len,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            rank=processes.rank,
            world_size=processes.world_size,
        )
        self.state = RunState(self.config.loss_window_steps)
        self._started = time.perf_counter()
        self._stopwatch = Stopwatch()
        self._pending: list[StepOutcome] = []
        self._grad_norm, self._choices, self._mtp_losses = math.nan, ChoiceMeans(), MTPLosses()
        self._saver, self._saved_step = Saver(processes, self.config.checkpoint_in_background), 0
        self._recorded: dict[str, int] = {}
        """Event -> step of its last record."""
        self._inherited = Spent()
        self._damaged: list[checkpoint_folder.Damage] = []

    def restore(self) -> None:
        """Goes to the newest good checkpoint, or stays at step 0 where there is none, and rewinds the metrics to it."""
        processes = self.processes
        path, self._damaged = checkpoint_folder.latest_valid(self.run.checkpoints, processes)
        if path is not None:
            processes.first(lambda: self.run.check_seal(checkpoint_folder.seal_of(path), path.name))
            phase = self.recipe.phase_at(checkpoint_folder.step_of(path))
            if phase.start > 0:
                self.learner = Learner.untrained(self.recipe, phase, processes)
            learner = self.learner
            self.state = processes.alike(lambda: checkpoint.load(path, learner.model, learner.optimizer))
            if self.state.loader:  # a run that begins with a checkpoint has seen no data at step 0
                self.loader.load_state_dict(self.state.loader)
            learner.objective.load_state(self.state.width_prices)
            learner.gate.load(self.state)
        for damage in self._damaged:
            self.note(f"{damage}; went on from step {self.state.step} instead")
        records = processes.first(self._rewound_metrics)
        self._inherited = inherited(records)
        self._saved_step = self.state.step
        self._recorded = {record["event"]: record["step"] for record in records}
        self._started -= self.state.wall_seconds

    def _rewound_metrics(self) -> list[dict[str, Any]]:
        self.run.rewind_metrics(self.state.step)
        return self.run.metrics()

    def note(self, text: str) -> None:
        """Tells the user, and keeps the text for the result; a text is said once in a run."""
        if text not in self.state.notes:
            self.observer.message(text)
            self.state.notes.append(text)

    def go(self, watch: SignalWatch) -> Validation:
        """Trains to the last step and returns its validation.

        Raises RunFailed (diverging loss) and Interrupted (signal).
        """
        with self._saver:
            self._train(watch)
        return self._validate()

    def _train(self, watch: SignalWatch) -> None:
        self.observer.starting(self.name, self.state.step, self.config.steps)
        self.learner.set_progress(self.state.step)
        self._validate_if_due()  # the run may have ended between the checkpoint and the validation of one step
        while self.state.step < self.config.steps:
            try:
                self._enter_phase_if_due()
                self._step()
                received = self._agreed_signal(watch)
                self._save_if_due(must_save=received > 0 or self.state.step == self.config.steps)
            except Diverged as spike:
                raise self._failure(spike) from None
            if received:
                self._saver.wait()
                raise self.processes.said(Interrupted(self._interruption(), received))
            self._validate_if_due()
        self._saver.wait()
        self._prune(self.run.checkpoints, self.processes)  # a kill may have come between the last checkpoint and this

    def _agreed_signal(self, watch: SignalWatch) -> int:
        """The number of the signal that any process has received, or 0. They come at other moments to each."""
        return int(self.processes.largest(watch.received or 0)[0])

    @property
    def wall_seconds(self) -> float:
        """Time spent so far, by all processes that worked on the run."""
        return time.perf_counter() - self._started

    def _step(self) -> None:
        self._stopwatch.begin_step()
        batch = next(self.loader)
        self.state.step += 1
        outcome = self.learner.make_step(self.state.step, batch)
        self._pending.append(outcome)
        must_log = self._is_due(self.config.log_every) or self.state.step == self.config.steps
        if must_log or self._is_due(self.config.checkpoint_every) or self._is_due(self.config.validate_every):
            self._collect()  # inside the measured time, because it waits for the device
        self._stopwatch.end_step()
        if must_log and not outcome.n_skipped:  # after a step without an update the next record covers its time too
            self._log()
        self.observer.step_done(self.state.step)

    def _enter_phase_if_due(self) -> None:
        """Makes the model of the next step, where it is another. A checkpoint of this step holds the one before."""
        step = self.state.step
        phase = self.recipe.phase_at(step + 1)
        if phase.start != step or step == 0:
            return
        is_recorded = self._recorded.get("growth") == step  # before a kill
        before = None if is_recorded else self._validate()
        self.learner = self.learner.grown(phase)
        self.learner.set_progress(step)
        if before is not None:
            self._record(
                "growth",
                tokens=self._spent().tokens,
                training_flops=self._spent().training_flops,
                params_before=self.recipe.model_at(step).cost().params,
                params_after=phase.model.cost().params,
                loss_before=before.loss,
                loss_after=validate(self.learner.model, self.held_out, self.processes).loss,
            )

    def _spent(self) -> Spent:
        return self._inherited.until(self.recipe, self.state.step)

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0

    def _collect(self) -> None:
        """Waits for the device and takes over the losses of the steps since the last time."""
        if not self._pending:
            return
        outcomes, self._pending = self._pending, []
        pairs = torch.stack([torch.stack((each.loss, each.grad_norm.double())) for each in outcomes]).tolist()
        first = self.state.step - len(outcomes) + 1
        for step, (outcome, (loss, grad_norm)) in enumerate(zip(outcomes, pairs), start=first):
            if outcome.n_skipped:
                self._record("skipped", step=step, **skipped_record(loss, grad_norm))
            check_step(self.config, step, loss, grad_norm, outcome.n_skipped)
            if not outcome.n_skipped:
                self.state.add_loss(loss)
        self._grad_norm, self._choices, self._mtp_losses = pairs[-1][1], outcomes[-1].choices, outcomes[-1].mtp_losses

    def _log(self) -> None:
        loss = checked_loss(self.config, self.state)
        self.state.lowest_loss = loss if self.state.lowest_loss is None else min(loss, self.state.lowest_loss)
        self.state.unlogged_losses.clear()
        step_seconds, memory_bytes = self.processes.largest(
            self._stopwatch.step_seconds(), self._memory.n_bytes() or math.nan
        )
        tokens_per_second = self.recipe.tokens_per_step / step_seconds
        learner = self.learner
        choices = choice_record(learner.model, self._choices)
        for warning in dead_scores(choices):
            self.note(warning)
        self._record(
            "train",
            loss=loss,
            lr=learner.lr(self.state.step),
            grad_norm=self._grad_norm,
            tokens=self._spent().tokens,
            tokens_per_second=tokens_per_second,
            step_seconds=step_seconds,
            mfu=model_flops_utilization(
                tokens_per_second / self.processes.world_size, learner.flops_per_token, learner.device
            ),
            memory_bytes=None if math.isnan(memory_bytes) else int(memory_bytes),
            **self._mtp_losses.record(),
            **choices,
            **learner.objective.record(),
        )

    def _failure(self, spike: Diverged) -> RunFailed:
        """Puts down where the run stops, and says so."""
        self._record("stopped", step=spike.step, reason=spike.reason)
        kept = f"the checkpoint of step {self._saved_step} is kept" if self._saved_step else "there is no checkpoint"
        return self.processes.said(
            RunFailed(
                f"{self.run.path}: stopped at step {spike.step} of {self.config.steps}: {spike.reason}; the learning "
                f"rate was {self.learner.lr(spike.step):.4g}, try a lower optimizer.lr or more schedule.warmup_steps; "
                f"{kept}"
            )
        )

    def _record(self, event: str, **values: Any) -> None:
        record = {"step": self.state.step, "event": event, **values}
        self.processes.first(lambda: self._append(record))
        self._recorded[event] = record["step"]
        self.observer.record(record)

    def _append(self, record: dict[str, Any]) -> None:
        self.follow()
        self.run.append_metrics([record])

    def follow(self) -> None:
        """Goes where somebody has moved the run's folder, and notes it. Raises RunFailed where it is gone."""
        before = self.run.path
        if self.run.follow():
            self.note(f"{before}: was moved to {self.run.path} while the run was at work; it goes on there")

    def _save_if_due(self, must_save: bool) -> None:
        """Saves a checkpoint unless the loss says that it would be of a failed run."""
        if self.state.step == self._saved_step or not (must_save or self._is_due(self.config.checkpoint_every)):
            return
        self._collect()
        if self.state.unlogged_losses:
            checked_loss(self.config, self.state)
        self.state.loader = self.loader.state_dict()
        self.state.width_prices = self.learner.objective.state()
        self.learner.gate.save_to(self.state)
        self.state.wall_seconds = self.wall_seconds
        folder, seal = self.processes.first(self._sealed)
        step, state = self.state.step, self.state.as_data()

        def write(snapshot: checkpoint.Snapshot, processes: Processes) -> None:
            checkpoint.write(folder, step, snapshot, state, seal, processes)
            self._prune(folder, processes)

        self._saver.save(checkpoint.Snapshot.of(self.learner.model, self.learner.optimizer, self.processes), write)
        self._saved_step = step

    def _sealed(self) -> tuple[Path, Seal]:
        """Where a checkpoint of this moment goes, and what it belongs to."""
        self.follow()
        self.run.fsync_metrics()  # a resumed run writes no record again that is older than its checkpoint
        return self.run.checkpoints, self.run.seal()

    def _prune(self, folder: Path, processes: Processes) -> None:
        damaged, self._damaged = self._damaged, []
        processes.first(lambda: checkpoint_folder.prune(folder, self.config.keep_last, damaged))

    def _interruption(self) -> str:
        return (
            f"{self.run.path}: stopped at step {self.state.step} of {self.config.steps}, with a checkpoint; "
            f"`widthwise resume {self.run.path}` goes on"
        )

    def _validate_if_due(self) -> None:
        at_end = self.state.step in (0, self.config.steps)  # the end has its own
        if self._is_due(self.config.validate_every) and not at_end and not self._has_validated:
            self._validate()

    @property
    def _has_validated(self) -> bool:
        """Whether the validation of this step is on record, perhaps from before a kill; step 0 keeps none."""
        return self._recorded.get("validation", 0) >= self.state.step

    def _validate(self) -> Validation:
        """Validates at this step, and records it once."""
        found = validate(self.learner.model, self.held_out, self.processes)
        if not self._has_validated:
            self._record("validation", **found.record())
        return found
