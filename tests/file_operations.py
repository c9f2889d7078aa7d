"""States of files: what a process that is killed before a file operation leaves, and what a forger writes."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from widthwise.records.record import SealedFile


def forge(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the entries of a sealed file, with the checksums that go with them."""
    entries = SealedFile(path).read()
    change(entries)
    SealedFile(path).write(entries)


def flip_a_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


FILE_OPERATIONS = {"open", "os.mkdir", "os.rename"}
REMOVALS = {"os.remove", "os.rmdir"}


def keep_states(folder: Path, states: Path) -> None:
    """From now on copies `folder` into `states` before every file operation of this process inside of it.

    Each copy is what a SIGKILL at that moment leaves: what was handed to the system, and nothing of what was not. An
    operation that finds the folder as the one before did, as reading does, adds no copy. They are named by their order.
    """
    states.mkdir()
    kept: dict[Path, bytes] = {}
    is_copying = False

    def watch(event: str, arguments: tuple) -> None:
        nonlocal kept, is_copying
        # What rmtree removes is named relative to its folder.
        is_inside = event in REMOVALS or (event in FILE_OPERATIONS and str(arguments[0]).startswith(str(folder)))
        if is_copying or not is_inside or not folder.exists():
            return
        is_copying = True
        if (found := _contents(folder)) != kept:
            shutil.copytree(folder, states / f"{len(list(states.iterdir())):04}")
            kept = found
        is_copying = False

    sys.addaudithook(watch)


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: b"" if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}
