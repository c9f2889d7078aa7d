"""Observers, which receive the progress of a run, and trackers, which send its records to programs that plot them.

An error of a tracker does not stop the run.
"""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from widthwise.config_io import check_one_of, require
from widthwise.files import read_text
from widthwise.records.record import SealedFile
from widthwise.run_dir import RunDir
from widthwise.training.launch import is_silent
from widthwise.yaml_io import parse_yaml


class Observer(Protocol):
    """Receives the progress of a run; the command line shows it."""

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        """The data is being prepared; see `data.corpus.ProgressCallback`."""

    def opened(self, run: Path) -> None:
        """The run in this folder starts or resumes; the following records belong to it."""

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        """Other work progresses: n_done units of its current stage are done. n_total: None if unknown.

        unit: in the plural, such as `tokens`.
        """

    def busy(self, what: str) -> None:
        """A slow phase began before the next step: `step 1 running (compiling)`."""

    def starting(self, name: str, step: int, n_steps: int) -> None:
        """The run of this name continues after `step` of `n_steps`; for a new run, `step` is 0."""

    def step_done(self, step: int) -> None:
        """A step is done."""

    def record(self, record: dict[str, Any]) -> None:
        """A record was written to metrics.jsonl."""

    def remaining(self, seconds: float) -> None:
        """The current experiment will take about this many more seconds."""

    def message(self, text: str) -> None:
        """One line for the user."""

    def for_parallel_run(self) -> "Observer":
        """Return an observer of another run that is trained at the same time."""
        return self


class ForwardingObserver(Observer):
    """A base class whose methods, added below, call the same method of another observer."""

    def __init__(self, observer: Observer):
        self._observer = observer


for _name in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(ForwardingObserver, _name, lambda self, *values, name=_name: getattr(self._observer, name)(*values))


class SilentObserver(Observer):
    """An observer that shows nothing."""


Values = Mapping[str, float | str]
"""Name, such as `train/loss`, -> number or text."""


class Tracker(ABC):
    """Sends the records of one run to one program. Errors propagate; the caller disables the tracker."""

    def __init__(self, run: RunDir, recipe: Mapping[str, Any]):
        """recipe: resolved, as plain data, without `model`, which lists every layer."""
        self.run = run
        self.sent: dict[str, int] = {}
        """Event -> last step whose record was sent."""

    def send(self, record: Mapping[str, Any]) -> None:
        """Log a record of metrics.jsonl, unless it was sent before."""
        if record["step"] > self.sent.get(record["event"], -1):
            self.log(record["step"], values_of(record))
            self.sent[record["event"]] = record["step"]

    @abstractmethod
    def log(self, step: int, values: Values) -> None:
        """Log the values of one record."""

    @abstractmethod
    def close(self) -> None:
        """Write buffered records."""


class TensorBoardTracker(Tracker):
    """Event files in the folder of the run: numbers as scalars of double precision, text as text.

    A resumed run rewrites them with all records, so that none is shown twice.
    """

    def __init__(self, run: RunDir, recipe: Mapping[str, Any]):
        super().__init__(run, recipe)
        tensorboard = require("torch.utils.tensorboard", "tensorboard")
        folder = run.path / "tensorboard"
        for earlier in folder.glob("events.out.tfevents.*"):
            earlier.unlink()
        # purge_step clears earlier records in an open browser.
        self._writer = tensorboard.SummaryWriter(str(folder), purge_step=0)
        self._writer.add_text("recipe", f"```\n{json.dumps(recipe, indent=2)}\n```", 0)

    def log(self, step: int, values: Values) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker(Tracker):
    """One row of the W&B history for each record, offline in the folder of the run unless WANDB_MODE is set.

    `tracking.json` in that folder has the ID of the W&B run and the last logged step of each event, as of the last
    start or close.
    """

    def __init__(self, run: RunDir, recipe: Mapping[str, Any]):
        super().__init__(run, recipe)
        wandb = require("wandb", "wandb")
        self._file = SealedFile(run.path / "tracking.json")
        state = self._file.read() if self._file.path.is_file() else {}
        self._id = state.get("id") or uuid4().hex[:12]
        self.sent = state.get("sent", {})
        folder = run.path.resolve()
        group = folder.parent
        if group.name == "runs" and (group.parent / "planned.json").exists():  # a run of an experiment
            group = group.parent
        self._history = wandb.init(
            id=self._id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", "widthwise"),
            name=folder.name,
            group=group.name,
            dir=str(run.path),
            config=dict(recipe),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",  # a process may train several runs
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        self._history.define_metric("*", step_metric="step")
        self._save_state()  # a run that stops before its first record keeps its ID

    def log(self, step: int, values: Values) -> None:
        self._history.log({**values, "step": step})

    def close(self) -> None:
        self._history.finish(exit_code=0 if self.run.has_result else 1)
        if self.run.exists:  # otherwise it was moved or deleted
            self._save_state()

    def _save_state(self) -> None:
        self._file.write({"id": self._id, "sent": self.sent})


TRACKERS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker}
"""Name of an option, which is also the module and the extra that installs it -> tracker."""


