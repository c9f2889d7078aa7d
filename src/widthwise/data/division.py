"""Which documents of a preparation are trained on, and which are held out."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from widthwise.config_io import UserError
from widthwise.data.documents import Corpus, Document, Entry, Scan, Split
from widthwise.data.manifest import HeldOutRecord


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
        """Where a document with this sha256 goes; None: nowhere."""

    def held_out_elsewhere(self) -> Iterator[tuple[Document, Entry]]:
        """Held-out documents that are not of the corpus; they come before it."""
        return iter(())

    def entries(self, corpus: Corpus) -> Iterator[tuple[Document, Entry]]:
        """All documents of a preparation, in order."""
        yield from self.held_out_elsewhere()
        for document in corpus:
            yield document, self.entry(document)

    def record(self, found: Scan) -> HeldOutRecord | None:
        """Where the held-out split comes from, if it is not a fraction."""
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


class ByFraction(Division):
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
            "(on the command line --held-out), or cut the text into more documents (--document-bytes)"
        )


class Apart(Division):
    """The held-out documents are those of other sources. A document equal to one of them is left out of training."""

    def __init__(self, digests: Collection[bytes], names: Sequence[str], sources: Sequence[Corpus] = ()):
        """digests: of the held-out documents; names: of their sources, which are read again where they are given."""
        self._digests, self._names, self._sources = frozenset(digests), tuple(names), sources

    @classmethod
    def of(cls, sources: Sequence[Corpus]) -> "Apart":
        """Reads the sources once. Raises UserError as reading does."""
        digests = [digest_of(document) for source in sources for document in source]
        return cls(digests, [source.name for source in sources], sources)

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


def digest_of(document: Document) -> bytes:
    """sha256 of its content."""
    return hashlib.sha256(document.text.encode()).digest()
