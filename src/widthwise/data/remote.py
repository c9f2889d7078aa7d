"""Prepared folders at a URL, fetched into the cache through fsspec (extra `remote`)."""

import hashlib
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from widthwise.config_io import refusing, require
from widthwise.data.corpus import ByteCounter, ProgressCallback
from widthwise.data.identity import MANIFEST, Manifest, parse_manifest
from widthwise.data.shards import durable
from widthwise.files import MAX_JSON_BYTES, FileRecord, new_folder, parse_json, write_atomic, writing
from widthwise.mistakes import UserError, shortened

FETCHED_BYTES_AT_ONCE = 2**22
PROTOCOLS = ("file", "http", "https", "s3", "gs", "gcs", "az", "hf")
"""Allowed protocols. Other protocols of fsspec, and chains of several, do more than read a file: the templates of
`reference` give an untrusted file access to the environment variables of this process."""


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

    Raises UserError for a protocol that is not in PROTOCOLS, for `::`, which chains several, and for a password, query
    or fragment, because URLs are stored and printed. The error does not show them.
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

    The files are checked against the manifest, and the copy is complete or absent. If several processes fetch the same
    URL, one fetches and the others wait. If the manifest cannot be fetched, the newest copy is used, with a warning. A
    changed manifest gets a new folder. Raises UserError as `check_url`, for a URL that cannot be read, a damaged
    manifest, and a file that does not match the manifest.
    """
    url = check_url(url).rstrip("/")
    where = f"{url}/{MANIFEST}"
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", url.rpartition("/")[2])[-40:]
    base = cache_folder() / "remote" / f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    try:
        content = b"".join(_parts(url, MANIFEST, MAX_JSON_BYTES))
    except UserError as error:
        copies = [path.parent for path in base.glob(f"[!.]*/{MANIFEST}")]
        if not copies:
            raise
        warnings.warn(f"{error}; using the copy fetched earlier", stacklevel=2)
        return max(copies, key=lambda copy: (copy / MANIFEST).stat().st_mtime)
    manifest = parse_manifest(parse_json(content.decode(errors="replace"), where), where)
    folder = base / hashlib.sha256(content).hexdigest()[:16]
    if (folder / MANIFEST).is_file():
        return folder
    from filelock import FileLock  # slow to import, and not needed for a local folder

    with writing(folder), FileLock(base / ".lock"):
        if not (folder / MANIFEST).is_file():
            with new_folder(folder) as copy:
                _fetch_files(url, manifest, copy, progress)
                write_atomic(copy / MANIFEST, content)
    return folder


def _fetch_files(url: str, manifest: Manifest, folder: Path, progress: ProgressCallback) -> None:
    """Fetch the files of a manifest. Raises UserError for a file that differs from it."""
    counter = ByteCounter(progress, f"fetching {url}", sum(record.n_bytes for record in manifest.files.values()))
    for name, record in manifest.files.items():
        digest = hashlib.sha256()
        n_bytes = 0
        with durable(folder / name) as file:
            for part in _parts(url, name, record.n_bytes + 1):  # one more byte, to notice a longer file
                file.write(part)
                digest.update(part)
                n_bytes += len(part)
                counter.add(len(part))
        if FileRecord(n_bytes=n_bytes, sha256=digest.hexdigest()) != record:
            raise UserError(f"{url}/{name}: differs from its manifest; it is damaged or changed")


def _parts(url: str, name: str, n_bytes: int) -> Iterator[bytes]:
    """Yield the first n_bytes of a file in parts. Raises UserError if it cannot be read."""
    fsspec = require("fsspec", "remote")
    with refusing(f"{url}/{name}: cannot be fetched", Exception):  # any error of the protocol's library
        files, root = fsspec.core.url_to_fs(url)
        with files.open(f"{root}/{name}", "rb") as file:  # fsspec.open would interpret a chain of protocols in the name
            while part := file.read(min(FETCHED_BYTES_AT_ONCE, n_bytes)):
                n_bytes -= len(part)
                yield part