def values_of(record: Mapping[str, Any]) -> dict[str, float | str]:
    """Flatten a record of metrics.jsonl by path: `{"event": "train", "loss": 2.5, ...}` -> `{"train/loss": 2.5}`.

    Entries of lists are numbered from 1, like layers. Nulls are omitted, because trackers cannot plot them.
    """

    def flatten(path: str, value: Any) -> Iterator[tuple[str, float | str]]:
        if isinstance(value, list):
            value = dict(enumerate(value, start=1))
        if isinstance(value, Mapping):
            for key, entry in value.items():
                yield from flatten(f"{path}/{key}", entry)
        elif value is not None:
            yield path, value

    entries = {key: value for key, value in record.items() if key not in ("step", "event")}
    return dict(flatten(record["event"], entries))


@contextmanager
def tracked(observer: Observer | None, names: Sequence[str]) -> Iterator[Observer]:
    """Provide an observer that also sends the records of every run to trackers; only on rank 0.

    names: keys of TRACKERS. Raises UserError for an unknown name, and if the extra of a tracker is not installed.
    """
    observer = observer or SilentObserver()
    for name in names:
        check_one_of("track", name, TRACKERS)
        if not is_silent():
            require(name, name)
    if not names or is_silent():
        yield observer
        return
    with ExitStack() as stack:
        yield _TrackingObserver(observer, list(dict.fromkeys(names)), stack)


class _TrackingObserver(ForwardingObserver):
    """Sends the records of one run at a time to trackers, and forwards all calls to another observer.

    The first error of a tracker disables it for this run, with a message.
    """

    def __init__(self, observer: Observer, names: Sequence[str], stack: ExitStack):
        """names: keys of TRACKERS. stack: closes the trackers of the last run."""
        super().__init__(observer)
        self._names = names
        self._stack = stack
        self._folder = Path()
        self._trackers: dict[str, Tracker] = {}
        stack.callback(self._close)

    def opened(self, run: Path) -> None:
        super().opened(run)
        self._close()
        self._folder = run
        config = run / "config.yaml"
        for name in self._names:
            with self._disable_on_error(name):
                recipe = parse_yaml(read_text(config), str(config))
                recipe = {key: value for key, value in recipe.items() if key != "model"}
                self._trackers[name] = TRACKERS[name](RunDir(run), recipe)
                for record in RunDir(run).metrics():
                    self._trackers[name].send(record)

    def record(self, record: dict[str, Any]) -> None:
        super().record(record)
        for name, tracker in list(self._trackers.items()):
            with self._disable_on_error(name):
                tracker.send(record)

    def for_parallel_run(self) -> "_TrackingObserver":
        return _TrackingObserver(self._observer.for_parallel_run(), self._names, self._stack)

    def _close(self) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._disable_on_error(name):
                tracker.close()
        self._trackers.clear()

    @contextmanager
    def _disable_on_error(self, name: str) -> Iterator[None]:
        """Disable a tracker if the block fails. Print its output on stderr: stdout is for the command's result."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            self._trackers.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self.message(f"{self._folder}: --track {name} failed; the run continues without it ({reason})")
