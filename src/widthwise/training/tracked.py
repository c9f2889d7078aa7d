"""Records of runs for trackers, programs that draw them, and what keeps a tracker from disturbing a run."""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from widthwise.config_io import UserError, require
from widthwise.files import read_text
from widthwise.records.record import SealedFile
from widthwise.run_dir import RunDir
from widthwise.training.launch import is_silent
from widthwise.training.observer import ForwardingObserver, Observer, SilentObserver
from widthwise.yaml_io import parse_yaml

PROJECT = "widthwise"
"""Project of a tracker in which runs are filed, where the user's environment names no other."""

Values = Mapping[str, float | str]
"""Name, such as `train/loss`, -> number, or words."""


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker follows."""

    folder: Path
    recipe: Mapping[str, Any]
    """Its resolved recipe as plain data, without the model, whose layers are too many."""
    id: str | None
    """The tracker's name for it, if it has followed the run already."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def group(self) -> str:
        """Name of the folder above, or of the experiment that the run belongs to."""
        parent = self.folder.resolve().parent
        return (
            parent.parent.name if parent.name == "runs" and (parent.parent / "planned.json").exists() else parent.name
        )


class Tracker(ABC):
    """One run in one program. Whatever goes wrong is raised; the run goes on without the tracker then."""

    module: ClassVar[str]
    """Name of the Python module of the program, which is imported when it is first needed."""
    extra: ClassVar[str]
    """Name of the extra that installs that module."""

    id: str
    """Its name for the run, by which it finds it again."""
    survives_kills: ClassVar[bool] = False
    """True if a record is in a file once `log` returns; otherwise only once `close` does."""

    @abstractmethod
    def __init__(self, run: TrackedRun):
        """Begins, or goes on where `run.id` was left."""

    @abstractmethod
    def log(self, step: int, values: Values) -> None:
        """Takes the numbers of one record of metrics.jsonl. step: of the record."""

    @abstractmethod
    def close(self, is_finished: bool) -> None:
        """Writes what is not written yet. is_finished: whether the run has a result."""


class TensorBoardTracker(Tracker):
    """Event files in the folder of the run, which `tensorboard --logdir runs` shows: numbers as scalars of double
    precision, words as text."""

    module, extra = "tensorboard", "tensorboard"
    survives_kills = True

    def __init__(self, run: TrackedRun):
        writing = require("torch.utils.tensorboard", self.extra)
        self._writer = writing.SummaryWriter(str(run.folder / "tensorboard"))
        self.id = "tensorboard"
        if run.id is None:
            self._writer.add_text("recipe", f"```\n{json.dumps(run.recipe, indent=2)}\n```", 0)

    def log(self, step: int, values: Values) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)
        self._writer.flush()

    def close(self, is_finished: bool) -> None:
        self._writer.close()


class WandbTracker(Tracker):
    """One row of the history for each record: offline in the folder of the run, unless WANDB_MODE says otherwise;
    `wandb sync` sends it."""

    module, extra = "wandb", "wandb"

    def __init__(self, run: TrackedRun):
        wandb = require("wandb", self.extra)
        self.id = run.id or uuid4().hex[:12]
        self._run = wandb.init(
            id=self.id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            group=run.group,
            dir=str(run.folder),
            config=dict(run.recipe),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",  # several runs may be at work in one process
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Values) -> None:
        self._run.log({**values, "step": step})

    def close(self, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)


def values_of(record: Mapping[str, Any]) -> dict[str, float | str]:
    """Flatten a record of metrics.jsonl by path: `{"event": "train", "loss": 2.5, ...}` -> `{"train/loss": 2.5}`.

    Entries of lists are counted from 1, as layers are. Nulls are left out: no program can draw them.
    """
    entries = {key: value for key, value in record.items() if key not in ("step", "event")}
    return dict(flat(record["event"], entries))


