"""How fast a run is and how much memory it takes."""

import re
import time
from pathlib import Path

import torch

from widthwise.training.freed_memory import give_back_freed_memory
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
    """What a training record says of the machine: the slowest process's time, the largest memory known of one.

    mfu is that of all devices. tokens_per_step: of all processes; flops_per_token: training FLOPs.
    """
    slowest, largest = processes.largest(step_seconds, memory_bytes or 0)
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
