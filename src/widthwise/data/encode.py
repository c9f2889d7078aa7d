"""Encodes batches of texts in this process or in several, with the same result."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError
from widthwise.data.shards import token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import restore_tokenizer

WAITING_BATCHES_PER_PROCESS = 2


@dataclass(frozen=True)
class Batch:
    """Texts to encode, by split: [train, held_out]."""

    texts: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))


@dataclass(frozen=True)
class EncodedPart:
    """The encoded texts of one split in a batch: tokens (sum of lengths,), lengths (n_documents,)."""

    tokens: np.ndarray
    lengths: np.ndarray
    n_bytes: int
    n_token_bytes: int


class _Encoder:
    """Encodes batches; every process has one."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._byte_lengths = tokenizer.token_byte_lengths()
        self._dtype = token_dtype(tokenizer.vocab_size)

    def encode(self, batch: Batch) -> list[EncodedPart]:
        return [self._encode_part(texts) for texts in batch.texts]

    def _encode_part(self, texts: list[str]) -> EncodedPart:
        documents = [[*ids, self._tokenizer.eos_id] for ids in self._tokenizer.encode_batch(texts)]
        lengths = np.array([len(document) for document in documents], dtype=np.int64)
        tokens = np.fromiter(chain.from_iterable(documents), dtype=self._dtype, count=lengths.sum())
        n_bytes = sum(len(text.encode()) for text in texts)
        return EncodedPart(tokens, lengths, n_bytes, int(self._byte_lengths[tokens].sum()))


def encode_batches(
    batches: Iterator[Batch], tokenizer: Tokenizer, tokenizer_path: Path, n_processes: int
) -> Iterator[list[EncodedPart]]:
    """[train, held_out] of each batch, in order. Other processes load the tokenizer from its file."""
    if n_processes == 1:
        return map(_Encoder(tokenizer).encode, batches)
    return _in_processes(batches, n_processes, tokenizer.spec, tokenizer_path)


def _in_processes(
    batches: Iterator[Batch], n_processes: int, spec: str, tokenizer_path: Path
) -> Iterator[list[EncodedPart]]:
    """Encoded batches in order. Only a few batches are in flight at a time, so the corpus may be larger than memory."""
    # Not forked: a fork inherits the locks of torch's and the tokenizer's threads but not the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, _start_worker, (spec, tokenizer_path)) as pool:
        waiting: deque[Future[list[EncodedPart]]] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(_encode_in_worker, batch))
                if len(waiting) > WAITING_BATCHES_PER_PROCESS * n_processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            hint = "use fewer if memory is short; a script needs an `if __name__ == '__main__':` guard"
            raise UserError(f"processes: one of {n_processes} died; {hint}") from None
        finally:
            pool.shutdown(cancel_futures=True)


_encode_of_worker: Callable[[Batch], list[EncodedPart]] | None = None


def _start_worker(spec: str, tokenizer_path: Path) -> None:
    global _encode_of_worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _encode_of_worker = _Encoder(restore_tokenizer(spec, tokenizer_path)).encode


def _encode_in_worker(batch: Batch) -> list[EncodedPart]:
    assert _encode_of_worker is not None
    return _encode_of_worker(batch)
