"""Files on disk: atomic writing, reading with errors that name the file, and checksums."""

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import pydantic

from widthwise.config_io import Config, refusing
from widthwise.mistakes import UserError

MAX_JSON_BYTES = 2**28
"""Largest JSON file that is read. The largest tokenizers have a tenth of this size."""
MAX_POINTER_BYTES = 1024
LFS_POINTER = b"version https://git-lfs"
"""First bytes of a pointer of Git LFS, a small text in place of a file."""
HASHED_BYTES_AT_ONCE = 2**22
"""Largest part of a file that is in memory while it is hashed."""
HOST = re.sub(r"\W+", "-", socket.gethostname(), flags=re.ASCII)[:32] or "host"
"""Name of this host in temporary names, because machines that share a folder may have processes of equal number."""


@contextmanager
def reading(path: Path, max_bytes: int | None = None) -> Iterator[None]:
    """Check the path with `check_plain_file`, and turn an OSError of the block into a UserError that names the file."""
    with refusing(f"{path}: cannot be read", OSError):
        check_plain_file(path, max_bytes)
        yield


def check_plain_file(path: Path, max_bytes: int | None = None) -> None:
    """Raise UserError unless the path is a plain file of at most max_bytes, and not a pointer of Git LFS.

    Reading a folder, a pipe, a device or a kernel file such as /proc/kmsg (size 0, but not empty) may never end.
    """
    if not path.exists():
        return  # opening it raises the error
    if not path.is_file():
        raise UserError(f"{path}: is not a plain file")
    n_bytes = path.stat().st_size
    if max_bytes is not None and n_bytes > max_bytes:
        raise UserError(f"{path}: has {n_bytes:,} bytes; allowed: up to {max_bytes:,}")
    if n_bytes > MAX_POINTER_BYTES:
        return
    with (
        refusing(f"{path}: cannot be read", OSError),
        open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file,
    ):
        beginning = file.read(len(LFS_POINTER))
        n_bytes = os.fstat(file.fileno()).st_size  # it may have grown
    if beginning != b"" and n_bytes == 0:
        raise UserError(f"{path}: is not a plain file")
    if beginning == LFS_POINTER:
        raise UserError(f"{path}: is a pointer of Git LFS, not the file itself; `git lfs pull` fetches it")


def read_text(path: Path, max_bytes: int | None = None) -> str:
    """Return the text of a file, without a byte order mark.

    Raises UserError if the file is missing, unreadable, not UTF-8 or refused by `check_plain_file`.
    """
    try:
        with reading(Path(path), max_bytes):
            return Path(path).read_text(encoding="utf-8-sig")
    except UserError:
        raise
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None
    except ValueError as error:  # a zero byte in the path
        raise UserError(f"{str(path)!r}: cannot be read ({error})") from None


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError of the block, such as a full disk, into a UserError that names the file being written."""
    return refusing(f"{path}: cannot be written", OSError)


@contextmanager
def with_default_permissions(path: Path) -> Iterator[None]:
    """Give the file that the block writes default permissions; safetensors makes it readable by its owner alone."""
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def parse_json(text: str, where: str) -> Any:
    """Parse JSON from an untrusted source. Raises UserError, prefixed with `where`, for invalid text.

    An integer too large for a float is read as infinity, so that no later conversion overflows.
    """
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= 300 else float(digits))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({error})") from None


def read_json(path: Path) -> Any:
    """Read JSON from a file. Raises UserError if it is missing, invalid or longer than MAX_JSON_BYTES."""
    return parse_json(read_text(path, MAX_JSON_BYTES), str(path))


def read_json_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a mapping. Raises UserError as `read_json`, and for anything but a mapping."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds {type(data).__name__}, not a mapping")
    return data


def _check_inside(name: str) -> str:
    """Return the name unchanged. Raise ValueError unless it is a relative path without `..`."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"got {name!r}; allowed: a path inside the folder of the file that names it")
    return name


PathText = Annotated[str, pydantic.Field(min_length=1)]
"""A path as the user wrote it. It is not empty, because an empty path would mean the working folder."""
PathInside = Annotated[str, pydantic.AfterValidator(_check_inside)]
"""The name of a file in a manifest: a path inside the folder of the manifest."""


