"""Observers, which receive the progress of a run."""

from pathlib import Path
from typing import Any, Protocol


class Observer(Protocol):
    """Receives the progress of a run; the command line shows it."""

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        """The data is being prepared; see `data.documents.ProgressCallback`."""

    def opened(self, run: Path) -> None:
        """The run in this folder, new or resumed, is about to go on; records are of this run until the next one."""

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        """Progress of other work: how much of its present stage is done, and of how much, if that is known.

        unit: what is counted, in the plural, such as `tokens`.
        """

    def busy(self, what: str) -> None:
        """A phase that may take long began before the next step: `step 1 running (compiling)`."""

    def starting(self, name: str, step: int, n_steps: int) -> None:
        """The run of this name continues after `step` of `n_steps`; a new run after step 0."""

    def step_done(self, step: int) -> None:
        """A step is done."""

    def record(self, record: dict[str, Any]) -> None:
        """A record was written to metrics.jsonl."""

    def remaining(self, seconds: float) -> None:
        """All runs of the experiment, of which the present one is part, will be done in about this many seconds."""

    def message(self, text: str) -> None:
        """One line the user should see."""

    def beside(self) -> "Observer":
        """An observer of another run, which is trained at the same time."""
        ...


class ForwardingObserver(Observer):
    """Passes everything on to another observer: the base of those that do something besides."""

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
