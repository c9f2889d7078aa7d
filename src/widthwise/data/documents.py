"""Documents, the split that each goes to, and what is counted of them."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from widthwise.config_io import UserError
from widthwise.data.manifest import HeldOutRecord

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
    """One text. `name` is its origin; only `text` is trained on."""

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
    """A document without its text: name, digest, size and split."""

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


def scan(entries: Iterable[tuple[Document, Entry]], progress: ProgressCallback = ignore_progress) -> Scan:
    """Reads all documents once."""
    fingerprint, n_bytes = hashlib.sha256(), 0
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
    """Puts documents into the splits, each by its content alone, so that neither order nor other documents matter."""

    fraction: float | None = None
    """The share of documents that is held out; None where another rule decides."""

    def entry(self, document: Document) -> Entry:
        """Name, sha256, size and split of a document of the corpus."""
        content = document.text.encode()
        digest = hashlib.sha256(content).digest()
        return Entry(document.name, digest, len(content), self.split(digest))

    @abstractmethod
    def split(self, digest: bytes) -> Split | None:
        """Return the split of a document with this sha256; None: left out."""

    def held_out_elsewhere(self) -> Iterator[tuple[Document, Entry]]:
        """Held-out documents that are not of the corpus; they come before it."""
        return iter(())

    def entries(self, corpus: Corpus) -> Iterator[tuple[Document, Entry]]:
        """All documents of a preparation, in order."""
        yield from self.held_out_elsewhere()
        for document in corpus:
            yield document, self.entry(document)

    def record(self, found: Scan) -> HeldOutRecord | None:
        """Return the source of the held-out split; None where it is a fraction."""
        return None

    def refuse_empty_split(self, found: Scan, name: str) -> None:
        """Raises UserError where a split would hold nothing. name: of the corpus."""
        n_train = found.n_documents - found.n_held_out
        if found.n_documents == 0:
            raise UserError(f"{name}: holds no documents")
        if n_train == 0 or found.n_held_out == 0:
            raise UserError(f"{name}: {self._what_is_empty(n_train, found)}")

    @abstractmethod
    def _what_is_empty(self, n_train: int, found: Scan) -> str: ...


N_CUT = 100
"""Documents into which a text of few is cut by the advice of an error."""


class HeldOutFraction(Division):
    """A hash of the content decides, so that about this fraction of the documents is held out."""

    def __init__(self, held_out: float):
        """Raises UserError for a number that is not between 0 and 1."""
        if not 0 < held_out < 1:
            raise UserError(f"held_out: got {held_out}; expected a fraction between 0 and 1")
        self.fraction = held_out
        self._threshold = int(held_out * 2**64)

    def split(self, digest: bytes) -> Split | None:
        return "held_out" if int.from_bytes(digest[:8], "big") < self._threshold else "train"

    def _what_is_empty(self, n_train: int, found: Scan) -> str:
        change = "lower" if n_train == 0 else "raise"
        return (
            f"held_out {self.fraction} puts {n_train} of {found.n_documents} documents in training and "
            f"{found.n_held_out} in held-out; {change} held_out "
            f"(on the command line --held-out), or cut the text into more documents: --document-bytes "
            f"{max(1, found.n_bytes // N_CUT)}"
        )


class HeldOutSources(Division):
    """Other sources are held out. A document equal to one of theirs is left out of training."""

    def __init__(self, sources: Sequence[Corpus]):
        """Read the sources once. Raises UserError as reading does."""
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

    def record(self, found: Scan) -> HeldOutRecord | None:
        return HeldOutRecord(sources=self._names, n_left_out=found.n_left_out)

    def _what_is_empty(self, n_train: int, found: Scan) -> str:
        if n_train:
            return f"held_out_from {', '.join(self._names)} holds no documents"
        return f"leaves nothing to train on: {found.n_left_out} documents, each equal to one held out"
