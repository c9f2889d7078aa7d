"""Files on disk: written whole or not at all, read with errors that name them, known again by their checksum."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from widthwise.config_io import Config, UserError, read_text


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into a UserError that names the file being read."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block, such as a full disk, into a UserError that names the file being written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def read_json(path: Path) -> Any:
    """JSON from a file. Raises UserError where it is missing or broken."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: is not valid JSON ({error})") from None


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file that survives a power cut, whole or not at all. Raises UserError where it cannot."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)  # there is none after the rename
        fsync_folder(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); nothing written before is lost") from None


def write_first(path: Path, content: str) -> str:
    """Writes a file that nobody has written yet, whole; returns what it holds then. Of several processes one wins.

    Raises UserError where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    if not path.exists():
        write_atomic(temporary, content)
        try:
            with writing(path), suppress(FileExistsError):
                os.link(temporary, path)  # a rename would replace what another has just written
        finally:
            temporary.unlink(missing_ok=True)
    return read_text(path)


def check_free(folder: Path) -> None:
    """Raises UserError where something has that name already, but for an empty folder."""
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise UserError(f"{folder}: exists already; choose another folder")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to be filled by the block, which then becomes `folder`, whole or not at all.

    Raises UserError where `folder` is not free, and for an OSError of the block.
    """
    check_free(folder)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        partial.mkdir(parents=True)
        yield partial
        fsync_folder(partial)
        os.replace(partial, folder)  # an empty folder is replaced
        fsync_folder(folder.parent)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # there is none after the rename


def fsync_file(path: Path) -> None:
    """Makes what was written to a file survive a power cut."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    """Makes a rename inside a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file. Raises UserError where it cannot be read."""
    with reading(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileRecord(Config):
    """What a file must be, as a manifest says it."""

    n_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """The record of a file as it is now; reads every byte. Raises UserError where it cannot be read."""
        with reading(path):
            return cls(n_bytes=path.stat().st_size, sha256=file_sha256(path))
