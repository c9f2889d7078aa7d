"""Encoding of documents into the token shards of both splits."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from widthwise.config_io import mistakes_of
from widthwise.data.documents import Scan, SplitDocument
from widthwise.data.identity import SplitRecord, Splits
from widthwise.data.shards import ShardWriter, durable, name_lines, names_path, token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import writing
from widthwise.mistakes import UserError

BATCH_BYTES = 2**20
"""Approximate size of the text of a batch."""


def encode_batch(batch: list[SplitDocument], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of documents end to end, and the length of each, int64; a left-out document has no text.

    Every document ends in an end-of-text token. Raises UserError for a document that cannot be encoded, with its name.
    """
    texts = ["" if document.split is None else document.text for document in batch]
    try:
        encoded = tokenizer.encode_batch(texts)
    except UserError:
        for document, text in zip(batch, texts):  # one by one, to name the document
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

    def add(self, batch: list[SplitDocument]) -> None:
        """Encode and append documents, until full. Raises UserError as `encode_batch`, and on a full disk."""
        tokens, lengths = encode_batch(batch, self.tokenizer)
        is_trained_on = np.array([document.split == "train" for document in batch], dtype=bool)
        n_kept = self._n_that_fit(np.where(is_trained_on, lengths, 0))
        documents = batch[:n_kept]
        lengths = lengths[:n_kept]
        tokens = tokens[: lengths.sum()]
        n_bytes = np.array([document.n_bytes for document in documents], dtype=np.int64)
        for split, writer, names, count in zip(Splits.model_fields, self._writers, self._names, self._counts):
            chosen = np.array([document.split == split for document in documents], dtype=bool)
            split_tokens = tokens[np.repeat(chosen, lengths)]
            writer.add(split_tokens, lengths[chosen])
            with writing(names_path(writer.prefix)):
                names.write(name_lines(document.name for document in documents if document.split == split))
            count += (chosen.sum(), len(split_tokens), n_bytes[chosen].sum(), self._byte_lengths[split_tokens].sum())
        self._fingerprint.update(b"".join(document.key for document in documents if document.split is not None))
        self.n_left_out += sum(document.split is None for document in documents)

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
