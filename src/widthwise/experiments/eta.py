"""The runs of an experiment: which of them are at work, and when all will have ended."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from widthwise.recipe.recipe import Recipe
from widthwise.training.observer import ForwardingObserver, Observer


@dataclass(frozen=True)
class Work:
    """The steps that a run has before it, and the FLOPs of one."""

    flops_per_step: float
    n_steps: int

    @classmethod
    def of(cls, recipe: Recipe, start: int = 0) -> "Work":
        """The work of a run that begins after `start` steps. If its model grows, every step counts as the mean one."""
        return cls(recipe.training_flops / recipe.train.steps, recipe.train.steps - start)


Pace = Mapping[float, tuple[int, float]]
"""FLOPs of a step -> how many of those were made, and in how many seconds."""


class Eta:
    """The place of each run among all, and the time left for all.

    A step takes what steps of as many FLOPs have taken before, or else as much as its FLOPs at the mean rate.
    """

    def __init__(self, observer: Observer, works: Mapping[str, Work], further: Sequence[Work] = ()):
        """works: run -> its work, in order, whether done or not. further: the work of runs that are not known yet."""
        self.observer, self._works, self._further = observer, dict(works), list(further)
        self._places = {run: place for place, run in enumerate(works, start=1)}
        self._n_runs = len(works) + len(further)
        self._present: dict[str, _RunObserver] = {}
        self._waiting: list[str] = []
        self._elsewhere: list[list[str]] = []
        self._measured: Pace = {}

    def add(self, run: str, work: Work) -> None:
        """Make a run known, in place of a further one."""
        self._further = self._further[1:]
        self._works[run] = work
        self._places.setdefault(run, len(self._places) + 1)

    @contextmanager
    def at_work_on(
        self,
        run: str,
        waiting: Iterable[str],
        elsewhere: Iterable[Iterable[str]] = (),
        observer: Observer | None = None,
    ) -> Iterator[Observer]:
        """Gives the observer of a run that is trained in the block; several runs may be at work at the same time.

        waiting: the runs that nobody has begun. elsewhere: for each worker on another eta, the runs it has taken.
        observer: what shows this run; default: what shows all.
        """
        self._waiting, self._elsewhere = list(waiting), [list(runs) for runs in elsewhere]
        present = _RunObserver(self, f"run {self._places[run]} of {self._n_runs}", observer or self.observer)
        present.work = self._works[run]
        self._present[run] = present
        try:
            yield present
        finally:
            self._measured = present.added_to(self._measured)
            del self._present[run]

    def seconds_left(self) -> float:
        """Until the end of all runs, if as many of them go on at a time as now. Needs one step that was made."""
        measured = self._measured
        for present in self._present.values():
            measured = present.added_to(measured)
        n_flops = sum(flops * steps for flops, (steps, _) in measured.items())
        rate = n_flops / max(sum(seconds for _, seconds in measured.values()), 1e-9)

        def seconds_of(work: Work, n_steps: int) -> float:
            steps, seconds = measured.get(work.flops_per_step, (1, work.flops_per_step / rate))
            return n_steps * seconds / steps

        def seconds_of_all(runs: Iterable[str]) -> float:
            return sum(seconds_of(self._works[run], self._works[run].n_steps) for run in runs)

        own = [seconds_of(present.work, present.n_steps_left) for present in self._present.values()]
        half_done = sum(map(seconds_of_all, self._elsewhere)) / 2
        further = sum(seconds_of(work, work.n_steps) for work in self._further)
        together = sum(own) + seconds_of_all(self._waiting) + further + half_done
        return max(*own, together / (len(own) + len(self._elsewhere)))


class _RunObserver(ForwardingObserver):
    """The observer of one run at work."""

    work: Work

    def __init__(self, eta: Eta, place: str, observer: Observer):
        super().__init__(observer)
        self._eta, self._place = eta, place
        self._first = self._step = 0
        self._n_steps: int | None = None
        self._began = 0.0
        self._before: Pace = {}
        """Measured of this run before it went back to an earlier step."""

    @property
    def n_steps_left(self) -> int:
        return self.work.n_steps if self._n_steps is None else self._n_steps - self._step

    def added_to(self, measured: Pace) -> Pace:
        """What was measured, the steps of this run included."""
        found = [each.get(self.work.flops_per_step, (0, 0.0)) for each in (measured, self._before)]
        if self._step > self._first:
            found.append((self._step - self._first, time.monotonic() - self._began))
        n_steps, seconds = map(sum, zip(*found))
        return {**measured, self.work.flops_per_step: (n_steps, seconds)} if n_steps else measured

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._before = self.added_to({})
        self._first = self._step = step
        self._n_steps, self._began = n_steps, time.monotonic()
        super().starting(f"{self._place}, {name}", step, n_steps)

    def step_done(self, step: int) -> None:
        self._step = step
        super().step_done(step)

    def record(self, record: dict[str, Any]) -> None:
        if record["event"] == "train":
            self._step = record["step"]  # of which step_done comes after
            self.remaining(self._eta.seconds_left())
        super().record(record)
