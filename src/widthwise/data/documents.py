"""Documents, corpora, and the rule that puts a document into training or held-out data."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from widthwise.config_io import UserError

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the stage, the bytes of text or shards done in it, and the bytes in all (None while unknown)."""


def ignore_progress(stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
    """A progress callback that does nothing."""


class Counter:
    """Adds up the bytes of one stage for a progress callback."""

    def __init__(self, progress: ProgressCallback, stage: str, n_bytes_total: int | None):
        self._progress, self._stage, self._total = progress, stage, n_bytes_total
        self.n_bytes = 0

    def add(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self._progress(self._stage, self.n_bytes, self._total)


@dataclass(frozen=True)
class Document:
    """One text. `name` says where it came from; only `text` is trained on."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents that can be read repeatedly, always in the same order."""

    name: str
    read: Callable[[], Iterator[Document]]

    def __iter__(self) -> Iterator[Document]:
        return self.read()


@dataclass(frozen=True)
class Scan:
    """The totals of one pass over a corpus. `fingerprint` is the sha256 (hex) of all names and contents in order."""

    fingerprint: str
    n_documents: int
    n_bytes: int
    n_held_out: int


class Entry(NamedTuple):
    """What is kept of a document when its text is not."""

    key: bytes
    """Its name and the digest of its content, as a fingerprint reads them."""
    n_bytes: int
    is_held_out: bool
    """Depends only on its content."""


class Scanner:
    """Builds a `Scan` document by document."""

    def __init__(self, held_out: float):
        if not 0 < held_out < 1:
            raise UserError(f"held_out: got {held_out}; expected a fraction between 0 and 1")
        self._threshold = int(held_out * 2**64)
        self._hash = hashlib.sha256()
        self.n_documents = self.n_bytes = self.n_held_out = 0

    def entry(self, document: Document) -> Entry:
        """The entry of a document, which is not counted yet."""
        name, content = document.name.encode("utf-8", "surrogateescape"), document.text.encode()
        digest = hashlib.sha256(content).digest()
        is_held_out = int.from_bytes(digest[:8], "big") < self._threshold
        return Entry(len(name).to_bytes(8, "little") + name + digest, len(content), is_held_out)

    def count(self, entry: Entry) -> None:
        """Counts the next document."""
        self.count_many(entry.key, 1, entry.n_bytes, entry.is_held_out)

    def count_many(self, keys: bytes, n_documents: int, n_bytes: int, n_held_out: int) -> None:
        """Counts documents by their keys, one after the other, or by a part of these, and their totals."""
        self._hash.update(keys)
        self.n_documents += n_documents
        self.n_bytes += n_bytes
        self.n_held_out += n_held_out

    def add(self, document: Document) -> bool:
        """Counts a document; returns whether it is held out."""
        entry = self.entry(document)
        self.count(entry)
        return entry.is_held_out

    def result(self) -> Scan:
        return Scan(self._hash.hexdigest(), self.n_documents, self.n_bytes, self.n_held_out)


def scan(corpus: Corpus, held_out: float, progress: ProgressCallback = ignore_progress) -> Scan:
    """Reads the whole corpus once. Raises UserError for a fraction that is not between 0 and 1."""
    scanner = Scanner(held_out)
    for document in corpus:
        scanner.add(document)
        progress("reading", scanner.n_bytes, None)
    return scanner.result()


def train_texts(corpus: Corpus, held_out: float) -> Iterator[str]:
    """The texts of the training split, in order."""
    scanner = Scanner(held_out)
    return (document.text for document in corpus if not scanner.entry(document).is_held_out)
