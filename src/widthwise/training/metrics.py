"""The records of a run: losses, costs, speed and memory."""

import math
import re
import time
from collections.abc import Callable
from itertools import count
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
from widthwise.training.step_statistics import dead_scores, norms_record
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
"""Keys of records and results that measure the machine; all others are bitwise the same in every run of a recipe."""


def model_flops_utilization(
    tokens_per_second: float, training_flops_per_token: float, device: torch.device
) -> float | None:
    """FLOPs the model needs per second over the device's bf16 peak; None on a CPU or an unknown GPU.

    Source: PaLM, arXiv:2204.02311, appendix B; attention is counted in full, as everywhere in this project.
    """
    gpu = known_gpu(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return None if gpu is None else tokens_per_second * training_flops_per_token / gpu.peak_flops_per_second


class PeakMemory:
    """Most memory held since this object was made: by tensors on a GPU, elsewhere by the whole process.

    The newest object of a device counts; it resets what earlier ones read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._is_reset = device, True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        give_back_freed_memory()  # else what earlier runs have freed would count
        try:
            Path("/proc/self/clear_refs").write_text("5")  # see proc(5): the peak becomes the memory held now
        except OSError:
            self._is_reset = False

    def n_bytes(self) -> int | None:
        """None where the system cannot reset its count, which then includes what the process did before."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()) if self._is_reset else None
        return None if found is None else 1024 * int(found[1])


def speed_record(
    step_seconds: float, memory_bytes: int | None, processes: Processes, tokens_per_step: int, flops_per_token: float
) -> dict[str, float | int | None]:
    """Return the machine's entries of a training record: time of the slowest rank, largest known memory of a rank.

    mfu: of all devices. tokens_per_step: of all processes; flops_per_token: training FLOPs.
    """
    slowest, largest = processes.all_reduce_max(step_seconds, memory_bytes or 0)
    tokens_per_second = tokens_per_step / slowest
    return {
        "tokens_per_second": tokens_per_second,
        "step_seconds": slowest,
        "mfu": model_flops_utilization(tokens_per_second / processes.world_size, flops_per_token, processes.device),
        "memory_bytes": int(largest) or None,
    }


class Stopwatch:
    """Seconds per step over the steps since the last reading, without the time between two steps."""

    def __init__(self) -> None:
        self._seconds, self._n_steps, self._started = 0.0, 0, time.perf_counter()

    def begin_step(self) -> None:
        self._started = time.perf_counter()

    def end_step(self) -> None:
        self._seconds += time.perf_counter() - self._started
        self._n_steps += 1

    def step_seconds(self) -> float:
        """Reads and resets the stopwatch between two steps."""
        step_seconds = self._seconds / self._n_steps
        self._seconds, self._n_steps = 0.0, 0
        return step_seconds


class MetricsLogger:
    """Writes the records of a run. Every rank calls it alike; rank 0 writes."""

    def __init__(
        self, run: RunDir, recipe: Recipe, observer: Observer, processes: Processes, note: Callable[[str], None]
    ):
        """note: takes what the user should know."""
        self._run, self._recipe, self._observer, self._processes, self._note = run, recipe, observer, processes, note
        if processes.device.type == "cpu":
            keep_freed_memory()
        self.stopwatch, self._memory = Stopwatch(), PeakMemory(processes.device)
        self._steps: dict[str, int] = {}
        self.held_out_losses: dict[int, float] = {}
        """Step -> loss of each validation on record."""
        self._inherited = Spent()
        self._outcomes: list[StepOutcome] = []
        """Outcomes of the newest steps, still on the device."""
        self._newest: tuple[StepOutcome, float] | None = None
        """The newest step that was collected, and its gradient norm."""

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
        self._inherited = inherited(records)

    def add(self, outcome: StepOutcome) -> None:
        """Take in a step, without waiting for the device."""
        self._outcomes.append(outcome)

    def collect(self, state: RunState) -> None:
        """Wait for the device, and take the losses of the steps since the last time into the state of the newest.

        Records what is of a single step: its norms where they are due, and that it made no update. Raises Diverged.
        """
        outcomes, self._outcomes = self._outcomes, []
        if not outcomes:
            return
        pairs = torch.stack([torch.stack((each.loss, each.grad_norm.double())) for each in outcomes]).tolist()
        for step, outcome, (loss, grad_norm) in zip(count(state.step - len(outcomes) + 1), outcomes, pairs):
            if outcome.norms is not None:
                self.write(step, "norms", **norms_record(outcome.norms))
            if outcome.n_skipped:
                found = {"loss": loss, "grad_norm": grad_norm}
                self.write(step, "skipped", **{k: v if math.isfinite(v) else None for k, v in found.items()})
            check_step(self._recipe.train, step, loss, grad_norm, outcome.n_skipped)
            if not outcome.n_skipped:
                state.recent_losses.append(loss)
                state.unlogged_losses.append(loss)
            self._newest = outcome, grad_norm

    def log(self, state: RunState, train_state: TrainState) -> None:
        """Record the training since the last such record, after a step that was collected. Raises Diverged."""
        loss = checked_loss(self._recipe.train, state)
        state.lowest_loss = loss if state.lowest_loss is None else min(loss, state.lowest_loss)
        state.unlogged_losses.clear()
        assert self._newest is not None
        outcome, grad_norm = self._newest
        record = train_state.record(outcome)
        for warning in dead_scores(record):
            self._note(warning)
        step_seconds, memory_bytes = self.stopwatch.step_seconds(), self._memory.n_bytes()
        tokens, flops = self._recipe.tokens_per_step, train_state.flops_per_token
        self.write(
            state.step,
            "train",
            loss=loss,
            lr=train_state.lr(state.step),
            grad_norm=grad_norm,
            tokens=self._spent(state.step).tokens,
            **speed_record(step_seconds, memory_bytes, self._processes, tokens, flops),
            **record,
        )

    def write(self, step: int, event: str, **values: Any) -> None:
        """Add a record."""
        record = {"step": step, "event": event, **values}

        def append() -> None:
            self.follow()
            self._run.metrics_file.append([record])

        self._processes.on_rank_zero(append)
        self._steps[event] = step
        if event == "validation":
            self.held_out_losses[step] = values["loss"]
        self._observer.record(record)

    def write_samples(self, step: int, records: list[dict[str, Any]]) -> None:
        """Add the texts of a step, before its validation is on record: a kill in between makes them again."""

        def replace() -> None:
            self.follow()
            self._run.samples_file.rewind(step - 1)
            self._run.samples_file.append(records)

        self._processes.on_rank_zero(replace)

    def write_with_costs(self, step: int, event: str, **values: Any) -> None:
        """Add a record with the tokens and the compute spent by then."""
        _, tokens, training_flops = self._spent(step)
        self.write(step, event, tokens=tokens, training_flops=training_flops, **values)

    def follow(self) -> None:
        """Follow the run's folder to where somebody has moved it, and note it. Raises RunFailed where it is gone."""
        before = self._run.path
        if self._run.follow():
            self._note(f"{before}: was moved to {self._run.path} during training; the run continues there")

    def last_step(self, event: str) -> int:
        """Return the step of the last such record, 0 where there is none."""
        return self._steps.get(event, 0)

    def _spent(self, step: int) -> Spent:
        """Return the costs by a step, including the parent run's."""
        return self._inherited.until(self._recipe, step)
