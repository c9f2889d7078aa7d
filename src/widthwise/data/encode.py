"""Encoding of documents into the token shards of both splits."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from widthwise.config_io import mistakes_of
from widthwise.data.documents import Document, Entry, Scan
from widthwise.data.identity import SplitRecord, Splits
from widthwise.data.shards import ShardWriter, durable, name_lines, names_path, token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import writing
from widthwise.mistakes import UserError

BATCH_BYTES = 2**20
"""Approximate size of the text of a batch."""


def encode_batch(batch: list[tuple[Document, Entry]], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of documents end to end, and the length of each, int64; a left-out document has no text.

    Every document ends in an end-of-text token. Raises UserError for a document that cannot be encoded, with its name.
    """
    texts = ["" if entry.split is None else document.text for document, entry in batch]
    try:
        documents = tokenizer.encode_batch(texts)
    except UserError:
        for (_, entry), text in zip(batch, texts):  # one by one, to name the document
            with mistakes_of(entry.name):
                tokenizer.encode(text)
        raise
    for ids in documents:
        ids.append(tokenizer.eos_id)
    lengths = np.array([len(ids) for ids in documents], dtype=np.int64)
    tokens = np.fromiter(chain.from_iterable(documents), dtype=token_dtype(tokenizer.vocab_size), count=lengths.sum())
    return tokens, lengths


def batches_of(entries: Iterable[tuple[Document, Entry]]) -> Iterator[list[tuple[Document, Entry]]]:
    """Collect documents into batches of about BATCH_BYTES."""
    batch: list[tuple[Document, Entry]] = []
    n_bytes = 0
    for document, entry in entries:
        batch.append((document, entry))
        n_bytes += entry.n_bytes
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
        self._byte_lengths = tokenizer.token_byte_lengths()
        self._fingerprint = hashlib.sha256()
        self.n_left_out = 0
        self._writers = tuple(ShardWriter(folder / name, dtype) for name in Splits.model_fields)
        self._names: list[BinaryIO] = []
        self._counts = np.zeros((len(self._writers), len(SplitRecord.model_fields)), dtype=np.int64)
        self._stack = ExitStack()
        self.is_full = False

    def __enter__(self) -> Self:
        for writer in self._writers:
            self._stack.enter_context(writer)
            self._names.append(self._stack.enter_context(durable(names_path(writer.prefix))))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add(self, batch: list[tuple[Document, Entry]]) -> None:
        """Encode and append documents, until full. Raises UserError as `encode_batch`, and on a full disk."""
        tokens, lengths = encode_batch(batch, self.tokenizer)
        is_trained_on = np.array([entry.split == "train" for _, entry in batch], dtype=bool)
        n_kept = self._n_that_fit(np.where(is_trained_on, lengths, 0))
        entries = [entry for _, entry in batch[:n_kept]]
        lengths = lengths[:n_kept]
        tokens = tokens[: lengths.sum()]
        n_bytes = np.array([entry.n_bytes for entry in entries], dtype=np.int64)
        for split, writer, names, count in zip(Splits.model_fields, self._writers, self._names, self._counts):
            chosen = np.array([entry.split == split for entry in entries], dtype=bool)
            split_tokens = tokens[np.repeat(chosen, lengths)]
            writer.add(split_tokens, lengths[chosen])
            with writing(names_path(writer.prefix)):
                names.write(name_lines(entry.name for entry in entries if entry.split == split))
            count += (chosen.sum(), len(split_tokens), n_bytes[chosen].sum(), self._byte_lengths[split_tokens].sum())
        self._fingerprint.update(b"".join(entry.key for entry in entries if entry.split is not None))
        self.n_left_out += sum(entry.split is None for entry in entries)

    def _n_that_fit(self, train_lengths: np.ndarray) -> int:
        """Count the documents of a batch that fit. train_lengths: (n_documents,), 0 for documents of no training."""
        if self.max_tokens is None:
            return len(train_lengths)
        after = self.splits().train.n_tokens + np.cumsum(train_lengths)
        n_kept = int(np.searchsorted(after, self.max_tokens, side="right"))
        self.is_full = n_kept < len(train_lengths)
        return n_kept

    def totals(self) -> Scan:
        """Return the totals of the documents written."""
        splits = self.splits()
        return Scan(
            self._fingerprint.hexdigest(),
            splits.n_documents,
            splits.n_bytes,
            splits.held_out.n_documents,
            self.n_left_out,
        )

    def splits(self) -> Splits:
        """Return the counts of both splits."""
        records = (SplitRecord(**dict(zip(SplitRecord.model_fields, count))) for count in self._counts.tolist())
        return Splits(**dict(zip(Splits.model_fields, records)))
