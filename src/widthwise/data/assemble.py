"""Prepared folders that appear whole or not at all."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.documents import Counter, ProgressCallback, ignore_progress
from widthwise.data.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    CorpusRecord,
    HeldOutRecord,
    Manifest,
    Splits,
    TokenizerRecord,
)
from widthwise.data.prepared import PreparedData, is_prepared
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import FileRecord, fsync_folder, is_at, write_atomic, writing


def assemble(out: Path | str, fill: Callable[[Path], None], reuse: bool = False) -> PreparedData:
    """Has `fill` write all files, the manifest last, into a temporary folder, renames it to `out` and opens that.

    Processes that assemble the same folder wait for each other. With `reuse`, a finished `out` is opened as it is;
    without, a non-empty `out` is refused. Raises UserError if nothing can be written.
    """
    out = Path(out).resolve()
    if not (reuse and is_prepared(out)):
        with _own_folder(out.parent / f".{out.name}.partial") as partial:
            if not (reuse and is_prepared(out)):
                _refuse_occupied(out)
                fill(partial)
                _move(partial, out)
    return PreparedData.open(out)


def record_files(folder: Path, progress: ProgressCallback = ignore_progress) -> dict[str, FileRecord]:
    """Size and checksum of every file in a folder, by name."""
    paths = sorted(folder.iterdir())
    done = Counter(progress, "computing checksums", sum(path.stat().st_size for path in paths))
    return {path.name: FileRecord.of(path, done.add) for path in paths}


def write_manifest(
    folder: Path,
    *,
    tokenizer: Tokenizer,
    corpus: CorpusRecord,
    splits: Splits,
    files: dict[str, FileRecord],
    held_out_fraction: float | None = None,
    held_out_from: HeldOutRecord | None = None,
) -> None:
    """Writes the manifest that vouches for the folder's files: the last thing a `fill` does."""
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        tokenizer=TokenizerRecord(
            spec=tokenizer.spec,
            id=tokenizer.id,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
            file=tokenizer.file_name,
        ),
        corpus=corpus,
        held_out_fraction=held_out_fraction,
        held_out_from=held_out_from,
        splits=splits,
        files=files,
    )
    write_atomic(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")


def _move(partial: Path, out: Path) -> None:
    with writing(out):
        os.replace(partial, out)
        fsync_folder(out.parent)


def _refuse_occupied(out: Path) -> None:
    if is_prepared(out):
        raise UserError(f"{out}: already holds a prepared corpus; choose another folder or delete it")
    if out.exists() and not (out.is_dir() and next(out.iterdir(), None) is None):
        raise UserError(f"{out}: is in use by other files; choose an empty or new folder")


@contextmanager
def _own_folder(folder: Path) -> Iterator[Path]:
    """An empty folder for one process at a time, removed at the end unless renamed.

    Other processes wait; a killed process releases it.
    """
    handle = _lock_folder(folder)
    try:
        for left_behind in folder.iterdir():
            left_behind.unlink()
        yield folder
    finally:
        if is_at(handle, folder):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _lock_folder(folder: Path) -> int:
    """Locks the folder; returns the open handle that holds the lock."""
    while True:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:
                continue  # another process finished and renamed it between the two calls
            fcntl.flock(handle, fcntl.LOCK_EX)
        if is_at(handle, folder):
            return handle
        os.close(handle)  # the folder we waited for was renamed or removed
