"""Starting and resuming runs."""

import os
from pathlib import Path

from widthwise.config_io import UserError, to_yaml
from widthwise.data.config import open_data
from widthwise.data.prepared import PreparedData
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import has_seen_data, identity_of, recorded_identity, recorded_tokenizer
from widthwise.runs.environment import REPRODUCED_WITH, environment
from widthwise.runs.other_work import OtherWork
from widthwise.runs.result import run_result
from widthwise.training import checkpoint
from widthwise.training.loop import TrainingLoop
from widthwise.training.observer import Observer, Silence
from widthwise.training.stopping import Interrupted, watch_signals


def train(recipe: Recipe, out: Path | str, observer: Observer | None = None) -> RunResult:
    """Trains a recipe in a new folder and returns the result, also that of a run that has finished there already.

    Raises UserError for a mistake in recipe, data or folder, RunFailed where the loss diverges, and Interrupted after
    Ctrl-C or SIGTERM.
    """
    return _Launch(RunDir(out), observer).train(recipe, may_resume=False)


def train_or_resume(recipe: Recipe, out: Path | str, observer: Observer | None = None) -> RunResult:
    """As `train`, but goes on with an unfinished run of the same recipe."""
    return _Launch(RunDir(out), observer).train(recipe, may_resume=True)


def resume(path: Path | str, observer: Observer | None = None) -> RunResult:
    """Goes on with the run in a folder, from its last good checkpoint, and returns the result. Raises as `train`.

    On a CPU, with the same number of threads, the weights and all records but the measured ones (metrics.MEASURED_KEYS)
    are bitwise those of a run that was never stopped.
    """
    return _Launch(RunDir(path), observer).resume()


class _Launch:
    """Everything before the first step: whatever can be wrong is found here."""

    def __init__(self, run: RunDir, observer: Observer | None):
        self.run, self.observer = run, observer or Silence()

    def train(self, recipe: Recipe, may_resume: bool) -> RunResult:
        recipe, path = recipe.resolved(), self.run.path
        _check_recipe(recipe)
        if path.exists() and not path.is_dir():
            raise UserError(f"{path}: is a file; choose another folder with --out")
        with self.run.locked():
            if not self.run.exists:
                return self._start(recipe)
            self.run.check_recipe(to_yaml(recipe))
            if not (may_resume or self.run.result()):
                raise UserError(f"{path}: holds an unfinished run; `widthwise resume {path}` goes on with it")
            return self._go_on(recipe)

    def resume(self) -> RunResult:
        recipe = saved_recipe(self.run)
        _check_recipe(recipe)
        with self.run.locked():
            return self._go_on(recipe)

    def _start(self, recipe: Recipe) -> RunResult:
        data = self._open_data(recipe)
        loop = TrainingLoop(recipe, data, self.run, self.observer)
        data.tokenizer.save(self.run.tokenizer_folder)
        self.run.begin(to_yaml(recipe), {**environment(), **identity_of(data).record()})
        return self._train(loop)

    def _go_on(self, recipe: Recipe) -> RunResult:
        if (result := self.run.result()) is not None:
            self.observer.message(f"{self.run.path}: has finished already")
            return result
        data = self._open_data(recipe)
        before, now = self.run.environment(), environment()
        self._check_same_data(data)
        self.run.add_to_environment({})  # the recipe, where an older version began the run without it
        checkpoint.remove_partial(self.run.checkpoints)
        loop = TrainingLoop(recipe, data, self.run, self.observer)
        loop.restore()
        for key in REPRODUCED_WITH:
            if before.get(key) != now[key]:
                loop.note(f"{key} was {before.get(key)} and is now {now[key]}: from here on not bitwise the same run")
        self.observer.message(f"{self.run.path}: going on after step {loop.state.step} of {recipe.train.steps}")
        return self._train(loop)

    def _train(self, loop: TrainingLoop) -> RunResult:
        """A signal behind the last step lets the run finish, and stops what would come after it."""
        with watch_signals() as watch:
            other_work = OtherWork()
            result = run_result(loop, loop.go(watch)).with_changes(other_cpu_share=other_work.share())
            self.run.write_result(result)
        if watch.received is not None:
            raise Interrupted(f"{self.run.path}: has finished; stopped after it", watch.received)
        return result

    def _open_data(self, recipe: Recipe) -> PreparedData:
        data = open_data(recipe.data, self.observer.preparing)
        tokenizer, vocab_size = data.manifest.tokenizer, recipe.explicit_model.vocab_size
        if tokenizer.vocab_size > vocab_size:
            raise UserError(
                f"model.vocab_size: got {vocab_size}; must be at least {tokenizer.vocab_size}, "
                f"the number of tokens of tokenizer {tokenizer.spec}"
            )
        recipe.held_out(data).check()
        # The run vouches for the checksums, and a stray token would stop it later.
        recipe.data.check(data, self.observer.preparing)
        return data

    def _check_same_data(self, data: PreparedData) -> None:
        if not has_seen_data(self.run):
            self._take_up(data)
        before, now = recorded_identity(self.run), identity_of(data)
        if before != now:
            raise UserError(f"{self.run.path}: was begun with other data ({before}) than is there now ({now})")

    def _take_up(self, data: PreparedData) -> None:
        """Binds a run that has seen no data to what it is given, if that is of its tokenizer."""
        own, given = recorded_tokenizer(self.run), identity_of(data)
        if own is not None and own.id != given.tokenizer.id:
            raise UserError(
                f"data.tokenizer: got {given.tokenizer.spec}; must be that of the imported model, {own.spec}"
            )
        data.tokenizer.save(self.run.tokenizer_folder)
        self.run.add_to_environment(given.record())


def _check_recipe(recipe: Recipe) -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("training on several processes is not available in this version; start it without torchrun")
    recipe.check()
