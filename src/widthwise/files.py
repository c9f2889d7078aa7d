"""Files on disk: written whole or not at all, read with errors that name them, known again by their checksum."""

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import pydantic

from widthwise.config_io import Config, UserError, refusing

MAX_JSON_BYTES = 2**28
"""The longest JSON file that is read; the largest tokenizers have a tenth of it."""
MAX_POINTER_BYTES, LFS_POINTER = 1024, b"version https://git-lfs"
"""Size and beginning of the text that Git LFS has in place of a file."""
HASHED_BYTES_AT_ONCE = 2**22
HOST = re.sub(r"\W+", "-", socket.gethostname(), flags=re.ASCII)[:32] or "host"
"""This host, part of the name of a process: machines and containers that share a folder number their own."""


@contextmanager
def reading(path: Path, most: int | None = None) -> Iterator[None]:
    """Turns an OSError of the block into a UserError that names the file being read, after `check_plain_file`."""
    with refusing(f"{path}: cannot be read", OSError):
        check_plain_file(path, most)
        yield


def check_plain_file(path: Path, most: int | None = None) -> None:
    """Raises UserError for what is no plain file, for more than `most` bytes, and for a pointer of Git LFS.

    From a folder, a pipe or a device reading may never end; nor from a file of the kernel, such as /proc/kmsg, which
    has 0 bytes and holds some.
    """
    if not path.exists():
        return  # opening it says why
    if not path.is_file():
        raise UserError(f"{path}: is not a plain file")
    n_bytes = path.stat().st_size
    if most is not None and n_bytes > most:
        raise UserError(f"{path}: has {n_bytes:,} bytes; allowed: up to {most:,}")
    if n_bytes > MAX_POINTER_BYTES:
        return
    with refusing(f"{path}: cannot be read", OSError), open(path, "rb", buffering=0, opener=_without_waiting) as file:
        beginning = file.read(len(LFS_POINTER))
        n_bytes = os.fstat(file.fileno()).st_size  # it may have grown
    if beginning != b"" and n_bytes == 0:
        raise UserError(f"{path}: is not a plain file")
    if beginning == LFS_POINTER:
        raise UserError(f"{path}: is a pointer of Git LFS, not the file itself; `git lfs pull` fetches it")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_text(path: Path, most: int | None = None) -> str:
    """The text of a file, without a byte order mark.

    Raises UserError where it is missing, unreadable or not UTF-8, and as `check_plain_file`.
    """
    try:
        with reading(Path(path), most):
            return Path(path).read_text(encoding="utf-8-sig")
    except UserError:
        raise
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None
    except ValueError as error:  # a zero byte in the path
        raise UserError(f"{str(path)!r}: cannot be read ({error})") from None


def writing(path: Path) -> AbstractContextManager[None]:
    """Turns an OSError of the block, such as a full disk, into a UserError that names the file being written."""
    return refusing(f"{path}: cannot be written", OSError)


