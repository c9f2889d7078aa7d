"""Documents, corpora, and what is counted of them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


Split = Literal["train", "held_out"]
DIGEST_BYTES = 32


@dataclass(frozen=True)
class Scan:
    """The totals of documents. `fingerprint` is the sha256 (hex) of all names and contents in order."""

    fingerprint: str
    n_documents: int
    n_bytes: int
    n_held_out: int
    n_left_out: int
    """Documents that are in neither split, and in no other number."""


class Entry(NamedTuple):
    """What is kept of a document when its text is not."""

    name: str
    digest: bytes
    """sha256 of its content."""
    n_bytes: int
    split: Split | None
    """None: it is left out."""

    @property
    def key(self) -> bytes:
        """Its name and digest, as a fingerprint reads them."""
        name = self.name.encode("utf-8", "surrogateescape")
        return len(name).to_bytes(8, "little") + name + self.digest


class Scanner:
    """Builds a `Scan` document by document."""

    def __init__(self):
        self._hash = hashlib.sha256()
        self.n_documents = self.n_bytes = self.n_held_out = self.n_left_out = 0

    def count(self, entry: Entry) -> None:
        """Counts the next document."""
        if entry.split is None:
            self.n_left_out += 1
            return
        self.count_keys(entry.key)
        self.n_documents += 1
        self.n_bytes += entry.n_bytes
        self.n_held_out += entry.split == "held_out"

    def count_keys(self, keys: bytes) -> None:
        """Takes in the keys of documents, one after the other, or a part of these, for the fingerprint alone."""
        self._hash.update(keys)

    def count_totals(self, found: Scan) -> None:
        """Counts documents whose keys are counted by themselves."""
        self.n_documents += found.n_documents
        self.n_bytes += found.n_bytes
        self.n_held_out += found.n_held_out
        self.n_left_out += found.n_left_out

    def result(self) -> Scan:
        return Scan(self._hash.hexdigest(), self.n_documents, self.n_bytes, self.n_held_out, self.n_left_out)


def scan(entries: Iterable[tuple[Document, Entry]], progress: ProgressCallback = ignore_progress) -> Scan:
    """Reads all documents once."""
    scanner = Scanner()
    for _, entry in entries:
        scanner.count(entry)
        progress("reading", scanner.n_bytes, None)
    return scanner.result()


def train_texts(entries: Iterable[tuple[Document, Entry]]) -> Iterator[str]:
    """The texts of the training split, in order."""
    return (document.text for document, entry in entries if entry.split == "train")
