"""Records of a run: losses, costs, speed and memory."""

import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from widthwise.model.memory import give_back_freed_memory, keep_freed_memory
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.training.devices import known_gpu
from widthwise.training.observer import Observer
from widthwise.training.processes import Processes
from widthwise.training.state import RunState, Spent, check_step, checked_loss, inherited
from widthwise.training.step_statistics import finite_or_none, norms_record
from widthwise.training.train_state import StepOutcome, TrainState

MEASURED_KEYS = (
    "tokens_per_second",
    "step_seconds",
    "mfu",
    "memory_bytes",
    "peak_memory_bytes",
    "wall_seconds",
    "other_cpu_share",
)
"""Keys of records and results that measure the machine; all others are bitwise reproducible."""


def model_flops_utilization(
    tokens_per_second: float, training_flops_per_token: float, device: torch.device
) -> float | None:
    """Return the training FLOPs per second over the device's bf16 peak; None on a CPU or an unknown GPU.

    Source: PaLM, arXiv:2204.02311, appendix B, with full attention.
    """
    gpu = known_gpu(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return None if gpu is None else tokens_per_second * training_flops_per_token / gpu.peak_flops_per_second


class PeakMemory:
    """Peak memory since this object was created: on a GPU of its tensors, on a CPU of the whole process.

    Only the newest object of a device is valid, because creating one resets the peak.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_reset = True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        give_back_freed_memory()  # otherwise memory freed by earlier runs would count
        try:
            Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the current memory, see proc(5)
        except OSError:
            self._is_reset = False

    def n_bytes(self) -> int | None:
        """Return the peak in bytes; None if the system cannot reset it, because it would include earlier memory."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()) if self._is_reset else None
        return None if peak is None else 1024 * int(peak[1])


class MetricsLogger:
    """Writes the records of a run. Every rank makes the same calls; rank 0 writes."""

    def __init__(
        self, run: RunDir, recipe: Recipe, observer: Observer, processes: Processes, note: Callable[[str], None]
    ):
        """note: shows a text to the user."""
        self._run = run
        self._recipe = recipe
        self._observer = observer
        self._processes = processes
        self._note = note
        if processes.device.type == "cpu":
            keep_freed_memory()
        self.step_seconds: list[float] = []
        """Seconds of the steps since the last training record."""
        self._memory = PeakMemory(processes.device)
        self.last_steps: Counter[str] = Counter()
        """Event -> step of its last record; 0 without one."""
        self._inherited = Spent()
        self.outcomes: list[StepOutcome] = []
        """Outcomes of the steps since the last `collect`, on the device."""
        self._newest: tuple[StepOutcome, float] | None = None
        """Outcome and gradient norm of the newest collected step."""

    def rewind(self, step: int) -> None:
        """Drop the records of steps after this one."""

        def rewind_files() -> list[dict[str, Any]]:
            self._run.metrics_file.rewind(step)
            if self._run.samples_file.path.is_file():
                self._run.samples_file.rewind(step)
            return self._run.metrics()

        records = self._processes.on_rank_zero(rewind_files)
        self.last_steps = Counter({record["event"]: record["step"] for record in records})
        self._inherited = inherited(records)

    def collect(self, state: RunState) -> None:
        """Wait for the device, and add the losses of the steps since the last call to the state.

        Writes records of layer norms and of skipped updates. Raises Diverged.
        """
        outcomes = self.outcomes
        self.outcomes = []
        if not outcomes:
            return
        losses = torch.stack([outcome.loss for outcome in outcomes])
        grad_norms = torch.stack([outcome.grad_norm for outcome in outcomes])
        values = torch.stack((losses, grad_norms.double()), dim=1).tolist()  # one copy from the device
        first_step = state.step - len(outcomes) + 1
        for step, (outcome, (loss, grad_norm)) in enumerate(zip(outcomes, values), start=first_step):
            if outcome.norms is not None:
                self.write(step, "norms", **norms_record(outcome.norms))
            if outcome.n_skipped:
                self.write(step, "skipped", loss=finite_or_none(loss), grad_norm=finite_or_none(grad_norm))
            check_step(self._recipe.train, step, loss, grad_norm, outcome.n_skipped)
            if outcome.n_skipped == 0:
                state.recent_losses.append(loss)
                state.unlogged_losses.append(loss)
            self._newest = (outcome, grad_norm)

    def log(self, state: RunState, train_state: TrainState) -> None:
        """Write a training record of the steps since the previous one. Call after `collect`. Raises Diverged."""
        loss = checked_loss(self._recipe.train, state)
        state.lowest_loss = loss if state.lowest_loss is None else min(loss, state.lowest_loss)
        state.unlogged_losses.clear()
        assert self._newest is not None
        outcome, grad_norm = self._newest
        record = train_state.record(outcome)
        for number, norm in enumerate(record.get("score_grad_norm", []), start=1):
            if norm == 0:
                self._note(
                    f"layer {number}: the gradient of its width score is 0, so training does not move its widths"
                )
        speed = self.speed(train_state.flops_per_token)
        self.step_seconds.clear()
        self.write(
            state.step,
            "train",
            loss=loss,
            lr=train_state.lr(state.step),
            grad_norm=grad_norm,
            tokens=self._inherited.until(self._recipe, state.step).tokens,
            **speed,
            **record,
        )

    def speed(self, flops_per_token: float) -> dict[str, float | int | None]:
        """Return the entries of a training record that measure the machine, of the slowest rank and the largest memory.

        flops_per_token: training FLOPs.
        """
        processes = self._processes
        seconds, n_bytes = processes.all_reduce_max(statistics.fmean(self.step_seconds), self._memory.n_bytes() or 0)
        tokens_per_second = self._recipe.tokens_per_step / seconds
        return {
            "tokens_per_second": tokens_per_second,
            "step_seconds": seconds,
            "mfu": model_flops_utilization(tokens_per_second / processes.world_size, flops_per_token, processes.device),
            "memory_bytes": int(n_bytes) or None,
        }

    def write(self, step: int, event: str, **values: Any) -> None:
        """Add a record."""
        record = {"step": step, "event": event, **values}
        self._processes.on_rank_zero(lambda: self._run.metrics_file.append([record]))
        self.last_steps[event] = step
        self._observer.record(record)

    def write_samples(self, step: int, records: list[dict[str, Any]]) -> None:
        """Replace the samples of a step. Call before recording its validation: a resumed run then writes both again."""
        self._processes.on_rank_zero(lambda: self._run.samples_file.rewind(step - 1))
        self._processes.on_rank_zero(lambda: self._run.samples_file.append(records))

    def write_with_costs(self, step: int, event: str, **values: Any) -> None:
        """Add a record with the tokens and the compute spent so far."""
        _, tokens, training_flops = self._inherited.until(self._recipe, step)
        self.write(step, event, tokens=tokens, training_flops=training_flops, **values)
