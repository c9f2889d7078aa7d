"""Progress of a run: its state, its costs so far, and the logger of its records."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import pydantic

from widthwise.config_io import UserError
from widthwise.recipe.recipe import Recipe
from widthwise.records.run import DESCENTS
from widthwise.run_dir import RunDir
from widthwise.training.observer import Observer
from widthwise.training.processes import Processes


@dataclass
class RunState:
    """Counts and losses of the steps done. Floats go through JSON and back unchanged."""

    __pydantic_config__: ClassVar = pydantic.ConfigDict(extra="forbid")

    window_steps: int
    """Steps the reported training loss is averaged over."""
    step: int = 0
    """Optimizer steps made so far."""
    loader: dict[str, int] = field(default_factory=dict)
    recent_losses: deque[float] = field(default_factory=deque)
    """Training losses of the last `window_steps` steps."""
    unlogged_losses: list[float] = field(default_factory=list)
    """Training losses of the steps since the last record."""
    lowest_loss: float | None = None
    """The lowest loss of all records."""
    width_prices: list[float] = field(default_factory=list)
    """State of the objective: the prices of a width budget, empty without one."""
    grad_norms: list[float] = field(default_factory=list)
    """Gradient norms that the next one is compared with, where `train.on_spike` looks at steps."""
    n_skipped: int = 0
    """How many steps in a row have made no update by now."""
    wall_seconds: float = 0.0
    """Wall time spent by all processes that worked on the run."""
    notes: list[str] = field(default_factory=list)
    """What the user should know about the result, such as a damaged checkpoint that was passed over."""

    def __post_init__(self) -> None:
        self.recent_losses = deque(self.recent_losses, maxlen=self.window_steps)

    def add_loss(self, loss: float) -> None:
        """Takes in the loss of one more step."""
        self.recent_losses.append(loss)
        self.unlogged_losses.append(loss)

    @classmethod
    def read(cls, data: Mapping[str, Any], where: str) -> Self:
        """From the data that `as_data` gave. Raises UserError, which begins with `where`, for others."""
        try:
            return pydantic.TypeAdapter(cls).validate_python(data)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UserError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def as_data(self) -> dict[str, Any]:
        """The state of this moment as plain data; `read` reads it back."""
        return copy.deepcopy({**vars(self), "recent_losses": list(self.recent_losses)})


class Spent(NamedTuple):
    """Tokens and compute spent by the end of a step."""

    step: int = 0
    tokens: int = 0
    training_flops: float = 0.0
    """Every step counted with the model that made it."""

    def until(self, recipe: Recipe, step: int) -> "Spent":
        """Return the costs by a later step under a recipe."""
        flops = recipe.training_flops_until(step) - recipe.training_flops_until(self.step)
        tokens = (step - self.step) * recipe.tokens_per_step
        return Spent(step, self.tokens + tokens, self.training_flops + flops)


def inherited(records: Iterable[Mapping[str, Any]]) -> Spent:
    """Return the costs inherited from a parent run, zero without one. records: of metrics.jsonl."""
    found = [record for record in records if record["event"] in DESCENTS]
    return Spent(**{key: found[-1][key] for key in Spent._fields}) if found else Spent()


class MetricsLogger:
    """Writes the records of a run. Every rank calls it alike; rank 0 writes."""

    def __init__(
        self, run: RunDir, recipe: Recipe, observer: Observer, processes: Processes, note: Callable[[str], None]
    ):
        """note: is told what the user should know."""
        self._run, self._recipe, self._observer, self._processes, self._note = run, recipe, observer, processes, note
        self._steps: dict[str, int] = {}
        self.held_out_losses: dict[int, float] = {}
        """Step -> loss of each validation on record."""
        self._account = Spent()

    def rewind(self, step: int) -> None:
        """Drop the records of steps after this one."""

        def rewound() -> list[dict[str, Any]]:
            self._run.metrics_file.rewind(step)
            if (samples := self._run.samples_file).path.is_file():
                samples.rewind(step)
            return self._run.metrics()

        records = self._processes.on_rank_zero(rewound)
        self._steps = {record["event"]: record["step"] for record in records}
        self.held_out_losses = {r["step"]: r["loss"] for r in records if r["event"] == "validation"}
        self._account = inherited(records)

    def write(self, step: int, event: str, **values: Any) -> None:
        """Adds a record."""
        record = {"step": step, "event": event, **values}
        self._processes.on_rank_zero(lambda: self._append(record))
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

        self._processes.on_rank_zero(replace)

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