def _temporary(path: Path) -> Path:
    """Return a unique path for writing a file or folder, which is then renamed to `path`.

    Remove earlier temporaries of `path` that killed processes on this host left.
    """
    for leftover in leftovers(path.parent):
        if leftover.is_ours and leftover.name == path.name:
            if leftover.path.is_dir():
                shutil.rmtree(leftover.path, ignore_errors=True)
            else:
                leftover.path.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{HOST}-{os.getpid()}.{secrets.token_hex(4)}")


class Leftover(NamedTuple):
    """A temporary file or folder that no process of this host is writing."""

    path: Path
    name: str
    """The final name of the file."""
    is_ours: bool
    """True for a temporary of this host, whose process has certainly ended."""


def leftovers(folder: Path) -> Iterator[Leftover]:
    """Yield the temporaries in a folder whose process was killed, or belongs to another host."""
    for path in folder.glob(".*.*.*"):
        match = re.fullmatch(r"\.(.+)\.([\w-]+)-(\d{1,9})\.[0-9a-f]{8}", path.name)
        if match is not None and not (match[2] == HOST and _is_alive(int(match[3]))):
            yield Leftover(path, name=match[1], is_ours=match[2] == HOST)


def _is_alive(process: int) -> bool:
    """Return True if a process of this number runs on this host."""
    try:
        with suppress(PermissionError):  # owned by another user
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def listed(paths: Path | str | Iterable[Path | str]) -> list[Path]:
    """Return one path or several as a list."""
    several = [paths] if isinstance(paths, (str, Path)) else paths
    return [Path(path) for path in several]


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically and durably. Raises UserError if it cannot be written."""
    try:
        with _written(path, content) as temporary:
            os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); nothing written before is lost") from None


@contextmanager
def _written(path: Path, content: str | bytes) -> Iterator[Path]:
    """Write a temporary file and yield its path, for the block to rename or link it to `path`."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)  # already gone after a rename
    fsync(path.parent)


def write_first(path: Path, content: str) -> str:
    """Write a file atomically unless it exists, and return its content. One of several processes wins.

    Raises UserError if it cannot be written.
    """
    if not path.exists():
        with writing(path), _written(path, content) as temporary, suppress(FileExistsError):
            os.link(temporary, path)  # a rename would replace a file that another process has just written
    return read_text(path)


def check_free(folder: Path) -> None:
    """Raise UserError if the path exists, unless it is an empty folder. A link to an empty folder is refused."""
    is_empty_folder = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
    if os.path.lexists(folder) and not is_empty_folder:
        raise UserError(f"{folder}: exists already; choose another folder")


def missing_folders(folder: Path) -> list[Path]:
    """Return `folder` and its parents as far as they do not exist, deepest first: the folders that mkdir creates."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_unused(folders: Sequence[Path], names: Collection[str]) -> None:
    """Remove folders that were created for a run that never began, if the first holds only files of these names.

    folders: from `missing_folders`, before they were created.
    """
    if not folders or not folders[0].is_dir():
        return
    if any(path.name not in names for path in folders[0].iterdir()):
        return
    for name in names:
        (folders[0] / name).unlink(missing_ok=True)
    with suppress(OSError):  # another process may have written into one of them
        for folder in folders:
            folder.rmdir()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for the block to fill, then rename it to `folder`.

    Temporaries of earlier attempts on this host are removed. Raises UserError if `folder` exists, and for an OSError of
    the block.
    """
    check_free(folder)
    partial = _temporary(folder)
    try:
        with writing(folder):
            partial.mkdir(parents=True)
            yield partial
            fsync(partial)
            os.replace(partial, folder)  # replaces an empty folder
            fsync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # already gone after the rename


def fsync(path: Path) -> None:
    """Make the content of a file, or the renames inside a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FileRecord(Config):
    """Size and checksum of a file, or of its beginning, as a manifest stores them."""

    n_bytes: int
    sha256: str
    """Hexadecimal."""

    @classmethod
    def of(
        cls, path: Path, on_read: Callable[[int], object] = lambda n_bytes: None, max_bytes: int = sys.maxsize
    ) -> "FileRecord":
        """Return the record of the first `max_bytes` bytes of a file. Raises UserError if it cannot be read.

        on_read: called with the number of bytes of each part that was read.
        """
        digest = hashlib.sha256()
        n_read = 0
        with reading(path), open(path, "rb", buffering=0) as file:
            while part := file.read(min(HASHED_BYTES_AT_ONCE, max_bytes - n_read)):
                digest.update(part)
                n_read += len(part)
                on_read(len(part))
        return cls(n_bytes=n_read, sha256=digest.hexdigest())
