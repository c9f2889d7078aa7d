"""What the environment says of the processes that were started together, and who of them speaks."""

import os

from widthwise.run_dir import RunFailed


class RankLocalError(RunFailed):
    """An error that one rank alone raises."""


def is_launched() -> bool:
    """Whether torchrun, or what stands in for it, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ or n_launched() > 1


def n_launched() -> int:
    """How many processes were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_silent(error: Exception | None = None) -> bool:
    """Whether another process says what this one would say. error: what ended this one."""
    return n_launched() > 1 and os.environ.get("RANK", "0") != "0" and not isinstance(error, RankLocalError)
