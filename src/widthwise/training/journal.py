"""The records of a run at work, and what they say of its past."""

from collections.abc import Callable
from typing import Any

from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.training.compute import Spent, inherited
from widthwise.training.observer import Observer
from widthwise.training.processes import Processes


class Journal:
    """Every process has one, and all call it alike; the first one writes."""

    def __init__(
        self, run: RunDir, recipe: Recipe, observer: Observer, processes: Processes, note: Callable[[str], None]
    ):
        """note: is told what the user should know."""
        self._run, self._recipe, self._observer, self._processes, self._note = run, recipe, observer, processes, note
        self._steps: dict[str, int] = {}
        self.held_out_losses: dict[int, float] = {}
        """Step -> loss of each validation on record."""
        self._account = Spent()

    def take_up(self, step: int) -> None:
        """Goes on after a step: drops the records of later ones."""

        def rewound() -> list[dict[str, Any]]:
            self._run.metrics_file.rewind(step)
            if (samples := self._run.samples_file).path.is_file():
                samples.rewind(step)
            return self._run.metrics()

        records = self._processes.first(rewound)
        self._steps = {record["event"]: record["step"] for record in records}
        self.held_out_losses = {r["step"]: r["loss"] for r in records if r["event"] == "validation"}
        self._account = inherited(records)

    def write(self, step: int, event: str, **values: Any) -> None:
        """Adds a record."""
        record = {"step": step, "event": event, **values}
        self._processes.first(lambda: self._append(record))
        self._steps[event] = step
        if event == "validation":
            self.held_out_losses[step] = values["loss"]
        self._observer.record(record)

    def write_samples(self, step: int, records: list[dict[str, Any]]) -> None:
        """Adds the texts of a step, before its validation is on record: a kill in between makes them again."""

        def replace() -> None:
            self.follow()
            self._run.samples_file.rewind(step - 1)
            self._run.samples_file.append(records)

        self._processes.first(replace)

    def write_with_costs(self, step: int, event: str, **values: Any) -> None:
        """Adds a record with the tokens and the compute spent by then."""
        _, tokens, training_flops = self.spent(step)
        self.write(step, event, tokens=tokens, training_flops=training_flops, **values)

    def _append(self, record: dict[str, Any]) -> None:
        self.follow()
        self._run.metrics_file.append([record])

    def follow(self) -> None:
        """Goes where somebody has moved the run's folder, and notes it. Raises RunFailed where it is gone."""
        before = self._run.path
        if self._run.follow():
            self._note(f"{before}: was moved to {self._run.path} while the run was at work; it goes on there")

    def last_step(self, event: str) -> int:
        """The step of the last such record, 0 where there is none."""
        return self._steps.get(event, 0)

    def spent(self, step: int) -> Spent:
        """Tokens and compute by a step, those included that the run it comes from spent."""
        return self._account.until(self._recipe, step)
