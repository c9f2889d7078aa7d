"""Data that several runs read: opened by each process once, and checked for the first of them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from widthwise.data.config import DataSection, open_data
from widthwise.data.documents import ProgressCallback
from widthwise.data.manifest import MANIFEST
from widthwise.data.mixture import MixedData, OpenedData

Stamps = dict[Path, tuple[int, int, int]]
"""File -> its inode, its size in bytes, and when it was changed, in ns."""


class DataShelf:
    """What was opened for a data section stays, with what its check found, until one of its files changes.

    A comparison keeps one for all its runs; a run that is trained alone begins with an empty one. In another process,
    to which it is sent by pickle, data are opened again, but not checked again.
    """

    def __init__(self, checked: Mapping[str, Stamps] = MappingProxyType({})):
        """checked: section, as JSON -> its files as they were when they passed the check."""
        self._checked = dict(checked)
        self._opened: dict[str, tuple[OpenedData, Stamps]] = {}

    def __reduce__(self) -> tuple[type["DataShelf"], tuple[Mapping[str, Stamps]]]:
        return DataShelf, (self._checked,)

    def open(self, section: DataSection, progress: ProgressCallback) -> OpenedData:
        """What `open_data` opens; while its files stay the same they are opened once."""
        key = section.model_dump_json()
        kept = self._opened.get(key)
        if kept is None or kept[1] != _stamps(kept[0]):
            data = open_data(section, progress)
            kept = self._opened[key] = data, _stamps(data)  # of the files before any check
        return kept[0]

    def check(self, section: DataSection, progress: ProgressCallback) -> None:
        """The section's `check` of what was opened for it, made once while the files stay the same."""
        key = section.model_dump_json()
        data, stamps = self._opened[key]
        if self._checked.get(key) != stamps:
            section.check(data, progress)
            self._checked[key] = stamps


def _stamps(data: OpenedData) -> Stamps:
    """One for every file that is there, so that a missing one differs from whatever it was before."""
    sources = data.sources.values() if isinstance(data, MixedData) else (data,)
    paths = (source.path / name for source in sources for name in (MANIFEST, *source.manifest.files))
    found = {path: path.stat() for path in paths if path.exists()}
    return {path: (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in found.items()}
