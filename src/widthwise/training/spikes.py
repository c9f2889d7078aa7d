"""Loss spikes: which steps make their update, and when a run has diverged."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from widthwise.recipe.train_section import SpikePolicy, StopAtSpike, TrainConfig
from widthwise.records.record import finite
from widthwise.run_dir import RunDiverged
from widthwise.training.processes import ALONE, Processes
from widthwise.training.state import RunState

SPIKE_NATS = 0.5
"""How far a record of the training loss must lie above an earlier one to be named; batches differ by less."""


class Diverged(Exception):
    """A step after which the run cannot simply go on."""

    def __init__(self, step: int, reason: str):
        super().__init__(reason)
        self.step, self.reason = step, reason

    def failure(self, run: Path, n_steps: int, lr: float, saved_step: int) -> RunDiverged:
        """Return the error that stops the run. saved_step: of its last checkpoint, or 0."""
        kept = f"the checkpoint of step {saved_step} is kept" if saved_step else "there is no checkpoint"
        message = (
            f"{run}: stopped at step {self.step} of {n_steps}: {self.reason}; the learning rate was {lr:.4g}, try a "
            f"lower optimizer.lr or more schedule.warmup_steps; {kept}"
        )
        return RunDiverged(message, self.step)


class Gate:
    """Decides before each update of one model whether it is made, alike in all processes."""

    def __init__(self, policy: SpikePolicy, processes: Processes):
        self._policy, self._processes = policy, processes
        self._norms: deque[float] = deque(maxlen=policy.window_steps)
        self._n_skipped = 0

    def n_skipped(self, grad_norm: Tensor) -> int:
        """0 for a step that makes its update; the k-th in a row that does not has k. Waits for the device if it looks.

        grad_norm: of all processes, before clipping.
        """
        if isinstance(self._policy, StopAtSpike):
            return 0
        found = grad_norm.item()
        (norm,) = self._processes.all_reduce_max(found if math.isfinite(found) else math.inf)
        if self._policy.admits(norm, self._norms):
            self._norms.append(norm)
            self._n_skipped = 0
        else:
            self._n_skipped += 1
        return self._n_skipped

    def save_to(self, state: RunState) -> None:
        """Puts down what later decisions depend on."""
        state.grad_norms, state.n_skipped = list(self._norms), self._n_skipped

    def load(self, state: RunState) -> None:
        """Goes on as `save_to` left it."""
        self._norms.clear()
        self._norms.extend(state.grad_norms)
        self._n_skipped = state.n_skipped


ALWAYS_OPEN = Gate(StopAtSpike(), ALONE)


def skipped_record(loss: float, grad_norm: float) -> dict[str, float | None]:
    """Return the record of a step without an update. A number that is not finite is None."""
    found = {"loss": loss, "grad_norm": grad_norm}
    return {key: value if math.isfinite(value) else None for key, value in found.items()}


def notes_on_spikes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the skipped steps of a run, for its result. records: of metrics.jsonl."""
    notes, steps = [], [record["step"] for record in records if record["event"] == "skipped"]
    if steps:
        first = ", ".join(map(str, steps[:5])) + (", ..." if len(steps) > 5 else "")
        notes.append(f"{len(steps)} step{'s' * (len(steps) > 1)} without an update, because of the gradient: {first}")
    return notes


def loss_curve_warnings(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """List doubts about the last loss of a run: a spike of the training loss, a better validation before.

    records: of metrics.jsonl.
    """

    def curve(event: str) -> list[tuple[float, int]]:
        found = ((finite(record["loss"]), record["step"]) for record in records if record["event"] == event)
        return [(loss, step) for loss, step in found if math.isfinite(loss)]

    doubts, lowest, highest = [], math.inf, (SPIKE_NATS, 0)
    for loss, step in curve("train"):
        lowest = min(lowest, loss)
        highest = max(highest, (loss - lowest, step))
    if highest[1]:
        doubts.append(f"the training loss rose by {highest[0]:.2f} nats, at step {highest[1]}")
    validations = curve("validation")
    if validations and (best := min(validations))[0] < validations[-1][0]:
        (last, _), (loss, step) = validations[-1], best
        doubts.append(f"the last validation, {last:.4f}, is worse than that of step {step}, {loss:.4f}")
    return doubts


def check_step(config: TrainConfig, step: int, loss: float, grad_norm: float, n_skipped: int) -> None:
    """Raises Diverged where a run must not go on after a step. n_skipped: see `Gate`."""
    if n_skipped > config.on_spike.max_skipped:
        reason = f"{n_skipped} steps in a row without an update (train.on_spike), the last with "
    elif n_skipped or (math.isfinite(loss) and math.isfinite(grad_norm)):
        return
    else:
        reason = ""
    raise Diverged(step, f"{reason}loss {loss:.4g}, gradient norm {grad_norm:.4g}")


def checked_loss(config: TrainConfig, state: RunState) -> float:
    """Mean loss since the last record. Raises Diverged where it is far above the lowest one."""
    loss, lowest, rise = statistics.fmean(state.unlogged_losses), state.lowest_loss, config.max_loss_rise
    if lowest is not None and loss > lowest + rise:
        raise Diverged(
            state.step, f"loss {loss:.4g}, above the lowest ({lowest:.4g}) by train.max_loss_rise = {rise:g}"
        )
    return loss
