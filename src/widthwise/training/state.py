"""Progress of a run: its state, its costs so far, and divergence."""

import copy
import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pydantic

from widthwise.config_io import parse
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.run import GrowthRecord


class RunState(pydantic.BaseModel):
    """Counts and losses of the steps so far, which change with each step. Floats survive JSON unchanged."""

    model_config = pydantic.ConfigDict(extra="forbid")

    window_steps: int
    """Number of steps in the mean of the reported training loss."""
    step: int = 0
    """Number of optimizer steps so far."""
    loader: dict[str, int] = {}
    """State of `Loader.state_dict`; empty if no data was read."""
    recent_losses: deque[float] = deque()
    """Training losses of the last `window_steps` steps."""
    unlogged_losses: list[float] = []
    """Training losses of the steps since the last record."""
    lowest_loss: float | None = None
    """The lowest loss of all records."""
    width_prices: list[float] = []
    """State of the objective: the prices of a width budget, empty without one."""
    grad_norms: list[float] = []
    """Recent gradient norms, which `train.on_spike` compares with the next one."""
    n_skipped: int = 0
    """Number of consecutive steps without an update."""
    wall_seconds: float = 0.0
    """Wall time of the run, including earlier processes before a restart."""
    notes: list[str] = []
    """Remarks for the user on the result, such as a damaged checkpoint."""

    def model_post_init(self, _: Any) -> None:
        self.recent_losses = deque(self.recent_losses, maxlen=self.window_steps)

    def as_data(self) -> dict[str, Any]:
        """Return a copy of the state as plain data, from which `parse` makes an equal one."""
        return copy.deepcopy({**vars(self), "recent_losses": list(self.recent_losses)})


class Spent(NamedTuple):
    """Tokens and compute spent up to a step."""

    step: int = 0
    tokens: int = 0
    training_flops: float = 0.0
    """Each step is counted with its model."""

    def until(self, recipe: Recipe, step: int) -> "Spent":
        """Return the costs up to a later step that is reached with a recipe."""
        flops = recipe.training_flops_until(step) - recipe.training_flops_until(self.step)
        tokens = (step - self.step) * recipe.tokens_per_step
        return Spent(step, self.tokens + tokens, self.training_flops + flops)


def inherited(records: Iterable[Mapping[str, Any]]) -> Spent:
    """Return the costs of the parent run up to the growth into this run; 0 without one. records: of `metrics.jsonl`."""
    growths = [record for record in records if record["event"] == "grown"]
    if not growths:
        return Spent()
    growth = parse(GrowthRecord, growths[-1], "metrics.jsonl: grown")
    return Spent(growth.step, growth.tokens, growth.training_flops)


class Diverged(Exception):
    """The divergence of a run, which must stop after this step."""

    def __init__(self, step: int, reason: str):
        super().__init__(reason)
        self.step = step
        self.reason = reason


def check_step(config: TrainConfig, step: int, loss: float, grad_norm: float, n_skipped: int) -> None:
    """Raise Diverged for a loss or gradient norm that is not finite, and for too many skipped steps.

    n_skipped: number of consecutive steps without an update, see `train_state.StepOutcome`.
    """
    values = f"loss {loss:.4g}, gradient norm {grad_norm:.4g}"
    if n_skipped > config.on_spike.max_skipped:
        reason = f"{n_skipped} steps in a row without an update (train.on_spike), the last with {values}"
        raise Diverged(step, reason)
    if n_skipped == 0 and not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise Diverged(step, values)


def checked_loss(config: TrainConfig, state: RunState) -> float:
    """Return the mean loss since the last record. Raises Diverged if it is far above the lowest loss of all records."""
    loss = statistics.fmean(state.unlogged_losses)
    lowest = state.lowest_loss
    if lowest is not None and loss > lowest + config.max_loss_rise:
        reason = f"loss {loss:.4g}, above the lowest ({lowest:.4g}) by train.max_loss_rise = {config.max_loss_rise:g}"
        raise Diverged(state.step, reason)
    return loss
