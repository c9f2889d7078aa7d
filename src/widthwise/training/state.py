"""The state of a run: what a checkpoint holds besides tensors."""

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import pydantic

from widthwise.config_io import UserError


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
