"""Speed and memory of a run."""

import ctypes
import os
import re
import time
from pathlib import Path

import torch

from widthwise.training.peak_flops import peak_flops_per_second
from widthwise.training.processes import Processes

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
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As malloc.h numbers them; see mallopt(3)."""
MAX_KEPT_BYTES = 2**31 - 1
"""How much may be free at the end of the heap before it goes back to the system: the most that can be said."""
MAX_IN_HEAP_BYTES = 2**25
"""Larger blocks come from the system and go back to it. glibc's own limit would reach this by itself, but stops
adapting once the other is set."""


def model_flops_utilization(
    tokens_per_second: float, training_flops_per_token: float, device: torch.device
) -> float | None:
    """FLOPs the model needs per second over the device's bf16 peak; None on a CPU or an unknown GPU.

    Source: PaLM, arXiv:2204.02311, appendix B; attention is counted in full, as everywhere in this project.
    """
    peak = peak_flops_per_second(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return None if peak is None else tokens_per_second * training_flops_per_token / peak


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
        """None where the system cannot reset its count, which then includes whatever the process did before."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()) if self._is_reset else None
        return None if found is None else 1024 * int(found[1])


def speed_record(
    step_seconds: float, memory_bytes: int | None, processes: Processes, tokens_per_step: int, flops_per_token: float
) -> dict[str, float | int | None]:
    """Return the machine's entries of a training record: time of the slowest rank, largest known memory of a rank.

    mfu is that of all devices. tokens_per_step: of all processes; flops_per_token: training FLOPs.
    """
    slowest, largest = processes.all_reduce_max(step_seconds, memory_bytes or 0)
    tokens_per_second = tokens_per_step / slowest
    of_one = tokens_per_second / processes.world_size
    return {
        "tokens_per_second": tokens_per_second,
        "step_seconds": slowest,
        "mfu": model_flops_utilization(of_one, flops_per_token, processes.device),
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


class SpeedMeter(Stopwatch):
    """Speed and peak memory of a run's steps, over all ranks."""

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        if processes.device.type == "cpu":
            keep_freed_memory()
        self._processes, self._memory = processes, PeakMemory(processes.device)

    def record(self, tokens_per_step: int, flops_per_token: float) -> dict[str, float | int | None]:
        """Return the `speed_record` of the steps since the last one. Called by all ranks between two steps."""
        step_seconds, memory_bytes = self.step_seconds(), self._memory.n_bytes()
        return speed_record(step_seconds, memory_bytes, self._processes, tokens_per_step, flops_per_token)


def keep_freed_memory() -> None:
    """Memory that tensors free stays with the process from now on, because the next step needs it again.

    Memory from the system comes page by page, each cleared when it is first touched. glibc gives back what is free at
    the end of its heap, which for a small model is after every step: asking for it again took a tenth of a bf16 step.
    Does nothing without glibc, or where the environment has told it otherwise.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        libc.mallopt(M_MMAP_THRESHOLD, MAX_IN_HEAP_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, MAX_KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Gives back to the system, once, all memory that was freed. Does nothing without glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
