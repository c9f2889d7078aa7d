"""Preparation of a corpus: documents are divided into splits and tokenized into a folder that is written atomically."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from widthwise.config_io import mistakes_of
from widthwise.data.corpus import Corpus, Document, ProgressCallback, Split, SplitDocument, Totals, ignore_progress
from widthwise.data.identity import HeldOutRecord, SplitRecord, Splits
from widthwise.data.json_tokenizer import check_spec, open_tokenizer
from widthwise.data.prepared import PreparedData, assemble, record_files, write_manifest
from widthwise.data.readers import open_source
from widthwise.data.shards import ShardWriter, durable, name_lines, names_path, token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import writing
from widthwise.mistakes import UserError


def scan(documents: Iterable[SplitDocument], progress: ProgressCallback = ignore_progress) -> Totals:
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
    return Totals(fingerprint.hexdigest(), counts["train"] + n_held_out, n_bytes, n_held_out, counts[None])


class SplitRule(ABC):
    """Assigns documents to splits by their content alone, independently of order and other documents."""

    fraction: float | None = None
    """The share of held-out documents; None for another rule."""

    def assign(self, document: Document) -> SplitDocument:
        """Return a document of the corpus with its split."""
        content = document.text.encode()
        digest = hashlib.sha256(content).digest()
        return SplitDocument(document.name, document.text, digest, len(content), self.split(digest))

    @abstractmethod
    def split(self, digest: bytes) -> Split | None:
        """Return the split of a document of the corpus with this sha256; None leaves it out of both."""

    def documents(self, corpus: Corpus) -> Iterator[SplitDocument]:
        """Yield all documents of a preparation, in order: held-out documents of other sources, then the corpus."""
        yield from map(self.assign, corpus)

    def record(self, totals: Totals) -> HeldOutRecord | None:
        """Return the manifest's record of other sources of the held-out split; None without them."""
        return None

    @abstractmethod
    def describe_empty_split(self, totals: Totals) -> str:
        """Return the error message for totals that leave a split empty, without the name of the corpus."""


N_SUGGESTED = 100
"""Number of documents that the error for an empty split suggests."""


class HeldOutFraction(SplitRule):
    """Holds out about this fraction of the documents, by a hash of their content."""

    def __init__(self, held_out: float):
        """Raises UserError unless the fraction is between 0 and 1."""
        if not 0 < held_out < 1:
            raise UserError(f"held_out: got {held_out}; expected a fraction between 0 and 1")
        self.fraction = held_out
        self._threshold = int(held_out * 2**64)

    def split(self, digest: bytes) -> Split | None:
        return "held_out" if int.from_bytes(digest[:8], "big") < self._threshold else "train"

    def describe_empty_split(self, totals: Totals) -> str:
        n_train = totals.n_documents - totals.n_held_out
        change = "lower" if n_train == 0 else "raise"
        return (
            f"held_out {self.fraction} puts {n_train} of {totals.n_documents} documents in training and "
            f"{totals.n_held_out} in held-out; {change} held_out "
            f"(on the command line --held-out), or cut the text into more documents: --document-bytes "
            f"{max(1, totals.n_bytes // N_SUGGESTED)}"
        )


class HeldOutSources(SplitRule):
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
                yield replace(self.assign(document), split="held_out")
        yield from super().documents(corpus)

    def record(self, totals: Totals) -> HeldOutRecord | None:
        return HeldOutRecord(sources=self._names, n_left_out=totals.n_left_out)

    def describe_empty_split(self, totals: Totals) -> str:
        if totals.n_held_out == 0:
            return f"held_out_from {', '.join(self._names)} holds no documents"
        return f"leaves nothing to train on: {totals.n_left_out} documents, each equal to one held out"


BATCH_BYTES = 2**20
"""Approximate size of the text of a batch."""


