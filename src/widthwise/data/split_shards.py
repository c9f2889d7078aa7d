"""The shards of both splits and the names of their documents, written together document by document."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from widthwise.data.documents import Scan, Scanner
from widthwise.data.encode import EncodedBatch
from widthwise.data.manifest import SplitRecord, Splits
from widthwise.data.names import NameWriter
from widthwise.data.shards import ShardWriter, TokenFile, token_dtype
from widthwise.data.tokenizer import Tokenizer

APPENDED_TOKENS_AT_ONCE = 2**24


@dataclass
class _Count:
    """Running totals of one split."""

    n_documents: int = 0
    n_tokens: int = 0
    n_bytes: int = 0
    n_token_bytes: int = 0

    def add(self, *numbers: int) -> None:
        for key, number in zip(vars(self), numbers, strict=True):
            setattr(self, key, getattr(self, key) + number)


class SplitShards:
    """Writes `train` and `held_out` in a folder; used in a `with` block, as ShardWriter is.

    A document that is left out is counted and not written.

    With `max_tokens`, it is full before the first training document that would make them more; that document and all
    behind it are left out, of both splits.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, scanner: Scanner, max_tokens: int | None = None):
        dtype = token_dtype(tokenizer.vocab_size)
        self._byte_lengths = tokenizer.token_byte_lengths()
        self._scanner = scanner
        self._max_tokens = max_tokens
        self._writers = tuple(ShardWriter(folder / name, dtype) for name in Splits.model_fields)
        self._names = tuple(NameWriter(folder / name) for name in Splits.model_fields)
        self._counts = tuple(_Count() for _ in self._writers)
        self._stack = ExitStack()
        self.is_full = False

    def __enter__(self) -> Self:
        for writer in (*self._writers, *self._names):
            self._stack.enter_context(writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def n_train_tokens(self) -> int:
        return self._counts[0].n_tokens

    @property
    def n_bytes(self) -> int:
        """Bytes of text in both splits."""
        return self._scanner.n_bytes

    def add(self, batch: EncodedBatch) -> None:
        """Appends the documents of a batch until it is full."""
        is_trained_on = np.array([entry.split == "train" for entry in batch.entries], dtype=bool)
        n_kept = self._n_that_fit(np.where(is_trained_on, batch.lengths, 0))
        entries, lengths = batch.entries[:n_kept], batch.lengths[:n_kept]
        tokens = batch.tokens[: lengths.sum()]
        n_bytes = np.array([entry.n_bytes for entry in entries], dtype=np.int64)
        for split, writer, names, count in zip(Splits.model_fields, self._writers, self._names, self._counts):
            chosen = np.array([entry.split == split for entry in entries], dtype=bool)
            own = tokens[np.repeat(chosen, lengths)]
            writer.add(own, lengths[chosen])
            names.add(entry.name for entry in entries if entry.split == split)
            count.add(int(chosen.sum()), len(own), int(n_bytes[chosen].sum()), int(self._byte_lengths[own].sum()))
        for entry in entries:
            self._scanner.count(entry)

    def has_room_for(self, splits: Splits) -> bool:
        """Whether all documents of other shards fit behind these."""
        return self._max_tokens is None or self.n_train_tokens + splits.train.n_tokens <= self._max_tokens

    def append(self, folder: Path, splits: Splits, found: Scan, keys: Iterable[bytes]) -> None:
        """Appends all documents of the shards in another folder, for which there must be room.

        `splits` and `found` are their counts, `keys` those of their entries, in parts.
        """
        for name, writer, names, count in zip(Splits.model_fields, self._writers, self._names, self._counts):
            for tokens, lengths in TokenFile(folder / name).parts(APPENDED_TOKENS_AT_ONCE):
                writer.add(tokens, lengths)
            names.append(folder / name)
            count.add(*getattr(splits, name).model_dump().values())
        for part in keys:
            self._scanner.count_keys(part)
        self._scanner.count_totals(found)

    def _n_that_fit(self, train_lengths: np.ndarray) -> int:
        """How many documents of a batch are taken; lengths (n_documents,) are 0 for others."""
        if self.is_full:
            return 0
        if self._max_tokens is None:
            return len(train_lengths)
        after = self.n_train_tokens + np.cumsum(train_lengths)
        n_kept = int(np.searchsorted(after, self._max_tokens, side="right"))
        self.is_full = n_kept < len(train_lengths)
        return n_kept

    def found(self) -> Scan:
        """What was written, as a scan of it would find."""
        return self._scanner.result()

    def splits(self) -> Splits:
        return Splits(**{name: SplitRecord(**vars(count)) for name, count in zip(Splits.model_fields, self._counts)})