def flat(path: str, value: Any) -> Iterator[tuple[str, float | str]]:
    """Path and value of everything in plain data that is neither null nor a container."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from flat(f"{path}/{key}", entry)
    elif isinstance(value, list):
        for number, entry in enumerate(value, start=1):
            yield from flat(f"{path}/{number}", entry)
    elif value is not None:
        yield path, value


TRACKERS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker}
STATE = "tracking.json"
"""File of a run: for each tracker its name for the run, and the last step of each event that it surely has."""


@contextmanager
def tracked(observer: Observer | None, names: Sequence[str]) -> Iterator[Observer]:
    """An observer that also sends the records of every run to trackers, names of TRACKERS; only in the first process.

    Raises UserError for a name that there is not, and where the extra of a tracker is not installed.
    """
    shown = observer or SilentObserver()
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"track: got {name!r}; allowed: {', '.join(TRACKERS)}")
        if not is_silent():
            require(TRACKERS[name].module, TRACKERS[name].extra)
    if not names or is_silent():
        yield shown
        return
    family: list[_Tracked] = []
    try:
        yield _Tracked(shown, list(dict.fromkeys(names)), family)
    finally:
        for each in family:
            each.close()


class _Tracked(ForwardingObserver):
    """Shows what another observer shows, and sends records to trackers."""

    def __init__(self, observer: Observer, names: Sequence[str], family: "list[_Tracked]"):
        """family: all observers of the same command, each of which looks after one run at a time."""
        super().__init__(observer)
        self._names, self._family = names, family
        self._followers: list[_Follower] = []
        family.append(self)

    def opened(self, run: Path) -> None:
        super().opened(run)
        self.close()
        self._followers = [_Follower(name, run, self.message) for name in self._names]

    def record(self, record: dict[str, Any]) -> None:
        super().record(record)
        for each in self._followers:
            each.take([record])

    def close(self) -> None:
        followers, self._followers = self._followers, []
        for each in followers:
            each.close()

    def beside(self) -> "_Tracked":
        return _Tracked(self._observer.beside(), self._names, self._family)


class _Follower:
    """One tracker of one run. The first error ends it, with a message, and nothing else.

    A resumed run, or one that is tracked only now, is completed from metrics.jsonl. Each record is sent once; after a
    kill, a tracker that does not survive kills gets those again that it has taken since it was opened.
    """

    def __init__(self, name: str, folder: Path, say: Callable[[str], None]):
        self._name, self._folder, self._say = name, folder, say
        self._tracker: Tracker | None = None
        self._sent: dict[str, int] = {}
        with self._harmless():
            known, path = self._state().get(name, {}), folder / "config.yaml"
            self._sent = dict(known.get("sent", {}))
            recipe = {key: value for key, value in parse_yaml(read_text(path), str(path)).items() if key != "model"}
            self._tracker = TRACKERS[name](TrackedRun(folder, recipe, known.get("id")))
            self._keep_state()  # a run that stops before its first record is found again
            self.take(RunDir(folder).metrics())

    def take(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Sends what has not been sent."""
        with self._harmless():
            before = dict(self._sent)
            for record in records:
                if record["step"] > self._sent.get(record["event"], -1):
                    if self._tracker is None:
                        return
                    self._tracker.log(record["step"], values_of(record))
                    self._sent[record["event"]] = record["step"]
            if self._sent != before and self._tracker is not None and self._tracker.survives_kills:
                self._keep_state()

    def close(self) -> None:
        with self._harmless():
            if self._tracker is not None:
                self._tracker.close(RunDir(self._folder).has_result)
                self._keep_state()
        self._tracker = None

    def _state(self) -> dict[str, Any]:
        path = self._folder / STATE
        return SealedFile(path).read() if path.is_file() else {}

    def _keep_state(self) -> None:
        if self._tracker is not None and RunDir(self._folder).exists:  # else it was moved or deleted meanwhile
            state = {**self._state(), self._name: {"id": self._tracker.id, "sent": self._sent}}
            SealedFile(self._folder / STATE).write(state)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Standard output belongs to the answer of the verb, whatever a tracker has to say."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            self._tracker = None
            reason = " ".join(str(error).split()) or type(error).__name__
            self._say(f"{self._folder}: --track {self._name} failed; the run continues without it ({reason})")
