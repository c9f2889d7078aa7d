"""Where a run stands: what a checkpoint holds besides tensors."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RunState:
    """Counts and losses of the steps done. Floats go through JSON and back unchanged."""

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
    wall_seconds: float = 0.0
    """Spent by all processes that worked on the run."""
    notes: list[str] = field(default_factory=list)
    """What the user should know about the result, such as a damaged checkpoint that was passed over."""

    def __post_init__(self) -> None:
        self.recent_losses = deque(self.recent_losses, maxlen=self.window_steps)

    def add_loss(self, loss: float) -> None:
        """Takes in the loss of one more step."""
        self.recent_losses.append(loss)
        self.unlogged_losses.append(loss)

    def as_data(self) -> dict[str, Any]:
        """The state as plain data; `RunState(**data)` reads it back."""
        return {**vars(self), "recent_losses": list(self.recent_losses)}