@contextmanager
def as_readable_as_others(path: Path) -> Iterator[None]:
    """The file that the block writes gets the permissions of any new file; safetensors keeps its own from others."""
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def parse_json(text: str, where: str) -> Any:
    """JSON that a stranger may have written. Raises UserError, which begins with `where`, for anything else.

    A whole number too large for a float reads as infinity, so that no later conversion overflows.
    """
    try:
        return json.loads(text, parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({error})") from None


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= 300 else float(digits)


def listed(paths: Path | str | Iterable[Path | str]) -> list[Path]:
    """One path or several as a list."""
    return [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]


def read_json(path: Path) -> Any:
    """JSON from a file. Raises UserError where it is missing, broken or longer than MAX_JSON_BYTES."""
    return parse_json(read_text(path, MAX_JSON_BYTES), str(path))


def read_json_mapping(path: Path) -> dict[str, Any]:
    """JSON from a file that holds a mapping. Raises UserError as `read_json`, and for anything but a mapping."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds {type(data).__name__}, not a mapping")
    return data


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"got {name!r}; allowed: a path inside the folder of the file that names it")
    return name


PathText = Annotated[str, pydantic.Field(min_length=1)]
"""A path as it was written. An empty one would mean the working folder."""
PathInside = Annotated[str, pydantic.AfterValidator(_inside)]
"""The name of another file in a manifest: a path that stays inside the manifest's own folder."""


def _temporary(path: Path) -> Path:
    """The path at which a file or folder is written before it gets its name; nobody else writes there.

    Temporaries of the same name that killed processes of this host left are removed.
    """
    for leftover in leftovers(path.parent):
        if leftover.is_ours and leftover.name == path.name:
            if leftover.path.is_dir():
                shutil.rmtree(leftover.path, ignore_errors=True)
            else:
                leftover.path.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{HOST}-{os.getpid()}.{secrets.token_hex(4)}")


class Leftover(NamedTuple):
    """A temporary file that no process of this host is writing."""

    path: Path
    name: str
    """The name that it was to get."""
    is_ours: bool
    """True if it was written on this host, so that its process has certainly ended."""


def leftovers(folder: Path) -> Iterator[Leftover]:
    """The temporaries in a folder whose process was killed or belongs to another host."""
    for path in folder.glob(".*.*.*"):
        found = re.fullmatch(r"\.(.+)\.(?:([\w-]+)-)?(\d{1,9})\.[0-9a-f]{8}", path.name)
        if found is not None and not (found[2] == HOST and _is_alive(int(found[3]))):
            yield Leftover(path, found[1], found[2] == HOST)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file that survives a power cut, whole or not at all. Raises UserError where it cannot."""
    try:
        with _written(path, content) as temporary:
            os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); nothing written before is lost") from None


@contextmanager
def _written(path: Path, content: str | bytes) -> Iterator[Path]:
    """A temporary file with this content, on disk, to which the block gives its name."""
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
        temporary.unlink(missing_ok=True)  # there is none after a rename
    fsync_folder(path.parent)


def write_first(path: Path, content: str) -> str:
    """Writes a file that nobody has written yet, whole; returns what it holds then. Of several processes one wins.

    Raises UserError where it cannot be written.
    """
    if not path.exists():
        with writing(path), _written(path, content) as temporary, suppress(FileExistsError):
            os.link(temporary, path)  # a rename would replace what another has just written
    return read_text(path)


def check_free(folder: Path) -> None:
    """Raises UserError where something has that name already, but for an empty folder."""
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise UserError(f"{folder}: exists already; choose another folder")


def missing_folders(folder: Path) -> list[Path]:
    """A folder and those above it, as far as they are not there: what making it makes."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


def remove_unused(made: Sequence[Path], names: Collection[str]) -> None:
    """Removes folders that were made for work of which nothing came, if the first holds but files of these names."""
    if not made or not made[0].is_dir() or not {each.name for each in made[0].iterdir()} <= set(names):
        return
    for name in names:
        (made[0] / name).unlink(missing_ok=True)
    with suppress(OSError):  # somebody else has put something there
        for folder in made:
            folder.rmdir()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to be filled by the block, which then becomes `folder`, whole or not at all.

    What a killed process of this host left of an earlier attempt is removed; what was left under another name or by
    another host is warned of.
    Raises UserError where `folder` is not free, and for an OSError of the block.
    """
    check_free(folder)
    partial = _temporary(folder)
    for path, _, is_ours in leftovers(folder.parent):
        if path.is_dir():
            sure = "it can" if is_ours else "unless one is at work on it on another host, it can"
            warnings.warn(f"{path}: was left by a process that was killed; {sure} be deleted", stacklevel=3)
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


def is_at(handle: int, path: Path) -> bool:
    """Return True if an open file or folder still has that path: it was neither moved nor deleted."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def file_sha256(path: Path, has_read: Callable[[int], object] = lambda n_bytes: None) -> str:
    """sha256 (hex) of a file; `has_read` is called with the bytes of each part.

    Raises UserError where the file cannot be read.
    """
    digest = hashlib.sha256()
    with reading(path), open(path, "rb", buffering=0) as file:
        while part := file.read(HASHED_BYTES_AT_ONCE):
            digest.update(part)
            has_read(len(part))
    return digest.hexdigest()


class FileRecord(Config):
    """The expected state of a file, from a manifest."""

    n_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path, has_read: Callable[[int], object] = lambda n_bytes: None) -> "FileRecord":
        """The record of a file as it is now; reads every byte. Arguments and errors as `file_sha256`."""
        with reading(path):
            return cls(n_bytes=path.stat().st_size, sha256=file_sha256(path, has_read))
