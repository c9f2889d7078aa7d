"""Observers, which receive the progress of a run."""

from pathlib import Path
from typing import Any, Protocol


class Observer(Protocol):
    """Receives the progress of a run; the command line shows it."""

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        """The data is being prepared; see `data.corpus.ProgressCallback`."""

    def opened(self, run: Path) -> None:
        """The run in this folder starts or resumes; following records belong to it."""

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        """Progress of other work: units done in its current stage, and their total if known.

        unit: in the plural, such as `tokens`.
        """

    def busy(self, what: str) -> None:
        """A slow phase began before the next step: `step 1 running (compiling)`."""

    def starting(self, name: str, step: int, n_steps: int) -> None:
        """The run of this name continues after `step` of `n_steps`; a new run after step 0."""

    def step_done(self, step: int) -> None:
        """A step is done."""

    def record(self, record: dict[str, Any]) -> None:
        """A record was written to metrics.jsonl."""

    def remaining(self, seconds: float) -> None:
        """The current experiment will take about this many more seconds."""

    def message(self, text: str) -> None:
        """One line for the user."""

    def beside(self) -> "Observer":
        """Return an observer of another run, which is trained at the same time."""
        ...


class ForwardingObserver(Observer):
    """A base class that forwards everything to another observer."""

    def __init__(self, observer: Observer):
        self._observer = observer

    def beside(self) -> Observer:
        return self._observer.beside()


for _name in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(ForwardingObserver, _name, lambda self, *values, _name=_name: getattr(self._observer, _name)(*values))


class SilentObserver(Observer):
    """An observer that shows nothing."""

    def beside(self) -> "SilentObserver":
        return self
