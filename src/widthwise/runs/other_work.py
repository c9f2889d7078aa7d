"""How much other processes used the machine while a run trained; speeds are not comparable if they did."""

import os
import time
from pathlib import Path
from typing import NamedTuple

LARGEST_SHARE = 0.1
"""Share of a machine's CPUs that other processes may use without the speed of a run being called not comparable."""


class Clocks(NamedTuple):
    """Times in seconds, each since an arbitrary moment."""

    busy: float
    """CPU time of all processes, summed over all CPUs."""
    own: float
    """CPU time of this process and its children."""
    wall: float


class OtherWork:
    """Measures the work of other processes from its construction on."""

    def __init__(self) -> None:
        self._began = read_clocks()

    def share(self) -> float | None:
        """The share of the machine's CPUs that other processes used on average; None where the system does not tell."""
        now = read_clocks()
        if self._began is None or now is None:
            return None
        busy, own, wall = (after - before for before, after in zip(self._began, now))
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
    """Whether other processes used so much of the machine that the speed of a run is not comparable."""
    return share is not None and share > LARGEST_SHARE
