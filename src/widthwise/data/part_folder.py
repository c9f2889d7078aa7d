"""The folder of a part of a preparation: its shards, the keys of its documents, and what it holds.

train.bin .idx .names.jsonl, held_out.bin .idx .names.jsonl   as in a prepared folder
keys.bin    the keys of its documents, one after the other: a length, a name, a digest
part.json   counts
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from widthwise.config_io import Config, parse
from widthwise.data.documents import DIGEST_BYTES, Document, Entry, Scan, Scanner
from widthwise.data.encode import encode
from widthwise.data.manifest import Splits
from widthwise.data.split_shards import SplitShards
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import fsync_file, new_folder, read_json, reading, write_atomic

KEYS, RECORD = "keys.bin", "part.json"
KEYS_READ_AT_ONCE = 2**24


class PartRecord(Config):
    """What a part holds, beside its shards."""

    splits: Splits
    n_left_out: int
    """Documents that were equal to a held-out one."""
    is_cut: bool
    """Whether it alone has more training tokens than the whole may have, and was left before its end."""

    @property
    def found(self) -> Scan:
        """Its counts, without a fingerprint: that of the whole needs the keys of all documents."""
        train, held_out = self.splits.train, self.splits.held_out
        n_documents, n_bytes = train.n_documents + held_out.n_documents, train.n_bytes + held_out.n_bytes
        return Scan("", n_documents, n_bytes, held_out.n_documents, self.n_left_out)


def write_part(
    target: Path,
    entries: Iterable[tuple[Document, Entry]],
    tokenizer: Tokenizer,
    tokenizer_path: Path,
    max_tokens: int | None = None,
    has_added: Callable[[SplitShards], None] = lambda shards: None,
) -> None:
    """Tokenizes documents into a folder that appears whole; `has_added` is called after each batch."""
    with new_folder(target) as partial:
        with open(partial / KEYS, "xb") as keys:
            scanner = _KeyWriter(keys)
            with SplitShards(partial, tokenizer, scanner, max_tokens) as shards:
                for batch in encode(entries, tokenizer, tokenizer_path, 1):
                    shards.add(batch)
                    has_added(shards)
                    if shards.is_full:
                        break
        fsync_file(partial / KEYS)
        record = PartRecord(splits=shards.splits(), n_left_out=scanner.n_left_out, is_cut=shards.is_full)
        write_atomic(partial / RECORD, record.model_dump_json(indent=1) + "\n")


class _KeyWriter(Scanner):
    """A scanner that writes the keys of the documents to a file."""

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file

    def count_keys(self, keys: bytes) -> None:
        super().count_keys(keys)
        self._file.write(keys)


def read_record(folder: Path) -> PartRecord:
    """Raises UserError where there is none."""
    return parse(PartRecord, read_json(folder / RECORD), str(folder / RECORD))


def read_keys(folder: Path) -> Iterator[bytes]:
    """The keys of all documents, cut anywhere."""
    with reading(folder / KEYS), open(folder / KEYS, "rb") as file:
        while keys := file.read(KEYS_READ_AT_ONCE):
            yield keys


def read_digests(folder: Path) -> Iterator[bytes]:
    """The digest of each document."""
    with reading(folder / KEYS), open(folder / KEYS, "rb") as file:
        while length := file.read(8):
            file.seek(int.from_bytes(length, "little"), 1)
            yield file.read(DIGEST_BYTES)
