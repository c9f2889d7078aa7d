"""Encodes documents in this process or in several, with the same result."""

import multiprocessing
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError
from widthwise.data.documents import Document, Entry
from widthwise.data.shards import token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import restore_tokenizer

WAITING_BATCHES_PER_PROCESS = 2


BATCH_BYTES = 2**20
"""Documents are encoded in batches of about this much text."""


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
