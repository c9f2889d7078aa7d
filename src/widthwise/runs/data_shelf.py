"""Data that several runs of one process read: opened and checked for the first of them."""

from dataclasses import dataclass
from pathlib import Path

from widthwise.data.config import DataSection, open_data
from widthwise.data.documents import ProgressCallback
from widthwise.data.manifest import MANIFEST
from widthwise.data.mixture import MixedData, OpenedData

Stamps = dict[Path, tuple[int, int, int]]
"""File -> its inode, its size in bytes, and when it was changed, in ns."""


@dataclass
class _Opened:
    data: OpenedData
    stamps: Stamps
    """As the files were when they were opened, before any check."""
    is_checked: bool = False


class DataShelf:
    """What was opened for a data section stays, with what its check found, until one of its files changes.

    A comparison keeps one for all its runs; a run that is trained alone begins with an empty one.
    """

    def __init__(self) -> None:
        self._opened: dict[str, _Opened] = {}

    def open(self, section: DataSection, progress: ProgressCallback) -> OpenedData:
        """As `open_data`, once."""
        key = section.model_dump_json()
        kept = self._opened.get(key)
        if kept is None or kept.stamps != _stamps(kept.data):
            data = open_data(section, progress)
            kept = self._opened[key] = _Opened(data, _stamps(data))
        return kept.data

    def check(self, section: DataSection, progress: ProgressCallback) -> None:
        """As the section's `check` of what was opened for it, once."""
        kept = self._opened[section.model_dump_json()]
        if not kept.is_checked:
            section.check(kept.data, progress)
            kept.is_checked = True


def _stamps(data: OpenedData) -> Stamps:
    """Of every file that is there; a missing one differs from all that it was before."""
    sources = data.sources.values() if isinstance(data, MixedData) else (data,)
    paths = (source.path / name for source in sources for name in (MANIFEST, *source.manifest.files))
    found = {path: path.stat() for path in paths if path.exists()}
    return {path: (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in found.items()}