def encode_batch(batch: list[SplitDocument], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of documents end to end, and the length of each, int64.

    Every document ends in an end-of-text token, which is the only token of a left-out document. Raises UserError for a
    document that cannot be encoded, with its name.
    """
    texts = ["" if document.split is None else document.text for document in batch]
    try:
        encoded = tokenizer.encode_batch(texts)
    except UserError:
        for document, text in zip(batch, texts):  # one by one, to find the document
            with mistakes_of(document.name):
                tokenizer.encode(text)
        raise
    for ids in encoded:
        ids.append(tokenizer.eos_id)
    lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
    tokens = np.fromiter(chain.from_iterable(encoded), dtype=token_dtype(tokenizer.vocab_size), count=lengths.sum())
    return tokens, lengths


def batches_of(documents: Iterable[SplitDocument]) -> Iterator[list[SplitDocument]]:
    """Collect documents into batches of about BATCH_BYTES."""
    batch: list[SplitDocument] = []
    n_bytes = 0
    for document in documents:
        batch.append(document)
        n_bytes += document.n_bytes
        if n_bytes >= BATCH_BYTES:
            yield batch
            batch = []
            n_bytes = 0
    yield batch


class SplitShards:
    """Writes the shards `train` and `held_out` in a folder; used in a `with` block, like ShardWriter.

    Left-out documents are counted and not written. With `max_tokens`, writing stops before the first training document
    that would exceed them; that document and all later ones of both splits are ignored.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, max_tokens: int | None = None):
        dtype = token_dtype(tokenizer.vocab_size)
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.is_full = False  # True once a document was ignored because of max_tokens
        self.n_left_out = 0
        self._byte_lengths = tokenizer.token_byte_lengths()
        self._fingerprint = hashlib.sha256()
        self._writers = tuple(ShardWriter(folder / split, dtype) for split in Splits.model_fields)
        self._name_files: list[BinaryIO] = []
        # A row for each split, a column for each field of SplitRecord.
        self._counts = np.zeros((len(self._writers), len(SplitRecord.model_fields)), dtype=np.int64)
        self._files = ExitStack()

    def __enter__(self) -> Self:
        for writer in self._writers:
            self._files.enter_context(writer)
            self._name_files.append(self._files.enter_context(durable(names_path(writer.prefix))))
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)

    def add(self, batch: list[SplitDocument]) -> None:
        """Encode and append documents, until full. Raises UserError as `encode_batch`, and on a full disk."""
        tokens, lengths = encode_batch(batch, self.tokenizer)
        documents = batch
        if self.max_tokens is not None:
            is_train = np.array([document.split == "train" for document in batch], dtype=bool)
            n_train_tokens = self.splits().train.n_tokens + np.cumsum(np.where(is_train, lengths, 0))
            n_fitting = int(np.searchsorted(n_train_tokens, self.max_tokens, side="right"))
            self.is_full = n_fitting < len(batch)
            documents = batch[:n_fitting]
        lengths = lengths[: len(documents)]
        tokens = tokens[: lengths.sum()]
        n_bytes = np.array([document.n_bytes for document in documents], dtype=np.int64)
        for split, writer, names, counts in zip(Splits.model_fields, self._writers, self._name_files, self._counts):
            in_split = np.array([document.split == split for document in documents], dtype=bool)
            split_tokens = tokens[np.repeat(in_split, lengths)]
            writer.add(split_tokens, lengths[in_split])
            with writing(names_path(writer.prefix)):
                names.write(name_lines(document.name for document in documents if document.split == split))
            n_token_bytes = self._byte_lengths[split_tokens].sum()
            counts += (in_split.sum(), len(split_tokens), n_bytes[in_split].sum(), n_token_bytes)
        self._fingerprint.update(b"".join(document.key for document in documents if document.split is not None))
        self.n_left_out += sum(document.split is None for document in documents)

    def totals(self) -> Totals:
        """Return the totals of the documents written."""
        splits = self.splits()
        return Totals(
            self._fingerprint.hexdigest(),
            splits.n_documents,
            splits.n_bytes,
            splits.held_out.n_documents,
            self.n_left_out,
        )

    def splits(self) -> Splits:
        """Return the counts of both splits."""
        train, held_out = (SplitRecord(**dict(zip(SplitRecord.model_fields, row))) for row in self._counts.tolist())
        return Splits(train=train, held_out=held_out)


def prepare(
    corpus: Corpus | Path | str,
    out: Path | str,
    *,
    tokenizer: str = "bpe-4096",
    held_out: float | Path | str | Sequence[Corpus | Path | str] = 0.05,
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
        rule = HeldOutFraction(held_out)
    else:
        sources = [held_out] if isinstance(held_out, (str, Path)) else held_out
        rule = HeldOutSources([_opened(source) for source in sources])

    def training_texts() -> Iterator[str]:
        progress("training the tokenizer", 0, None)
        return (document.text for document in rule.documents(opened) if document.split == "train")

    def fill(folder: Path) -> None:
        expected = None
        if max_tokens is None:
            expected = scan(rule.documents(opened), progress)
            if expected.n_documents == 0:
                raise UserError(f"{opened.name}: holds no documents")
            if expected.n_held_out in (0, expected.n_documents):
                raise UserError(f"{opened.name}: {rule.describe_empty_split(expected)}")
        trained = open_tokenizer(tokenizer, training_texts)
        trained.save(folder)
        with SplitShards(folder, trained, max_tokens) as shards:
            for batch in batches_of(rule.documents(opened)):
                shards.add(batch)
                splits = shards.splits()
                n_bytes_total = None
                if expected is not None:
                    n_bytes_total = expected.n_bytes
                elif max_tokens is not None and splits.train.n_tokens:  # estimated from the tokens so far
                    n_bytes_total = round(splits.n_bytes * max_tokens / splits.train.n_tokens)
                progress("tokenizing", splits.n_bytes, n_bytes_total)
                if shards.is_full:
                    break
        totals = shards.totals()
        if expected not in (None, totals):
            raise UserError(f"{opened.name}: changed while it was being read; prepare it again")
        if max_tokens is not None and totals.n_held_out in (0, totals.n_documents):
            raise UserError(
                f"max_tokens: got {max_tokens}, which leaves {totals.n_documents - totals.n_held_out} documents for "
                f"training and {totals.n_held_out} held out; raise it, or cut the text into more documents "
                "(document_bytes)"
            )
        write_manifest(
            folder,
            name=opened.name,
            fingerprint=totals.fingerprint,
            tokenizer=trained,
            splits=shards.splits(),
            files=record_files(folder, progress),
            held_out_fraction=rule.fraction,
            held_out_from=rule.record(totals),
        )

    return assemble(out, fill, reuse)


def _opened(source: Corpus | Path | str) -> Corpus:
    return source if isinstance(source, Corpus) else open_source(str(source))
