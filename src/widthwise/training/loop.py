"""The training loop: steps, logging, validation, checkpoints and growth."""

import time
from pathlib import Path
from typing import NoReturn

import torch

from widthwise.data.loader import Loader
from widthwise.data.mixture import OpenedData
from widthwise.mistakes import RunDiverged
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir, Seal
from widthwise.training import checkpoint
from widthwise.training.checkpoint_folder import Damage, latest_valid, manifest_of, prune, step_of
from widthwise.training.launch import Interrupted, SignalWatch, is_launched
from widthwise.training.metrics import MetricsLogger
from widthwise.training.objective import LoadedTeacher
from widthwise.training.observer import Observer
from widthwise.training.processes import ALONE, Processes
from widthwise.training.state import Diverged, RunState, checked_loss
from widthwise.training.train_state import TrainState
from widthwise.training.validation import Validation, ValidationSets, validate


class TrainingLoop:
    """Train a run from step 0 or from its last checkpoint. The caller holds the run's lock.

    Every rank has a loop and makes the same decisions; only rank 0 prints and writes.
    """

    def __init__(self, recipe: Recipe, data: OpenedData, run: RunDir, observer: Observer, processes: Processes = ALONE):
        """Build the model of a resolved recipe at step 0; `restore` moves it to a checkpoint."""
        self.recipe = recipe
        self.config = recipe.train
        self.data = data
        self.run = run
        self.observer = observer
        self.processes = processes
        self.name = run.path.resolve().name
        self.metrics_logger = MetricsLogger(run, recipe, observer, processes, self.note)
        torch.manual_seed(self.config.seed)
        self._teacher = None if self.config.distill is None else LoadedTeacher(recipe, processes)
        self.train_state = TrainState.untrained(recipe, recipe.phases[0], processes, self._teacher)
        self.held_out = recipe.held_out(data, processes.world_size)
        self.sets = ValidationSets.opened(recipe, self.held_out, self.train_state.model, processes)
        self.loader = Loader(
            data.train,
            seq_len=recipe.seq_len,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            rank=processes.rank,
            world_size=processes.world_size,
        )
        self.state = RunState(window_steps=self.config.loss_window_steps)
        self._started = time.perf_counter()
        self._saver = checkpoint.Saver(processes, self.config.checkpoint_in_background)
        self._saved_step = 0
        self._damaged: list[Damage] = []

    def restore(self) -> None:
        """Load the newest undamaged checkpoint, if there is one, and rewind the metrics to its step.

        Deletes the checkpoints that no rule keeps, unless one is damaged.
        """
        processes = self.processes
        path, self._damaged = latest_valid(self.run.checkpoints, processes)
        if path is not None:
            processes.on_rank_zero(lambda: self.run.check_seal(manifest_of(path).seal, path.name))
            phase = self.recipe.phase_at(step_of(path))
            if phase.start > 0:
                self.train_state = TrainState.untrained(self.recipe, phase, processes, self._teacher)
            train_state = self.train_state
            states = processes.all_gather(lambda: checkpoint.load(path, train_state.model, train_state.optimizer))
            self.state = states[processes.rank]
            self._saved_step = self.state.step
            if self.state.loader:  # empty in a run that begins with a checkpoint, and has read no data yet
                self.loader.load_state_dict(self.state.loader)
            train_state.load(self.state)
        for damage in self._damaged:
            self.note(f"{damage}; resumed from step {self.state.step} instead")
        self.metrics_logger.rewind(self.state.step)
        if path is not None and not self._damaged:
            # `keep_last` may be lower now, or an earlier process was killed before it deleted older checkpoints.
            _, seal = processes.on_rank_zero(self._folder_and_seal)
            self._prune(seal, processes)
        self._started -= self.state.wall_seconds

    def note(self, text: str) -> None:
        """Show a text to the user, and store it for the result. A stored text is not shown again."""
        if text not in self.state.notes:
            self.observer.message(text)
            self.state.notes.append(text)

    def train(self, watch: SignalWatch) -> Validation:
        """Train to the last step and return its validation.

        watch: the signal that stops the run after a step, with a checkpoint. Raises Interrupted after a signal, and
        RunDiverged for a diverging loss.
        """
        with self._saver:
            self.observer.opened(self.run.path)
            self.observer.starting(self.name, self.state.step, self.config.steps)
            self._validate_if_due()  # a killed process may have saved this step without validating it
            self._announce_first_step()
            while self.state.step < self.config.steps:
                try:
                    self._enter_phase_if_due()
                    self._step()
                    # A signal may reach the ranks at different moments.
                    received = int(self.processes.all_reduce_max(watch.received or 0)[0])
                    self._save_if_due(must_save=received > 0 or self.state.step == self.config.steps)
                except Diverged as spike:
                    self._stop(spike)
                if received:
                    self._saver.wait()
                    stopped = f"stopped at step {self.state.step} of {self.config.steps}, with a checkpoint"
                    how = "the same launch" if is_launched() else f"`widthwise resume {self.run.path}`"
                    message = f"{self.run.path}: {stopped}; {how} continues it"
                    raise self.processes.on_every_rank(Interrupted(message, received))
                self._validate_if_due()
        return self._validate()

    def _announce_first_step(self) -> None:
        """Announce the first step of a model, which takes longer than later ones."""
        if self.state.step < self.config.steps:
            suffix = " (compiling)" if self.config.compile else ""
            self.observer.busy(f"step {self.state.step + 1:,} running{suffix}")

    @property
    def wall_seconds(self) -> float:
        """Wall time of the run so far, including earlier processes before a restart."""
        return time.perf_counter() - self._started

    def _step(self) -> None:
        logger = self.metrics_logger
        started = time.perf_counter()
        batch = next(self.loader)
        self.state.step += 1
        outcome = self.train_state.train_step(self.state.step, batch, self.held_out.boundaries)
        logger.outcomes.append(outcome)
        must_log = self._is_due(self.config.log_every) or self.state.step == self.config.steps
        if must_log or self._is_due(self.config.checkpoint_every) or self._is_due(self.config.validate_every):
            logger.collect(self.state)  # waits for the device, so it is part of the measured time
        logger.step_seconds.append(time.perf_counter() - started)
        if must_log and outcome.n_skipped == 0:  # the record after a skipped step includes its time
            logger.log(self.state, self.train_state)
        self.observer.step_done(self.state.step)

    def _enter_phase_if_due(self) -> None:
        """Grow the model if the next step begins a phase. A checkpoint of this step has the model before growth."""
        step = self.state.step
        phase = self.recipe.phase_at(step + 1)
        if phase.start != step or step == 0:
            return
        is_recorded = self.metrics_logger.last_steps["growth"] == step  # by a killed process
        before = None if is_recorded else self._validate()
        self.train_state = self.train_state.grown(phase)
        self._announce_first_step()
        if before is not None:
            self.metrics_logger.write_with_costs(
                step,
                "growth",
                params_before=self.recipe.model_at(step).cost().params,
                params_after=phase.model.cost().params,
                loss_before=before.loss,
                loss_after=validate(self.train_state.model, self.held_out, self.processes).loss,
            )

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0

    def _stop(self, spike: Diverged) -> NoReturn:
        """Raise RunFailed after the last checkpoint is written."""
        self._saver.wait()
        saved = f"the checkpoint of step {self._saved_step} is kept" if self._saved_step else "there is no checkpoint"
        message = (
            f"stopped at step {spike.step} of {self.config.steps}: {spike.reason}; the learning rate was "
            f"{self.train_state.lr(spike.step):.4g}, try a lower optimizer.lr or more schedule.warmup_steps; {saved}"
        )
        failure = RunDiverged(f"{self.run.path}: {message}", spike.step)
        self.metrics_logger.write(spike.step, "stopped", reason=spike.reason, message=message)
        raise self.processes.on_every_rank(failure) from None

    def _save_if_due(self, must_save: bool) -> None:
        """Save a checkpoint of this step once, if it is due. Raises Diverged for a diverging loss.

        must_save: save even between the steps of `train.checkpoint_every`.
        """
        if self.state.step == self._saved_step or not (must_save or self._is_due(self.config.checkpoint_every)):
            return
        self.metrics_logger.collect(self.state)
        if self.state.unlogged_losses:
            checked_loss(self.config, self.state)
        self.state.loader = self.loader.state_dict()
        self.train_state.save_to(self.state)
        self.state.wall_seconds = self.wall_seconds
        folder, seal = self.processes.on_rank_zero(self._folder_and_seal)
        step = self.state.step
        state = self.state.as_data()

        def write(snapshot: checkpoint.Snapshot, processes: Processes) -> None:
            checkpoint.write(folder, step, snapshot, state, seal, processes)
            self._prune(seal, processes)

        snapshot = checkpoint.take_snapshot(self.train_state.model, self.train_state.optimizer, self.processes)
        self._saver.save(snapshot, write)
        self._saved_step = step

    def _folder_and_seal(self) -> tuple[Path, Seal]:
        """Return the folder and the seal of a new checkpoint, once the records are safe on disk. For rank 0."""
        self.run.metrics_file.fsync()  # a resumed run does not rewrite records older than its checkpoint
        return self.run.checkpoints, self.run.seal()

    def _prune(self, seal: Seal, processes: Processes) -> None:
        damaged = self._damaged
        self._damaged = []
        processes.on_rank_zero(lambda: prune(self.run.checkpoints, self.config, damaged, seal.recipe))

    def _validate_if_due(self) -> None:
        is_first_or_last = self.state.step in (0, self.config.steps)  # `train` validates the last step
        if self._is_due(self.config.validate_every) and not is_first_or_last and not self._has_validated:
            self._validate()

    @property
    def _has_validated(self) -> bool:
        """True if the validation of this step is recorded, perhaps by a killed process; always True at step 0."""
        return self.metrics_logger.last_steps["validation"] >= self.state.step

    def _validate(self) -> Validation:
        """Validate at this step, and record it once."""
        model = self.train_state.model
        step = self.state.step
        validation = self.sets.validate(model, self.processes)
        if not self._has_validated:
            if self.sets.sampler is not None:
                self.metrics_logger.write_samples(step, self.sets.sampler.records(model, step))
            self.metrics_logger.write_with_costs(step, "validation", **validation.record())
        return validation
