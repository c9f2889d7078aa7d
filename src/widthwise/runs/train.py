"""Starting and resuming runs. A resumed run may have changed settings, such as more steps."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from widthwise.config_io import checked_copy, differences, parse, to_data
from widthwise.data.config import DataCache
from widthwise.data.corpus import ignore_progress
from widthwise.data.identity import VALIDATION_KEY, check_data_of_run, has_seen_data
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.mistakes import UserError
from widthwise.recipe.recipe import Recipe, check_same_recipe, saved_recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.run import RESUME_KEYS, Continuation, RunResult
from widthwise.run_dir import RunDir
from widthwise.runs.environment import REPRODUCED_WITH, chosen_precision, environment, read_clocks, share_of_others
from widthwise.runs.open import check_tokenizer, check_vocabulary
from widthwise.runs.result import is_analysed, run_result
from widthwise.training import checkpoint_folder
from widthwise.training.launch import Interrupted, is_launched, n_launched, watch_signals
from widthwise.training.loop import TrainingLoop
from widthwise.training.objective import TEACHER_KEY
from widthwise.training.observer import Observer, SilentObserver
from widthwise.training.processes import ALONE, Processes
from widthwise.yaml_io import apply_overrides, to_yaml


@contextmanager
def launched_processes(config: TrainConfig) -> Iterator[Processes]:
    """Join the process group of this launch for a `with` block.

    Raises UserError for a batch or a model that cannot be divided evenly among the processes.
    """
    n = n_launched()
    config.rows_of_process(n)
    if n == 1:
        yield ALONE
        return
    from widthwise.training.distributed import group  # slow to import, and unused by a single process

    with group(config) as processes:
        yield processes


def train(recipe: Recipe, out: Path | str, observer: Observer | None = None) -> RunResult:
    """Train a recipe in a new folder and return the result; return the existing result of a finished run.

    Under torchrun all processes train the run together, and resume an unfinished run of the same recipe, because a
    launcher restarts them this way. Raises UserError for a mistake in recipe, data or folder, RunFailed if the loss
    diverges, and Interrupted after Ctrl-C, SIGTERM or SIGUSR1.
    """
    with launched_processes(recipe.train) as processes:
        return _Launch(RunDir(out), observer, processes).train(recipe, may_resume=False)


def train_or_resume(
    recipe: Recipe, out: Path | str, observer: Observer | None = None, data_cache: DataCache | None = None
) -> RunResult:
    """Train like `train`, but resume an unfinished run of the same recipe. data_cache: data that are open already."""
    with launched_processes(recipe.train) as processes:
        return _Launch(RunDir(out), observer, processes, data_cache).train(recipe, may_resume=True)


def resume(path: Path | str, observer: Observer | None = None, overrides: Sequence[str] = ()) -> RunResult:
    """Resume the run in a folder from its last good checkpoint and return the result. Raises as `train`.

    overrides: changed settings, such as `["train.steps=2000"]`; RESUME_KEYS lists the allowed keys. With more
    steps, a finished run continues too.

    On a CPU, with the same number of threads and processes, the weights and all records except the measured ones
    (metrics.MEASURED_KEYS) are bitwise equal to an uninterrupted run's.
    """
    run = RunDir(path)
    before = saved_recipe(run)
    data = to_data(before)
    apply_overrides(data, overrides)
    recipe = parse(Recipe, data, f"{run.path}: {' '.join(overrides)}")
    for key, *_ in differences(to_data(before), to_data(recipe)):
        if not f"{key}.".startswith(tuple(f"{allowed}." for allowed in RESUME_KEYS)):
            raise UserError(
                f"{key}: cannot change in an existing run; allowed: {', '.join(RESUME_KEYS)}; "
                f"`widthwise grow {run.path} KEY=VALUE --out NEW` starts another run from its checkpoint"
            )
    with launched_processes(recipe.train) as processes:
        return _Launch(run, observer, processes).resume(before, recipe)


class _Launch:
    """One process of a launch, which checks, starts or resumes a run, trains it and writes its result."""

    def __init__(
        self, run: RunDir, observer: Observer | None, processes: Processes, data_cache: DataCache | None = None
    ):
        self.run = run
        self.processes = processes
        self.data_cache = data_cache or DataCache()
        self.observer = observer if observer is not None and processes.is_rank_zero else SilentObserver()

    def train(self, recipe: Recipe, may_resume: bool) -> RunResult:
        path = self.run.path
        recipe = recipe.settled(lambda: self.processes.on_rank_zero(lambda: chosen_precision(path, self.observer)))
        recipe = self.processes.same_on_every_rank(recipe.resolved)
        self.processes.same_on_every_rank(recipe.check)

        def lock_and_check() -> bool:
            """Lock the folder for the `with` block below. Return True if it holds a run of the same recipe."""
            if path.exists() and not path.is_dir():
                raise UserError(f"{path}: is a file; choose another folder with --out")
            lock.enter_context(self.run.locked())
            if not self.run.exists:
                return False
            check_same_recipe(self.run, recipe)
            if self.run.result() is None and not may_resume:
                if not is_launched():
                    raise UserError(f"{path}: holds an unfinished run; `widthwise resume {path}` continues it")
                records = self.run.metrics()
                if records and records[-1]["event"] == "stopped":
                    reason = f"step {records[-1]['step']}: {records[-1].get('reason')}"
                    raise UserError(f"{path}: stopped at {reason}; `widthwise resume {path}` tries again")
            return True

        with ExitStack() as lock:
            return self._resume(recipe) if self.processes.on_rank_zero(lock_and_check) else self._start(recipe)

    def resume(self, before: Recipe, recipe: Recipe) -> RunResult:
        self.processes.same_on_every_rank(recipe.check)
        with ExitStack() as lock:
            self.processes.on_rank_zero(lambda: lock.enter_context(self.run.locked()))
            self.processes.on_rank_zero(lambda: apply_changes(self.run, before, recipe))
            return self._resume(recipe)

    def _start(self, recipe: Recipe) -> RunResult:
        data = self._open_data(recipe)
        loop = TrainingLoop(recipe, data, self.run, self.observer, self.processes)

        def begin() -> None:
            self.run.check_checkpoints_are_own()
            checkpoints = checkpoint_folder.checkpoint_paths(self.run.checkpoints)
            if checkpoints:
                raise UserError(f"{checkpoints[0]}: a new run would replace it; choose another folder with --out")
            data.tokenizer.save(self.run.tokenizer_folder)
            recorded = {**self._environment(), **data.identity.record(), **_validation_record(loop)}
            self.run.begin(to_yaml(recipe), recorded)
            if isinstance(data, MixedData):
                usage = data.shares_and_epochs(recipe.seq_len, recipe.train.steps * recipe.train.batch_size)
                n_held_out = Counter(recipe.held_out(data).sources)
                lines = [  # a small source may be repeated, or be missing in validations
                    f"{name} {share:.1%} of the windows, each read {n_epochs:.3g} times; {n_held_out[name]} held out"
                    for name, (share, n_epochs) in usage.items()
                ]
                self.observer.message(f"data: {' | '.join(lines)}")

        self.processes.on_rank_zero(begin)
        return self._train(loop)

    def _resume(self, recipe: Recipe) -> RunResult:
        result = self.processes.on_rank_zero(self.run.result)
        if result is not None:
            self.observer.message(f"{self.run.path}: has finished already")
            return result
        # A process that does not see the run would report its checkpoints as damaged, and the run would restart.
        path = self.run.path.resolve()
        self.processes.check_same(
            lambda: self.run.exists,
            lambda rank, *_: f"{path}: process {rank} does not see this run; all machines must share the folder",
        )
        data = self._open_data(recipe)
        before, now = self.processes.on_rank_zero(lambda: (self.run.environment(), self._environment()))

        def check() -> None:
            if not has_seen_data(self.run):  # an imported model: from now on the run has these data
                check_tokenizer(self.run, data.tokenizer)
                data.tokenizer.save(self.run.tokenizer_folder)
                self.run.add_to_environment(data.identity.record())
            check_data_of_run(self.run, data.identity, "its recipe now names")
            self.run.check_checkpoints_are_own()
            checkpoint_folder.remove_partial(self.run.checkpoints)

        self.processes.on_rank_zero(check)
        loop = TrainingLoop(recipe, data, self.run, self.observer, self.processes)
        self.processes.on_rank_zero(lambda: self._check_validation(loop))
        loop.restore()
        note = self.processes.on_rank_zero(lambda: last_continuation(self.run, recipe))
        if note is not None:
            loop.note(note)
        for key in REPRODUCED_WITH:
            if key in before and before[key] != now[key]:
                loop.note(f"{key} was {before[key]} and is now {now[key]}: no longer bitwise reproducible")
        self.observer.message(f"{self.run.path}: resuming after step {loop.state.step} of {recipe.train.steps}")
        return self._train(loop)

    def _train(self, loop: TrainingLoop) -> RunResult:
        """Train, and write the result. After a signal at the last step the run finishes, then Interrupted is raised."""
        with watch_signals(self.observer.message) as watch:
            began = read_clocks()
            validation = loop.train(watch)
            model = loop.train_state.gathered_model() if is_analysed(loop.recipe.final_model) else None

            def finish() -> RunResult:
                # With several processes, the other ranks would count as unrelated processes.
                share = share_of_others(began, read_clocks()) if self.processes.world_size == 1 else None
                result = run_result(loop, validation, model).with_changes(other_cpu_share=share)
                self.run.write_result(result)
                return result

            result = self.processes.on_rank_zero(finish)
        received = int(self.processes.all_reduce_max(watch.received or 0)[0])
        if received:
            stopped = Interrupted(f"{self.run.path}: has finished; stopped after it", received)
            raise self.processes.on_every_rank(stopped)
        return result

    def _environment(self) -> dict[str, Any]:
        return environment() | {"n_processes": self.processes.world_size, "n_shards": self.processes.n_shards}

    def _open_data(self, recipe: Recipe) -> OpenedData:
        """Open the data: rank 0 verifies every token, then the other ranks open the prepared data on their machines."""
        opened: list[OpenedData] = []
        self.processes.on_rank_zero(lambda: opened.append(self._verified_data(recipe)))
        self.processes.all_gather(
            lambda: None if opened else opened.append(self.data_cache.open(recipe.data, ignore_progress))
        )
        self.processes.check_same(
            lambda: opened[0].identity,
            lambda rank, identity, first: f"data: process {rank} has {identity}; process 0 has {first}",
        )
        return opened[0]

    def _verified_data(self, recipe: Recipe) -> OpenedData:
        data = self.data_cache.open(recipe.data, self.observer.preparing)
        check_vocabulary(recipe.explicit_model.vocab_size, data.tokenizer)
        if recipe.train.distill is not None:
            check_tokenizer(RunDir(recipe.train.distill.teacher), data.tokenizer)
        recipe.held_out(data).check()
        # The run records the checksums, and an invalid token would stop it later.
        self.data_cache.check(recipe.data, self.observer.preparing)
        return data

    def _check_validation(self, loop: TrainingLoop) -> None:
        """Raise UserError if texts and tasks of validations or the teacher differ from the recorded ones.

        A run that another verb made has none recorded, and records them now.
        """
        before = self.run.environment()
        now = _validation_record(loop)
        if before.get(VALIDATION_KEY) is not None:
            for path, *_ in differences(before[VALIDATION_KEY], now.get(VALIDATION_KEY, {})):
                raise UserError(f"{self.run.path}: validation.{path}: differs from the one the run started with")
        step = before.get(TEACHER_KEY)
        if step not in (None, now.get(TEACHER_KEY)):
            raise UserError(
                f"{self.run.path}: train.distill.teacher: is at step {now[TEACHER_KEY]}; must be at step {step}, as "
                "when the run began"
            )
        self.run.add_to_environment({key: value for key, value in now.items() if key not in before})


def _validation_record(loop: TrainingLoop) -> dict[str, Any]:
    """Return the entries of environment.json on the texts and tasks of validations and on the teacher, if any."""
    record = dict[str, Any]()
    identity = loop.sets.identity()
    if any(identity.values()):
        record[VALIDATION_KEY] = identity
    teacher = loop.train_state.objective.teacher
    if teacher is not None:
        record[TEACHER_KEY] = teacher.step
    return record


def apply_changes(run: RunDir, before: Recipe, recipe: Recipe) -> None:
    """Record the changed settings of a run, and reopen a finished run for more steps. The caller holds its lock.

    before: the previous recipe. Raises UserError for fewer steps than the run has made, and if no steps remain.
    """
    result = run.result()
    old = to_data(before.train)
    new = to_data(recipe.train)
    changed = [key for key in new if old[key] != new[key]]
    if result is not None:
        reached = result.steps or before.train.steps
    elif changed:
        newest, _ = checkpoint_folder.latest_valid(run.checkpoints)
        reached = 0 if newest is None else checkpoint_folder.step_of(newest)
    else:
        return
    is_longer = recipe.train.steps > reached
    if changed and (recipe.train.steps < reached or (result is not None and not is_longer)):
        has = "has finished with" if result is not None else "has made"
        least = "more than" if result is not None else "at least"
        raise UserError(
            f"train.steps: got {recipe.train.steps}; must be {least} {reached}, the steps that {run.path} {has}"
        )
    if changed:
        old_values = {f"train.{key}": old[key] for key in changed}
        new_values = {f"train.{key}": new[key] for key in changed}
        run.continue_with(Continuation(after_step=reached, before=old_values, after=new_values))
    if result is not None and is_longer:
        (run.path / RunResult.file_name).replace(run.path / f"result_step_{reached:08}.json")


def last_continuation(run: RunDir, recipe: Recipe) -> str | None:
    """Return a note on the last change of settings, for the result; None without a change."""
    continuations = run.continuations()
    if not continuations:
        return None
    last = continuations[-1]
    text = f"resumed after step {last.after_step} with {last.description}"
    if "train.steps" not in last.after or last.after_step == 0:
        return text
    old_train = checked_copy(recipe.train, "train", steps=last.before.get("train.steps"))
    shorter = checked_copy(recipe, "recipe", train=old_train)
    old_lr = shorter.optimizer.lr * shorter.lr_factor(last.after_step)
    new_lr = recipe.optimizer.lr * recipe.lr_factor(last.after_step + 1)
    return f"{text}; the schedule of {recipe.train.steps:,} steps changes the rate from {old_lr:.3g} to {new_lr:.3g}"
