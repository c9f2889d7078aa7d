"""The folder that keeps what was prepared or fetched, for the next time."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$WIDTHWISE_CACHE`, else `$XDG_CACHE_HOME/widthwise`, else `~/.cache/widthwise`."""
    if own := os.environ.get("WIDTHWISE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "widthwise"
