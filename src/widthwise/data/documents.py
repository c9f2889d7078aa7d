"""Documents, their splits and their totals."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from widthwise.config_io import refusing

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


@dataclass(frozen=True)
class SplitDocument(Document):
    """A document with its digest, size and split."""

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
