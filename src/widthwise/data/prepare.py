"""Preparation of a corpus: divide it into splits, and tokenize it into a folder that is written atomically."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from widthwise.data.documents import Corpus, Document, ProgressCallback, Scan, Split, SplitDocument, ignore_progress
from widthwise.data.encode import SplitShards, batches_of
from widthwise.data.identity import CorpusRecord, HeldOutRecord
from widthwise.data.json_tokenizer import check_spec, open_tokenizer
from widthwise.data.prepared import PreparedData, assemble, record_files, write_manifest
from widthwise.data.readers import open_source
from widthwise.mistakes import UserError


def scan(documents: Iterable[SplitDocument], progress: ProgressCallback = ignore_progress) -> Scan:
    """Read all documents once and return their totals."""
    fingerprint = hashlib.sha256()
    n_bytes = 0
    counts: dict[Split | None, int] = {"train": 0, "held_out": 0, None: 0}
    for document in documents:
        counts[document.split] += 1
        if document.split is not None:
            fingerprint.update(document.key)
            n_bytes += document.n_bytes
        progress("reading", n_bytes, None)
    n_held_out = counts["held_out"]
    return Scan(fingerprint.hexdigest(), counts["train"] + n_held_out, n_bytes, n_held_out, counts[None])


class Division(ABC):
    """Assigns documents to splits by their content alone, independently of order and other documents."""

    fraction: float | None = None
    """The share of held-out documents; None for another rule."""

    def assigned(self, document: Document) -> SplitDocument:
        """Return a document of the corpus with its split."""
        content = document.text.encode()
        digest = hashlib.sha256(content).digest()
        return SplitDocument(document.name, document.text, digest, len(content), self.split(digest))

    @abstractmethod
    def split(self, digest: bytes) -> Split | None:
        """Return the split of a document with this sha256; None: left out."""

    def documents(self, corpus: Corpus) -> Iterator[SplitDocument]:
        """Yield all documents of a preparation, in order: those that are held out from other sources come first."""
        yield from map(self.assigned, corpus)

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

    def documents(self, corpus: Corpus) -> Iterator[SplitDocument]:
        for source in self._sources:
            for document in source:
                yield replace(self.assigned(document), split="held_out")
        yield from super().documents(corpus)

    def record(self, totals: Scan) -> HeldOutRecord | None:
        return HeldOutRecord(sources=self._names, n_left_out=totals.n_left_out)

    def _describe_empty_split(self, n_train: int, totals: Scan) -> str:
        if n_train:
            return f"held_out_from {', '.join(self._names)} holds no documents"
        return f"leaves nothing to train on: {totals.n_left_out} documents, each equal to one held out"


def prepare(
    corpus: Corpus | Path | str,
    out: Path | str,
    *,
    tokenizer: str = "bpe-4096",
    held_out: float | Sequence[Corpus | Path | str] = 0.05,
    max_tokens: int | None = None,
    reuse: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Tokenize a corpus into `out` atomically, and open it.

    corpus: a Corpus, a file, a folder, or a name, see `open_source`. held_out: the fraction of documents to hold out by
    a hash of their content, or sources that are held out completely; then all of `corpus` is trained on, except for
    documents equal to a held-out one, which are left out and counted in the manifest. `bpe-N` is trained on the
    training split alone. max_tokens: stop before the first training document that would exceed this number, without
    reading the rest of the corpus; `bpe-N` is still trained on the whole corpus. reuse: open a finished `out`;
    otherwise anything in `out` is refused.

    Raises UserError if a split is empty, the corpus changes while it is read, or the disk is full.
    """
    check_spec(tokenizer)
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens: got {max_tokens}; expected at least 1")
    opened = _opened(corpus)
    if isinstance(held_out, float | int):
        division = HeldOutFraction(held_out)
    else:
        sources = [held_out] if isinstance(held_out, str) else held_out
        division = HeldOutSources([_opened(source) for source in sources])

    def training_texts() -> Iterator[str]:
        progress("training the tokenizer", 0, None)
        return (document.text for document in division.documents(opened) if document.split == "train")

    def fill(folder: Path) -> None:
        expected = None
        if max_tokens is None:
            expected = scan(division.documents(opened), progress)
            division.refuse_empty_split(expected, opened.name)
        trained = open_tokenizer(tokenizer, training_texts)
        trained.save(folder)
        with SplitShards(folder, trained, max_tokens) as shards:
            for batch in batches_of(division.documents(opened)):
                shards.add(batch)
                progress("tokenizing", *_progress(shards, expected))
                if shards.is_full:
                    break
            if expected not in (None, shards.totals()):
                raise UserError(f"{opened.name}: changed while it was being read; prepare it again")
        _finish(folder, opened.name, division, shards, progress)

    return assemble(out, fill, reuse)


def _opened(source: Corpus | Path | str) -> Corpus:
    return source if isinstance(source, Corpus) else open_source(str(source))


def _progress(shards: SplitShards, expected: Scan | None) -> tuple[int, int | None]:
    """Return the bytes of text done and in all; with `max_tokens` an estimate from the tokens so far."""
    splits = shards.splits()
    if expected is not None:
        return splits.n_bytes, expected.n_bytes
    assert shards.max_tokens is not None
    n_tokens = splits.train.n_tokens
    return splits.n_bytes, round(splits.n_bytes * shards.max_tokens / n_tokens) if n_tokens else None


def _finish(folder: Path, name: str, division: Division, shards: SplitShards, progress: ProgressCallback) -> None:
    """Write the manifest of a folder with shards and tokenizer. name: of the corpus.

    Raises UserError if `max_tokens` leaves a split empty; other empty splits were refused before.
    """
    totals = shards.totals()
    if shards.max_tokens is not None and totals.n_held_out in (0, totals.n_documents):
        raise UserError(
            f"max_tokens: got {shards.max_tokens}, which leaves {totals.n_documents - totals.n_held_out} documents for "
            f"training and {totals.n_held_out} held out; raise it, or cut the text into more documents (document_bytes)"
        )
    write_manifest(
        folder,
        tokenizer=shards.tokenizer,
        corpus=CorpusRecord(
            name=name, fingerprint=totals.fingerprint, n_documents=totals.n_documents, n_bytes=totals.n_bytes
        ),
        splits=shards.splits(),
        files=record_files(folder, progress),
        held_out_fraction=division.fraction,
        held_out_from=division.record(totals),
    )
