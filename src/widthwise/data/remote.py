"""Prepared folders at a URL, fetched into the cache file by file through fsspec (extra `remote`)."""

import hashlib
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from widthwise.config_io import refusing, require
from widthwise.data.documents import Counter, ProgressCallback
from widthwise.data.identity import MANIFEST, Manifest, parse_manifest
from widthwise.files import (
    MAX_JSON_BYTES,
    fsync_file,
    fsync_folder,
    parse_json,
    read_text,
    write_atomic,
    writing,
)
from widthwise.mistakes import UserError, shortened

FETCHED_BYTES_AT_ONCE = 2**22
PROTOCOLS = ("file", "http", "https", "s3", "gs", "gcs", "az", "hf")
"""Allowed protocols. Other protocols of fsspec, and chains of several, do more than read a file: `reference` fills in
templates, through which an untrusted file reaches the environment variables of this process."""
LATEST = "latest"
"""File with the name of the folder that was fetched last, within the folder of a URL."""


def cache_folder() -> Path:
    """Return `$WIDTHWISE_CACHE`, else `$XDG_CACHE_HOME/widthwise`, else `~/.cache/widthwise`."""
    if folder := os.environ.get("WIDTHWISE_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "widthwise"


def is_url(path: str) -> bool:
    """Return True for any URL, also of a refused protocol."""
    return re.match(r"[^/]+://", path) is not None


def check_url(url: str) -> str:
    """Validate a URL and return it.

    Raises UserError for a protocol that is not in PROTOCOLS, for `::`, which chains several, and for a secret, which
    is not shown, because URLs are stored and printed.
    """
    protocol = url.partition("://")[0]
    shown = f"{protocol[:60]}://..."
    if protocol not in PROTOCOLS or "::" in url:
        chained = ", and '::', which chains protocols" if "::" in url else ""
        raise UserError(f"{shown}: got protocol {shortened(protocol)}{chained}; allowed: {', '.join(PROTOCOLS)}")
    if ":" in urlsplit(url).netloc.rpartition("@")[0]:
        raise UserError(f"{shown}: holds a password; leave it to the environment or to the settings of fsspec")
    query = re.search(r"[?#]", url)
    if query is not None:
        raise UserError(f"{shown}: holds {query[0]!r}; expected the URL of a folder, without query or fragment")
    return url


def fetched(url: str, progress: ProgressCallback) -> Path:
    """Fetch a prepared folder and return its copy in the cache.

    Every file is checked against the manifest before it gets its name; existing files are not fetched again. Of several
    processes, one fetches and the others wait. If the manifest is unreachable, the last copy is used, with a warning. A
    changed manifest gets a new folder.
    Raises UserError as `check_url`, and for a URL that cannot be read, a damaged manifest, and a file that does not
    match the manifest.
    """
    remote = _Remote(check_url(url).rstrip("/"))
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", remote.url.rpartition("/")[2])[-40:]
    base = cache_folder() / "remote" / f"{readable}-{hashlib.sha256(remote.url.encode()).hexdigest()[:16]}"
    try:
        text = remote.read_text(MANIFEST)
    except UserError as error:
        if not (base / LATEST).is_file():
            raise
        warnings.warn(f"{error}; using the copy fetched earlier", stacklevel=2)
        return base / read_text(base / LATEST)
    where = f"{remote.url}/{MANIFEST}"
    manifest = parse_manifest(parse_json(text, where), where)
    folder = base / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not (folder / MANIFEST).is_file():
        from filelock import FileLock  # slow to import, and not needed for a local folder

        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with FileLock(base / ".lock"):
            _fetch_files(remote, manifest, folder, progress)
            write_atomic(folder / MANIFEST, text)
    if not (base / LATEST).is_file() or read_text(base / LATEST) != folder.name:
        write_atomic(base / LATEST, folder.name)
    return folder


def _fetch_files(remote: "_Remote", manifest: Manifest, folder: Path, progress: ProgressCallback) -> None:
    """Fetch missing files; existing files were checked before they got their name."""
    done = Counter(progress, f"fetching {remote.url}", sum(record.n_bytes for record in manifest.files.values()))
    for name, record in manifest.files.items():
        target = folder / name
        if target.is_file() and target.stat().st_size == record.n_bytes:
            done.add(record.n_bytes)
            continue
        partial = target.with_name(f".{target.name}.partial")
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                digest = hashlib.sha256()
                n_bytes = 0
                with open(partial, "wb") as copy:
                    for part in remote.parts(name):
                        n_bytes += len(part)
                        if n_bytes > record.n_bytes:
                            break
                        digest.update(part)
                        copy.write(part)
                        done.add(len(part))
                if (n_bytes, digest.hexdigest()) != (record.n_bytes, record.sha256):
                    raise UserError(f"{remote.url}/{name}: differs from its manifest; it is damaged or changed")
                fsync_file(partial)
                partial.replace(target)
                fsync_folder(target.parent)
            finally:
                partial.unlink(missing_ok=True)


class _Remote:
    """A folder at a URL."""

    def __init__(self, url: str):
        fsspec = require("fsspec", "remote")
        self.url = url
        with refusing(f"{url}: cannot be fetched", Exception):  # any error of the protocol's library
            self._files, self._root = fsspec.core.url_to_fs(url)

    def read_text(self, name: str) -> str:
        """Return a small file. Raises UserError if it cannot be read or is longer than MAX_JSON_BYTES."""
        content = bytearray()
        for part in self.parts(name):
            content += part
            if len(content) > MAX_JSON_BYTES:
                raise UserError(f"{self.url}/{name}: is longer than {MAX_JSON_BYTES:,} bytes")
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise UserError(f"{self.url}/{name}: is not UTF-8 text") from None

    def parts(self, name: str) -> Iterator[bytes]:
        """Yield a file in parts. Raises UserError if it cannot be read."""
        path = f"{self._root}/{name}"
        with refusing(f"{self.url}/{name}: cannot be fetched", Exception), self._files.open(path, "rb") as file:
            while part := file.read(FETCHED_BYTES_AT_ONCE):
                yield part
