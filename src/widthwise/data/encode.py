"""Documents become tokens, in this process or in several with the same result, and these the shards of both splits."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from widthwise.config_io import UserError
from widthwise.data.documents import Document, Entry, Scan, Scanner
from widthwise.data.manifest import SplitRecord, Splits
from widthwise.data.shards import NameWriter, ShardWriter, TokenFile, token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import restore_tokenizer

WAITING_BATCHES_PER_PROCESS = 2
BATCH_BYTES = 2**20
"""Documents are encoded in batches of about this much text."""
APPENDED_TOKENS_AT_ONCE = 2**24


@dataclass(frozen=True)
class EncodedBatch:
    """Documents in order, with the tokens of all, end to end; one that is left out is as an empty one."""

    entries: list[Entry]
    tokens: np.ndarray
    """(sum of lengths,), of the dtype of the shards."""
    lengths: np.ndarray
    """int64 (n_documents,), the end-of-text tokens included."""


def encode(
    entries: Iterable[tuple[Document, Entry]], tokenizer: Tokenizer, tokenizer_path: Path, n_processes: int
) -> Generator[EncodedBatch, None, None]:
    """The documents' tokens, in order. Other processes load the tokenizer from its file."""
    batches = _batches(entries)
    if n_processes > 1:
        return _in_processes(batches, n_processes, tokenizer.spec, tokenizer_path)
    encoder = _Encoder(tokenizer)
    return (EncodedBatch(batch.entries, *encoder.encode(batch.texts)) for batch in batches)


@dataclass(frozen=True)
class _Batch:
    """Documents that are encoded in one call; `texts` is empty for one that is left out."""

    entries: list[Entry] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def _batches(entries: Iterable[tuple[Document, Entry]]) -> Iterator[_Batch]:
    batch, n_bytes = _Batch(), 0
    for document, entry in entries:
        batch.entries.append(entry)
        batch.texts.append("" if entry.split is None else document.text)
        n_bytes += entry.n_bytes
        if n_bytes >= BATCH_BYTES:
            yield batch
            batch, n_bytes = _Batch(), 0
    yield batch


class _Encoder:
    """A tokenizer, and the dtype in which its tokens are stored. Every process has one."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and lengths, as in an EncodedBatch."""
        documents = self._tokenizer.encode_batch(texts)
        for ids in documents:
            ids.append(self._tokenizer.eos_id)
        lengths = np.array([len(ids) for ids in documents], dtype=np.int64)
        return np.fromiter(chain.from_iterable(documents), dtype=self._dtype, count=lengths.sum()), lengths


def _in_processes(
    batches: Iterator[_Batch], n_processes: int, spec: str, tokenizer_path: Path
) -> Generator[EncodedBatch, None, None]:
    """Encoded batches in order. Only a few batches are in flight at a time, so the corpus may be larger than memory."""
    # Not forked: a fork inherits the locks of torch's and the tokenizer's threads but not the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, _start_worker, (spec, tokenizer_path)) as pool:
        waiting: deque[tuple[_Batch, Future[tuple[np.ndarray, np.ndarray]]]] = deque()
        try:
            for batch in batches:
                waiting.append((batch, pool.submit(_encode_in_worker, batch.texts)))
                if len(waiting) > WAITING_BATCHES_PER_PROCESS * n_processes:
                    yield _first_done(waiting)
            while waiting:
                yield _first_done(waiting)
        except BrokenProcessPool:
            hint = "use fewer if memory is short; a script needs an `if __name__ == '__main__':` guard"
            raise UserError(f"processes: one of {n_processes} died; {hint}") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _first_done(waiting: deque[tuple[_Batch, Future[tuple[np.ndarray, np.ndarray]]]]) -> EncodedBatch:
    batch, encoded = waiting.popleft()
    return EncodedBatch(batch.entries, *encoded.result())


_encoder_of_worker: _Encoder | None = None


def _start_worker(spec: str, tokenizer_path: Path) -> None:
    global _encoder_of_worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _encoder_of_worker = _Encoder(restore_tokenizer(spec, tokenizer_path))


def _encode_in_worker(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    assert _encoder_of_worker is not None
    return _encoder_of_worker.encode(texts)


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

    def __init__(self, folder: Path, tokenizer: Tokenizer, max_tokens: int | None = None, keys: BinaryIO | None = None):
        """keys: a file that the keys of the documents are written to."""
        dtype = token_dtype(tokenizer.vocab_size)
        self.tokenizer, self.max_tokens = tokenizer, max_tokens
        self._byte_lengths = tokenizer.token_byte_lengths()
        self._scanner = Scanner(keys)
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

    def fill(
        self, batches: Generator[EncodedBatch, None, None], has_added: Callable[[], object] = lambda: None
    ) -> None:
        """Appends batches until it is full; `has_added` is called after each."""
        with closing(batches):
            for batch in batches:
                self.add(batch)
                has_added()
                if self.is_full:
                    break

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
        return self.max_tokens is None or self.n_train_tokens + splits.train.n_tokens <= self.max_tokens

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
        if self.max_tokens is None:
            return len(train_lengths)
        after = self.n_train_tokens + np.cumsum(train_lengths)
        n_kept = int(np.searchsorted(after, self.max_tokens, side="right"))
        self.is_full = n_kept < len(train_lengths)
        return n_kept

    def found(self) -> Scan:
        """What was written, as a scan of it would find."""
        return self._scanner.result()

    def splits(self) -> Splits:
        return Splits(**{name: SplitRecord(**vars(count)) for name, count in zip(Splits.model_fields, self._counts)})
