"""The runs of an experiment: which of them is at work, and when all will have ended."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from widthwise.recipe.recipe import Recipe
from widthwise.training.observer import Observer


@dataclass(frozen=True)
class Work:
    """The steps that a run has before it, and the FLOPs of one."""

    flops_per_step: float
    n_steps: int

    @classmethod
    def of(cls, recipe: Recipe, start: int = 0) -> "Work":
        """The work of a run that begins after `start` steps. If its model grows, every step counts as the mean one."""
        return cls(recipe.training_flops / recipe.train.steps, recipe.train.steps - start)


class Agenda:
    """An observer of all runs, which tells another one the place of each among them, and the time left for all.

    A step takes what steps of as many FLOPs have taken in this process, or else as much as its FLOPs at the mean rate.
    """

    def __init__(self, observer: Observer, works: Mapping[str, Work]):
        """works: run -> what it has to do, in order, whether done or not."""
        self._observer, self._works = observer, dict(works)
        self._places = {run: place for place, run in enumerate(works, start=1)}
        self._run, self._waiting = "", list[str]()
        self._elsewhere: list[list[str]] = []
        self._first = self._step = self._n_steps = 0
        self._began = time.monotonic()
        self._measured: dict[float, tuple[int, float]] = {}
        """FLOPs of a step -> how many of those were made, and in how many seconds, in runs before this one."""

    def begin(self, run: str, waiting: Iterable[str], elsewhere: Iterable[Iterable[str]] = ()) -> None:
        """The next run of this process; of the others those that wait, and for each other worker those it has taken."""
        self._measured = self._with_present()
        self._run, self._waiting = run, list(waiting)
        self._elsewhere = [list(runs) for runs in elsewhere]
        self._first = self._step = 0

    def _with_present(self) -> dict[float, tuple[int, float]]:
        """What was measured, the present run included."""
        n_steps = self._step - self._first
        if n_steps <= 0:
            return self._measured
        key = self._works[self._run].flops_per_step
        steps, seconds = self._measured.get(key, (0, 0.0))
        return self._measured | {key: (steps + n_steps, seconds + time.monotonic() - self._began)}

    def seconds_left(self) -> float:
        """Until the end of all runs, if as many processes go on as are at work now. Needs one step that was made."""
        measured = self._with_present()
        n_flops = sum(flops * steps for flops, (steps, _) in measured.items())
        rate = n_flops / max(sum(seconds for _, seconds in measured.values()), 1e-9)

        def seconds_of(run: str, n_steps: int | None = None) -> float:
            work = self._works[run]
            steps, seconds = measured.get(work.flops_per_step, (1, work.flops_per_step / rate))
            return (work.n_steps if n_steps is None else n_steps) * seconds / steps

        own = seconds_of(self._run, self._n_steps - self._step)
        half_done = sum(seconds_of(run) for runs in self._elsewhere for run in runs) / 2
        together = own + sum(map(seconds_of, self._waiting)) + half_done
        return max(own, together / (1 + len(self._elsewhere)))

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        self._observer.preparing(stage, n_bytes, n_bytes_total)

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._measured = self._with_present()  # a run that went back starts again
        self._first = self._step = step
        self._n_steps, self._began = n_steps, time.monotonic()
        self._observer.starting(f"run {self._places[self._run]} of {len(self._places)}, {name}", step, n_steps)

    def step_done(self, step: int) -> None:
        self._step = step
        self._observer.step_done(step)

    def record(self, record: dict[str, Any]) -> None:
        if record["event"] == "train":
            self._step = record["step"]  # of which step_done comes after
            self._observer.remaining(self.seconds_left())
        self._observer.record(record)

    def remaining(self, seconds: float) -> None:
        self._observer.remaining(seconds)

    def message(self, text: str) -> None:
        self._observer.message(text)
