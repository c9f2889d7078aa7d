"""Trackers: each gives the records of a run to a program that draws them."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from widthwise.data.extras import require

PROJECT = "widthwise"
"""Under which trackers file runs, where the user's environment says nothing else."""

Values = Mapping[str, float | str]
"""Name, such as `train/loss`, -> number, or words."""


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker follows."""

    folder: Path
    recipe: Mapping[str, Any]
    """Its resolved recipe as plain data, without the model, whose layers are too many."""
    id: str | None
    """What the tracker called it before, if it has followed the run already."""

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
    """What it calls the run, by which it finds it again."""

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

    def __init__(self, run: TrackedRun):
        writing = require("torch.utils.tensorboard", self.extra)
        self._writer = writing.SummaryWriter(str(run.folder / "tensorboard"), flush_secs=10)
        self.id = "tensorboard"
        if run.id is None:
            self._writer.add_text("recipe", f"```\n{json.dumps(run.recipe, indent=2)}\n```", 0)

    def log(self, step: int, values: Values) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)

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
    """What a record of metrics.jsonl says, by path: `{"event": "train", "loss": 2.5, ...}` -> `{"train/loss": 2.5}`.

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
