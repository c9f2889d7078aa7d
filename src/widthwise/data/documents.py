"""Documents, their division into splits, and their totals."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from widthwise.config_io import refusing
from widthwise.data.manifest import HeldOutRecord
from widthwise.mistakes import UserError

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the stage, the bytes of text or shards done in it, and the total bytes (None while unknown)."""


def ignore_progress(stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
    """A progress callback that does nothing."""


@dataclass
class Counter:
    """Adds up the bytes of one stage for a progress callback."""

    progress: ProgressCallback
    stage: str
    n_bytes_total: int | None
    n_bytes: int = 0

    def add(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self.progress(self.stage, self.n_bytes, self.n_bytes_total)


@dataclass(frozen=True)
class Document:
    """A text. `name` is its origin; only `text` is used in training."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents that can be read repeatedly, always in the same order. An OSError of `read` becomes a UserError."""

    name: str
    read: Callable[[], Iterator[Document]]

    def __iter__(self) -> Iterator[Document]:
        with refusing(f"{self.name}: cannot be read", OSError):
            yield from self.read()


Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Scan:
    """Totals of documents. `fingerprint` is the sha256 (hex) of all names and contents in order."""

    fingerprint: str
    n_documents: int
    n_bytes: int
    n_held_out: int
    n_left_out: int
    """Documents in neither split, which no other number counts."""


class Entry(NamedTuple):
    """The record of a document: name, digest, size and split."""

    name: str
    digest: bytes
    """sha256 of the content."""
    n_bytes: int
    split: Split | None
    """None: left out."""

    @property
    def key(self) -> bytes:
        """Name and digest, as a fingerprint reads them."""
        name = self.name.encode("utf-8", "surrogateescape")
        return len(name).to_bytes(8, "little") + name + self.digest


def scan(entries: Iterable[tuple[Document, Entry]], progress: ProgressCallback = ignore_progress) -> Scan:
    """Read all documents once and return their totals."""
    fingerprint = hashlib.sha256()
    n_bytes = 0
    counts: dict[Split | None, int] = {"train": 0, "held_out": 0, None: 0}
    for _, entry in entries:
        counts[entry.split] += 1
        if entry.split is not None:
            fingerprint.update(entry.key)
            n_bytes += entry.n_bytes
        progress("reading", n_bytes, None)
    n_held_out = counts["held_out"]
    return Scan(fingerprint.hexdigest(), counts["train"] + n_held_out, n_bytes, n_held_out, counts[None])


def train_texts(entries: Iterable[tuple[Document, Entry]]) -> Iterator[str]:
    """Yield the texts of the training split, in order."""
    return (document.text for document, entry in entries if entry.split == "train")


class Division(ABC):
    """Assigns documents to splits by their content alone, independently of order and other documents."""

    fraction: float | None = None
    """The share of held-out documents; None for another rule."""

    def entry(self, document: Document) -> Entry:
        """Return the record of a document of the corpus."""
        content = document.text.encode()
        digest = hashlib.sha256(content).digest()
        return Entry(document.name, digest, len(content), self.split(digest))

    @abstractmethod
    def split(self, digest: bytes) -> Split | None:
        """Return the split of a document with this sha256; None: left out."""

    def held_out_elsewhere(self) -> Iterator[tuple[Document, Entry]]:
        """Return held-out documents from other sources, which come before the corpus."""
        return iter(())

    def entries(self, corpus: Corpus) -> Iterator[tuple[Document, Entry]]:
        """Yield all documents of a preparation, in order."""
        yield from self.held_out_elsewhere()
        for document in corpus:
            yield document, self.entry(document)

    def record(self, totals: Scan) -> HeldOutRecord | None:
        """Return the source of the held-out split; None for a fraction."""
        return None

    def refuse_empty_split(self, totals: Scan, name: str) -> None:
        """Raise UserError if a split is empty. name: of the corpus."""
        n_train = totals.n_documents - totals.n_held_out
        if totals.n_documents == 0:
            raise UserError(f"{name}: holds no documents")
        if n_train == 0 or totals.n_held_out == 0:
            raise UserError(f"{name}: {self._describe_empty_split(n_train, totals)}")

    @abstractmethod
    def _describe_empty_split(self, n_train: int, totals: Scan) -> str: ...


N_SUGGESTED = 100
"""Number of documents that the error for an empty split suggests."""


class HeldOutFraction(Division):
    """Holds out about this fraction of the documents, by a hash of their content."""

    def __init__(self, held_out: float):
        """Raises UserError unless the fraction is between 0 and 1."""
        if not 0 < held_out < 1:
            raise UserError(f"held_out: got {held_out}; expected a fraction between 0 and 1")
        self.fraction = held_out
        self._threshold = int(held_out * 2**64)

    def split(self, digest: bytes) -> Split | None:
        return "held_out" if int.from_bytes(digest[:8], "big") < self._threshold else "train"

    def _describe_empty_split(self, n_train: int, totals: Scan) -> str:
        change = "lower" if n_train == 0 else "raise"
        return (
            f"held_out {self.fraction} puts {n_train} of {totals.n_documents} documents in training and "
            f"{totals.n_held_out} in held-out; {change} held_out "
            f"(on the command line --held-out), or cut the text into more documents: --document-bytes "
            f"{max(1, totals.n_bytes // N_SUGGESTED)}"
        )


class HeldOutSources(Division):
    """Holds out other sources. Documents of the corpus that are equal to a held-out one are left out."""

    def __init__(self, sources: Sequence[Corpus]):
        """Read the sources once. Raises UserError for an unreadable source."""
        self._sources = sources
        self._names = tuple(source.name for source in sources)
        self._digests = frozenset(
            hashlib.sha256(document.text.encode()).digest() for source in sources for document in source
        )

    def split(self, digest: bytes) -> Split | None:
        return None if digest in self._digests else "train"

    def held_out_elsewhere(self) -> Iterator[tuple[Document, Entry]]:
        for source in self._sources:
            for document in source:
                yield document, self.entry(document)._replace(split="held_out")

    def record(self, totals: Scan) -> HeldOutRecord | None:
        return HeldOutRecord(sources=self._names, n_left_out=totals.n_left_out)

    def _describe_empty_split(self, n_train: int, totals: Scan) -> str:
        if n_train:
            return f"held_out_from {', '.join(self._names)} holds no documents"
        return f"leaves nothing to train on: {totals.n_left_out} documents, each equal to one held out"
