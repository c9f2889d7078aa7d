"""Token files in the `.bin` / `.idx` format of Megatron-LM's IndexedDataset, byte for byte.

.bin   the tokens of all sequences, one after another
.idx   9 bytes magic, u64 version 1, u8 dtype code, u64 number of sequences, u64 number of document indices,
       then int32 sequence lengths, int64 byte offsets of the sequences, int64 document indices
       (0 first, the number of sequences last). Little-endian. Written here, a sequence is a document.

PREFIX.names.jsonl   the names of the documents in order, each line a name as JSON
"""

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from widthwise.files import parse_json, reading, writing
from widthwise.mistakes import UserError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPE_OF_CODE = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
CODE_OF_DTYPE = {dtype: code for code, dtype in DTYPE_OF_CODE.items()}
FIRST_VOCAB_OF_INT32 = 65_500
"""Megatron-LM stores smaller vocabularies as uint16."""
NAMES = ".names.jsonl"


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype that Megatron-LM chooses for a vocabulary."""
    return np.dtype("<u2") if vocab_size < FIRST_VOCAB_OF_INT32 else np.dtype("<i4")


def bin_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".idx")


def names_path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + NAMES)


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for the block to write, and flush it to disk at the end. Raises UserError on a full disk."""
    with writing(path), open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class ShardWriter:
    """Writes `prefix.bin` document by document, and `prefix.idx` at the end of its `with` block.

    After an exception there is no index. Raises UserError on a full disk.
    """

    def __init__(self, prefix: Path, dtype: np.dtype):
        self.prefix = prefix
        self.dtype = dtype
        self._lengths: list[np.ndarray] = []
        self._stack = ExitStack()
        self._bin: BinaryIO

    def __enter__(self) -> Self:
        self._bin = self._stack.enter_context(durable(bin_path(self.prefix)))
        return self

    def add(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Append documents. tokens: (sum of lengths,), end to end; lengths: (n_documents,)."""
        assert tokens.shape == (lengths.sum(),)
        assert tokens.dtype == self.dtype
        if len(lengths) and lengths.max() > np.iinfo(np.int32).max:
            raise UserError(
                f"{bin_path(self.prefix)}: a document has {lengths.max()} tokens; the format allows 2147483647"
            )
        with writing(bin_path(self.prefix)):
            self._bin.write(tokens.tobytes())
        self._lengths.append(lengths.astype(np.int32))

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        if error[0] is None:
            lengths = np.concatenate([np.zeros(0, np.int32), *self._lengths])
            header = HEADER.pack(MAGIC, 1, CODE_OF_DTYPE[self.dtype], len(lengths), len(lengths) + 1)
            offsets = _starts(lengths)[:-1] * self.dtype.itemsize
            arrays = (lengths.astype("<i4"), offsets.astype("<i8"), np.arange(len(lengths) + 1).astype("<i8"))
            with durable(idx_path(self.prefix)) as file:
                file.write(header + b"".join(array.tobytes() for array in arrays))


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Return the start of each of n sequences, and the sum of the lengths, int64 (n + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


class TokenFile:
    """A memory-mapped token file.

    `document_starts` has the first token of each document, then n_tokens, int64 (n_documents + 1,). `fingerprint` is
    the CRC-32 of the index, a cheap way to detect different documents.
    """

    def __init__(self, prefix: Path):
        """Open `prefix.bin` and `prefix.idx`. Raises UserError with the file if one is missing or damaged."""
        self.prefix = Path(prefix)
        path = idx_path(self.prefix)
        with reading(path), open(path, "rb") as file:
            header = file.read(HEADER.size)
            self.dtype, n_sequences, n_indices = _parse_header(header, os.fstat(file.fileno()).st_size, path)
            index = file.read()
        self.fingerprint = zlib.crc32(index, zlib.crc32(header))
        lengths = np.frombuffer(index, "<i4", n_sequences)
        offsets = np.frombuffer(index, "<i8", n_sequences, 4 * n_sequences)
        documents = np.frombuffer(index, "<i8", n_indices, 12 * n_sequences)
        starts = _starts(lengths)
        if (lengths < 0).any() or (offsets != starts[:-1] * self.dtype.itemsize).any():
            raise UserError(f"{path}: its sequences do not follow one another; it is damaged")
        if n_indices == 0 or documents[0] != 0 or documents[-1] != n_sequences or (np.diff(documents) < 0).any():
            raise UserError(f"{path}: its document boundaries are out of range; it is damaged")
        self.n_tokens = int(starts[-1])
        self.document_starts: np.ndarray = starts[documents]
        path = bin_path(self.prefix)
        with reading(path):
            n_bytes = path.stat().st_size
            if n_bytes != self.n_bytes:
                raise UserError(f"{path}: has {n_bytes} bytes where its index requires {self.n_bytes}; it is damaged")
            self._tokens = np.memmap(path, dtype=self.dtype, mode="r") if n_bytes else np.zeros(0, self.dtype)

    @property
    def n_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def n_bytes(self) -> int:
        """The size of `prefix.bin`."""
        return self.n_tokens * self.dtype.itemsize

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Return a view of the tokens from start to stop - 1 of all documents end to end, in the file's dtype."""
        if not 0 <= start <= stop <= self.n_tokens:
            raise IndexError(f"tokens {start}..{stop} of a file with {self.n_tokens}")
        return self._tokens[start:stop]

    def document(self, index: int) -> np.ndarray:
        """Return the tokens of a document, including its end-of-text token."""
        return self.tokens(int(self.document_starts[index]), int(self.document_starts[index + 1]))

    def parts(self, n_tokens: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield all documents in parts of about n_tokens: their tokens end to end, and the length of each document."""
        first = 0
        while first < self.n_documents:
            stop = int(np.searchsorted(self.document_starts, self.document_starts[first] + n_tokens))
            stop = min(max(stop, first + 1), self.n_documents)
            starts = self.document_starts[first : stop + 1]
            yield self.tokens(int(starts[0]), int(starts[-1])), np.diff(starts)
            first = stop


def write_tokens(prefix: Path, vocab_size: int, documents: Iterable[list[int]]) -> TokenFile:
    """Write a token file and open it. documents: the tokens of each document."""
    dtype = token_dtype(vocab_size)
    with ShardWriter(prefix, dtype) as writer:
        for ids in documents:
            writer.add(np.array(ids, dtype=dtype), np.array([len(ids)]))
    return TokenFile(prefix)


def _parse_header(header: bytes, n_bytes: int, path: Path) -> tuple[np.dtype, int, int]:
    """Return dtype, number of sequences and number of document indices, checked against the size of the file."""
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise UserError(f"{path}: is not a Megatron-LM index (wrong magic)")
    _, version, code, n_sequences, n_indices = HEADER.unpack(header)
    if version != 1 or code not in DTYPE_OF_CODE:
        raise UserError(
            f"{path}: has version {version}, dtype code {code}; expected version 1, one of {sorted(DTYPE_OF_CODE)}"
        )
    expected_bytes = HEADER.size + 12 * n_sequences + 8 * n_indices
    if n_bytes != expected_bytes:
        raise UserError(
            f"{path}: has {n_bytes} bytes where its header requires {expected_bytes}; it is damaged or multimodal"
        )
    return DTYPE_OF_CODE[code], n_sequences, n_indices


def name_lines(names: Iterable[str]) -> bytes:
    """Return the lines of a file of names. Surrogates, for bytes of a file name that are not UTF-8, are escaped."""
    return b"".join(json.dumps(name).encode() + b"\n" for name in names)


def read_names(prefix: Path) -> Iterator[str]:
    """Yield the names of a split's documents from their file. Raises UserError for other content."""
    path = names_path(prefix)
    with reading(path), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            name = parse_json(line.decode(errors="replace"), f"{path}: line {number}")
            if not isinstance(name, str):
                raise UserError(f"{path}: line {number}: holds {type(name).__name__}, not the name of a document")
            yield name
