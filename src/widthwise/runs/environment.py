"""The software, machine and command of a run, the faster precision, and the CPU use of other processes.

torch and recipes, which are slow to import, are imported where they are used: some verbs only need the command line.
"""

import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
import timeit
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from widthwise import __version__
from widthwise.computing import Precision
from widthwise.run_dir import RunDir
from widthwise.training.observer import Observer

REPRODUCED_WITH = ("torch", "cpu", "gpu", "n_threads", "n_processes", "n_shards")
"""Keys of `environment` that must not change for a resumed run to be bitwise reproducible."""
PACKAGE = Path(__file__).resolve().parent.parent


def command_line() -> str:
    """Return the shell command of this process. Passwords are masked, and absolute paths are shown by `shown_path`."""
    script = Path(sys.argv[0])
    is_script = script.suffix == ".py" and script.name != "__main__.py"
    command = ["python", shown_path(script)] if is_script else ["widthwise"]
    for argument in sys.argv[1:]:  # scheme://user:secret@host/name?password=secret
        masked = re.sub(r"(://[^:/?#@]*:).*@", r"\1***@", argument)
        masked = re.sub(r"([?&][^=&]*password=)[^&]*", r"\1***", masked, flags=re.IGNORECASE)
        key, equals, value = masked.rpartition("=")
        command.append(f"{key}{equals}{shown_path(Path(value))}" if Path(value).is_absolute() else masked)
    return shlex.join(command)


def environment() -> dict[str, Any]:
    """Return versions, machine, commit and command as plain data, without paths outside the working folder.

    commit: of the checkout of the package, with "-dirty" for a changed one; None without a checkout.
    """
    import torch

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    cpu_names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    top = _git("rev-parse", "--show-toplevel")
    # An installed package may be inside another repository, whose commit does not describe it.
    is_checkout = top is not None and Path(top).resolve() / "src" / "widthwise" == PACKAGE
    return {
        "command": command_line(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "widthwise": __version__,
        "commit": _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") if is_checkout else None,
        "platform": platform.platform(),
        "cpu": next(cpu_names, platform.processor() or platform.machine()),
        "n_cpus": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    }


def shown_path(path: Path) -> str:
    """Return a path relative to the working folder, or the name of an absolute path outside of it."""
    if not path.is_absolute():
        return str(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


BF16_GAIN = 1.3
"""Least ratio of a CPU's time for fp32 products to its time for bf16 products at which `precision: auto` is bf16."""


def chosen_precision(folder: Path, observer: Observer | None = None) -> Precision:
    """Return the precision for recipes with `precision: auto`: the folder's, or else the faster one.

    folder: of a run, or of an experiment whose runs are in FOLDER/*/RUN; their recipes have the precision.
    """
    from widthwise.recipe.recipe import saved_recipe

    for config in (folder / "config.yaml", *sorted(folder.glob("*/*/config.yaml"))):
        if config.is_file():
            return saved_recipe(RunDir(config.parent)).train.settled_precision
    return faster_precision(observer)


def faster_precision(observer: Observer | None = None) -> Precision:
    """Return the precision with faster matrix products on this machine.

    It is bf16 on a GPU that supports it, and on a CPU whose bf16 products are at least BF16_GAIN times as fast as
    fp32 products; otherwise fp32. The measurement takes about a tenth of a second.
    """
    import torch

    if torch.cuda.is_available():
        is_faster = torch.cuda.is_bf16_supported(including_emulation=False)
        reason = "for this GPU"
    else:
        gain = bf16_gain()
        is_faster = gain >= BF16_GAIN
        reason = f"bf16 products are {gain:.2g} times as fast here"
    precision = "bf16" if is_faster else "fp32"
    if observer is not None:
        observer.message(f"precision: auto is {precision}; {reason}")
    return precision


def bf16_gain() -> float:
    """Return the time of fp32 products divided by bf16 products on this CPU.

    They are measured in turns, so that other processes slow both.
    """
    import torch

    # CPU time, which other processes do not change, is comparable only with one thread.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    pairs = [torch.ones(2, 256, 256, dtype=dtype).unbind() for dtype in (torch.float32, torch.bfloat16)]

    def seconds(pair: tuple[torch.Tensor, ...]) -> float:
        # The first product warms up.
        _, *times = timeit.repeat(partial(torch.nn.functional.linear, *pair), timer=clock, repeat=4, number=1)
        return statistics.median(times)

    rounds = [[seconds(pair) for pair in pairs] for _ in range(3)]
    return statistics.median(fp32 / bf16 for fp32, bf16 in rounds)


LARGEST_SHARE = 0.1
"""The speed of a run is comparable if other processes used at most this share of the machine's CPUs."""


class Clocks(NamedTuple):
    """Times in seconds, each since an arbitrary moment."""

    busy: float
    """CPU time of all processes, summed over all CPUs."""
    process: float
    """CPU time of this process and its children."""
    wall: float


def share_of_others(began: Clocks | None, now: Clocks | None) -> float | None:
    """Return the mean share of the machine's CPUs that other processes used; None if the system does not report it."""
    if began is None or now is None:
        return None
    busy, process, wall = (after - before for before, after in zip(began, now))
    return max(0.0, busy - process) / (wall * (os.cpu_count() or 1)) if wall else None


def read_clocks() -> Clocks | None:
    """Read the clocks; None without /proc/stat, which only Linux has."""
    try:
        first_line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, *interrupts = map(int, first_line.split()[1:9])
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return Clocks(busy, sum(os.times()[:4]), time.monotonic())


def is_shared(share: float | None) -> bool:
    """Return True if other processes used too much of the machine for a run's speed to be comparable."""
    return share is not None and share > LARGEST_SHARE
