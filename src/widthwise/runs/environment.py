"""The software, machine and command of a run, and how much other processes used the machine meanwhile."""

import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from widthwise import __version__

REPRODUCED_WITH = ("torch", "cpu", "gpu", "n_threads", "n_processes", "n_shards")
"""Keys of `environment` that must stay the same for a resumed run to be bitwise the run it would have been."""

PACKAGE = Path(__file__).resolve().parent.parent


def command_line() -> str:
    """Return the shell command of this process, without passwords or paths outside the working folder."""
    script = Path(sys.argv[0])
    is_script = script.suffix == ".py" and script.name != "__main__.py"
    program = ["python", shown_path(script)] if is_script else ["widthwise"]
    return shlex.join([*program, *map(_shown_argument, sys.argv[1:])])


def environment() -> dict[str, Any]:
    """Versions, machine, commit and command as plain data; no path outside the working folder is shown."""
    import torch  # takes long, and verbs that only ask for the command line need none

    return {
        "command": command_line(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "widthwise": __version__,
        "commit": _commit(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "n_cpus": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    }


def _shown_argument(argument: str) -> str:
    """`scheme://user:secret@host/name?password=secret` -> the same with *** in place of secrets."""
    hidden = re.sub(r"(://[^:/?#@]*:).*@", r"\1***@", argument)
    hidden = re.sub(r"([?&][^=&]*password=)[^&]*", r"\1***", hidden, flags=re.IGNORECASE)
    key, equals, value = hidden.rpartition("=")
    return f"{key}{equals}{shown_path(Path(value))}" if Path(value).is_absolute() else hidden


def shown_path(path: Path) -> str:
    """`/a/b/recipe.yaml` -> what it is called from here if it is below the working folder, else its name."""
    if not path.is_absolute():
        return str(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _commit() -> str | None:
    """Commit of the checkout that holds the package, with "-dirty" where it was changed; None where there is none."""
    top = _git("rev-parse", "--show-toplevel")
    # An installed package may be inside another repository, whose commit does not describe it.
    if top is None or Path(top).resolve() / "src" / "widthwise" != PACKAGE:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


LARGEST_SHARE = 0.1
"""Share of a machine's CPUs that other processes may use without the speed of a run being called not comparable."""


class Clocks(NamedTuple):
    """Times in seconds, each since an arbitrary moment."""

    busy: float
    """CPU time of all processes, summed over all CPUs."""
    own: float
    """CPU time of this process and its children."""
    wall: float


def share_of_others(began: Clocks | None, now: Clocks | None) -> float | None:
    """The share of the machine's CPUs that other processes used on average; None where the system does not tell."""
    if began is None or now is None:
        return None
    busy, own, wall = (after - before for before, after in zip(began, now))
    return max(0.0, busy - own) / (wall * (os.cpu_count() or 1)) if wall else None


def read_clocks() -> Clocks | None:
    """The clocks now; None without /proc/stat, which only Linux has."""
    try:
        first_line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, *others = map(int, first_line.split()[1:9])
    busy = (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")
    return Clocks(busy, sum(os.times()[:4]), time.monotonic())


def is_shared(share: float | None) -> bool:
    """Return True where other processes used too much of the machine for a run's speed to be comparable."""
    return share is not None and share > LARGEST_SHARE
