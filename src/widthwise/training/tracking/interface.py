"""What a tracker is: it receives the records of a run and keeps them for a program that draws them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

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

    def rewind(self, step: int) -> None:  # noqa: B027 (most cannot take anything back)
        """The run goes back to a step: later values are void, if they can still be withdrawn."""

    @abstractmethod
    def close(self, is_finished: bool) -> None:
        """Writes what is not written yet. is_finished: whether the run has a result."""


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
