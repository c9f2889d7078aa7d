"""Interleaved timing in one process, on the CPU or a GPU, parts with a time box, and one JSON file of what was found.

A shared machine changes its speed by tens of percent within minutes, so no time is compared with one of another minute:
variants run in turn (A B C A B C ...) and what is reported is the ratio of neighbours, its median over the rounds with
the 20% and 80% quantiles.
"""

import argparse
import gc
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo

from widthwise.files import write_atomic
from widthwise.runs.environment import environment as run_environment
from widthwise.training.devices import known_gpu

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Computes on so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class Times:
    """Seconds of every timed call of one variant, one entry a round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU time of the process over all its threads: what the work costs, whoever else uses the machine."""


def interleave(
    variants: Mapping[str, Callable[[], object]],
    *,
    n_rounds: int,
    n_warmup: int = 2,
    synchronize: Callable[[], object] = lambda: None,
) -> dict[str, Times]:
    """Calls the variants in turn, `n_warmup` rounds without and `n_rounds` with a clock.

    `synchronize` waits for a device to finish; it runs before a clock starts and before it stops.
    """
    times = {name: Times() for name in variants}
    for round_number in range(n_warmup + n_rounds):
        for name, run in variants.items():
            synchronize()
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            synchronize()
            if round_number >= n_warmup:
                times[name].wall.append(time.perf_counter() - wall)
                times[name].cpu.append(time.process_time() - cpu)
    return times


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 20% and 80% quantile."""
    q20, median, q80 = np.quantile(values, (0.2, 0.5, 0.8))
    return {"median": float(median), "q20": float(q20), "q80": float(q80)}


def summarise(times: Mapping[str, Times], baseline: str) -> dict[str, dict[str, Any]]:
    """Per variant: seconds of a call, and its ratio to the baseline's call of the same round."""
    base = times[baseline]
    return {
        name: {
            "n_rounds": len(own.wall),
            "wall_seconds": quantiles(own.wall),
            "cpu_seconds": quantiles(own.cpu),
            "wall_ratio": quantiles(_ratios(own.wall, base.wall)),
            "cpu_ratio": quantiles(_ratios(own.cpu, base.cpu)),
        }
        for name, own in times.items()
    }


def _ratios(values: list[float], base: list[float]) -> list[float]:
    return [value / other for value, other in zip(values, base, strict=True)]


def environment(device: str = "cpu") -> dict[str, Any]:
    """Versions, machine, commit and command; nothing that names a host, a user or a folder."""
    own = run_environment()
    return {
        **own,
        "gpu": own["gpu"] if device == "cuda" else None,
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _commit() -> str:
    """As that of a run, but a report written by an earlier benchmark does not count as a change."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return "unknown"
    return f"{commit} with changes" if git("status", "--porcelain", "--", "src", "benchmarks/*.py") else commit


class Accelerator:
    """The few calls in which a GPU differs from the CPU; on the CPU they do nothing, so that tests run everything."""

    def __init__(self, device: str):
        self.device = device
        self.is_gpu = device == "cuda"

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def forget_peak(self) -> int:
        """Starts a new measurement of peak memory; returns the bytes allocated now."""
        if not self.is_gpu:
            return 0
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated() if self.is_gpu else 0

    def free(self) -> None:
        """Lets go of the models and graphs of the part before."""
        torch._dynamo.reset()  # else the graphs of earlier parts count towards the recompile limit
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()

    def datasheet_flops(self) -> float | None:
        """Peak bf16 rate of a GPU known by name; boards with another power limit differ."""
        gpu = known_gpu(torch.cuda.get_device_name()) if self.is_gpu else None
        return None if gpu is None else gpu.peak_flops_per_second


class TimeBoxExceeded(BaseException):
    """A part ran past its time box. Not an Exception, so that no library's error handling swallows it."""


@contextmanager
def time_box(seconds: float) -> Iterator[None]:
    """Raises TimeBoxExceeded in the block after that many seconds. Boxes nest, the tighter counts. Main thread only."""

    def stop(*_: object) -> None:
        raise TimeBoxExceeded

    if seconds <= 0:
        raise TimeBoxExceeded
    outer_handler = signal.signal(signal.SIGALRM, stop)
    began = time.monotonic()
    outer_seconds = signal.setitimer(signal.ITIMER_REAL, seconds)[0]
    if outer_seconds:
        signal.setitimer(signal.ITIMER_REAL, min(seconds, outer_seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer_handler)
        if outer_seconds:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, outer_seconds - (time.monotonic() - began)))


def attempt(run: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What `run` returns, or {"failed": why}; with the seconds it took."""
    began = time.monotonic()
    try:
        with time_box(seconds):
            outcome = run()
    except TimeBoxExceeded:
        outcome = {"failed": f"not finished within its {max(0.0, seconds):.0f} seconds"}
    except Exception as error:
        outcome = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {**outcome, "part_seconds": round(time.monotonic() - began, 1)}


@dataclass(frozen=True)
class Part:
    """One independent piece of a benchmark."""

    name: str
    run: Callable[[float], dict[str, Any]]
    """Called with the seconds it has."""
    seconds: float
    """Its time box."""


def cpu_parser(doc: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with --out; name: what results/{name}_cpu.json is called after."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}_cpu.json", help="JSON file")
    return parser


def cpu_command(
    doc: str | None, name: str, parts: Callable[[bool], list[Part]], total_seconds: float, argv: list[str] | None
) -> int:
    """A benchmark as a command with the options --quick and --out; returns its exit code.

    name: what results/{name}_cpu.json is called after. parts: whether it is to be quick -> what is measured.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a toy size and few rounds: whether it runs, not how fast")
    parser.add_argument("--out", type=Path, help=f"JSON file; results/{name}_cpu[_quick].json where not given")
    arguments = parser.parse_args(argv)
    out = arguments.out or RESULTS / f"{name}_cpu{'_quick' if arguments.quick else ''}.json"
    return 0 if run_parts(parts(arguments.quick), out, "cpu", total_seconds) else 1


def run_parts(parts: list[Part], out: Path, device: str, total_seconds: float) -> bool:
    """Runs the parts in order and rewrites `out` after each, so that whatever happens later loses nothing.

    Returns whether every part finished and none found a deviation. A part whose turn comes after `total_seconds` fails.
    """
    began = time.monotonic()
    report: dict[str, Any] = {"environment": environment(device), "parts": {}}
    for part in parts:
        seconds = min(part.seconds, total_seconds - (time.monotonic() - began))
        outcome = attempt(partial(part.run, seconds), seconds)
        report["parts"][part.name] = outcome
        report["total_seconds"] = round(time.monotonic() - began, 1)
        write_atomic(out, json.dumps(report, indent=1) + "\n")
        print(f"{part.name}: {outcome.get('failed') or outcome.get('summary', 'done')}", flush=True)
    return all("failed" not in outcome for outcome in report["parts"].values())
