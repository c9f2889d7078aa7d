"""What becomes of a run whose loss or gradient spikes.

A run has diverged where a loss or a gradient norm is not finite, or the logged loss is far above the lowest one. Every
process of a run decides alike, because those numbers are of all processes.
"""

import math
import statistics
from abc import ABC
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config


class _SpikePolicy(Config, ABC):
    """Lets every step make its update, and a run that has diverged stop."""

    looks_at_steps: ClassVar[bool] = False
    """Whether `admits` is asked before each update, for which the step waits for the device."""

    @property
    def n_norms(self) -> int:
        """How many gradient norms `admits` looks back on."""
        return 0

    def admits(self, grad_norm: float, earlier: Sequence[float]) -> bool:
        """Whether a step makes its update. earlier: norms of the last steps that made theirs, at most `n_norms`."""
        return True

    def endures(self, n_skipped: int) -> bool:
        """Whether a run goes on after so many steps in a row without an update."""
        return True


class StopAtSpike(_SpikePolicy):
    """A run that has diverged stops; its last good checkpoint remains. Costs nothing."""

    kind: Literal["stop"] = "stop"


class SkipSpike(_SpikePolicy):
    """A step whose gradient is not finite or far above the usual makes no update; its batch is passed over.

    Weights, optimizer state and width prices stay as they were; the learning rate goes on. Costs one wait for the
    device in each step, which otherwise runs ahead of it, and among several processes one message.
    """

    looks_at_steps: ClassVar[bool] = True
    kind: Literal["skip"] = "skip"
    factor: float = Field(default=10.0, gt=1, allow_inf_nan=False)
    """How many times the median norm of the last `window_steps` updates a gradient norm may be."""
    window_steps: Annotated[int, Field(gt=0, le=100_000)] = 100
    """Before there were so many updates, only norms that are not finite count; a model that has grown starts anew."""
    max_skipped: pydantic.PositiveInt = 5
    """Most steps in a row without an update; with one more the run stops."""

    @property
    def n_norms(self) -> int:
        return self.window_steps

    def admits(self, grad_norm: float, earlier: Sequence[float]) -> bool:
        if not math.isfinite(grad_norm):
            return not earlier  # a first step that is not finite says that something else is wrong
        return len(earlier) < self.window_steps or grad_norm <= self.factor * statistics.median(earlier)

    def endures(self, n_skipped: int) -> bool:
        return n_skipped <= self.max_skipped


SpikePolicy = Annotated[StopAtSpike | SkipSpike, Field(discriminator="kind")]
