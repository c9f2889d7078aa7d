"""A prepared corpus on disk: token files, their tokenizer, and the manifest that vouches for both.

train.bin .idx, held_out.bin .idx   token files (shards.py)
tokenizer.json or tokenizer_spec.json
manifest.json                       written last: a folder without it is not finished
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pydantic

from widthwise.config_io import Config, UserError, parse
from widthwise.data.documents import Counter, ProgressCallback, ignore_progress
from widthwise.data.shards import TokenFile, bin_path, idx_path
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import restore_tokenizer
from widthwise.files import FileRecord, PathInside, file_sha256, read_json_mapping, reading

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
CHECKED_TOKENS_AT_ONCE = 2**24


class TokenizerRecord(Config):
    """The tokenizer of a prepared folder."""

    spec: str
    id: str
    vocab_size: int
    eos_id: int
    file: PathInside
    """Its file in the folder."""


class CorpusRecord(Config):
    """The text that was prepared."""

    name: str
    fingerprint: str
    """sha256 of all names and contents; for adopted shards, of the checksums of their files."""
    n_documents: int
    n_bytes: int


class SplitRecord(Config):
    """One split. `n_bytes` counts the text in UTF-8, `n_tokens` includes one end-of-text token per document.

    Adopted shards have no text: their `n_bytes` is `n_token_bytes`, and `n_tokens` counts the tokens in the file.
    """

    n_documents: int
    n_tokens: int
    n_bytes: int
    n_token_bytes: int
    """Bytes of the decoded tokens: n_bytes unless the tokenizer changes text (adds a space, normalises, drops)."""


class Splits(Config):
    """The training and the held-out split."""

    train: SplitRecord
    held_out: SplitRecord


class Manifest(Config):
    """The content of manifest.json."""

    format_version: int
    tokenizer: TokenizerRecord
    corpus: CorpusRecord
    held_out_fraction: float | None
    """None for adopted shards, which were not split by a fraction."""
    splits: Splits
    files: dict[PathInside, FileRecord]
    """Every file of the folder except the manifest."""

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> Self:
        """Requires every file to be listed, because an unlisted one would be read without being checked."""
        read = [path_of(Path(split)).name for split in Splits.model_fields for path_of in (bin_path, idx_path)]
        missing = [name for name in (*read, self.tokenizer.file) if name not in self.files]
        if missing:
            raise ValueError(f"files: says nothing of {missing[0]}")
        return self


class PreparedData:
    """A prepared folder, opened. `train` and `held_out` are token files."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest
        for name, record in manifest.files.items():
            _check_size(path / name, record.n_bytes)
        self.train = self._open_split("train", manifest.splits.train)
        self.held_out = self._open_split("held_out", manifest.splits.held_out)

    @classmethod
    def open(cls, path: Path | str) -> "PreparedData":
        """Opens a folder of `prepare` or `adopt`. Raises UserError if it is missing, unfinished, damaged or too new."""
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"{path}: no such folder")
        if not is_prepared(path):
            raise UserError(
                f"{path}: has no {MANIFEST}; it is not a prepared corpus, or its preparation never finished"
            )
        data = read_json_mapping(path / MANIFEST)
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise UserError(f"{path / MANIFEST}: has format version {version!r}; this program reads {FORMAT_VERSION}")
        return cls(path, parse(Manifest, data, str(path / MANIFEST)))

    def _open_split(self, name: str, record: SplitRecord) -> TokenFile:
        tokens = TokenFile(self.path / name)
        found, promised = (tokens.n_documents, tokens.n_tokens), (record.n_documents, record.n_tokens)
        if found != promised:
            raise UserError(f"{self.path / name}: holds (documents, tokens) {found}; its manifest promises {promised}")
        return tokens

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises UserError if the tokenizer available now is not the one that made the data."""
        record = self.manifest.tokenizer
        tokenizer = restore_tokenizer(record.spec, self.path / record.file)
        if tokenizer.id != record.id:
            raise UserError(f"{self.path / record.file}: is not the tokenizer the data was made with ({record.spec})")
        return tokenizer

    def check_tokenizer(self) -> None:
        """Raises UserError as `tokenizer`, which is not opened before it is needed."""
        _ = self.tokenizer

    def verify(self, progress: ProgressCallback = ignore_progress) -> None:
        """Checks all checksums, the tokenizer, and every token against its size. Raises UserError naming the file."""
        done = Counter(progress, "checking the data", sum(record.n_bytes for record in self.manifest.files.values()))
        for name, record in self.manifest.files.items():
            if file_sha256(self.path / name, done.add) != record.sha256:
                raise UserError(
                    f"{self.path / name}: its checksum differs from the manifest's; it is damaged: "
                    "delete the folder and prepare it again"
                )
        splits = (self.train, self.held_out)
        done = Counter(progress, "checking the tokens", sum(split.n_bytes for split in splits))
        for split in splits:
            for part in checked_parts(split, self.tokenizer.vocab_size):
                done.add(part.nbytes)


def is_prepared(path: Path) -> bool:
    """Whether the folder holds a finished preparation."""
    return (path / MANIFEST).is_file()


def _check_size(path: Path, n_bytes: int) -> None:
    with reading(path):
        found = path.stat().st_size
    if found != n_bytes:
        raise UserError(f"{path}: has {found} bytes; its manifest promises {n_bytes}; prepare it again")


def checked_parts(tokens: TokenFile, vocab_size: int) -> Iterator[np.ndarray]:
    """All tokens of a file in parts, in order. Raises UserError for a token outside 0..vocab_size - 1, naming it."""
    for start in range(0, tokens.n_tokens, CHECKED_TOKENS_AT_ONCE):
        part = tokens.tokens(start, min(start + CHECKED_TOKENS_AT_ONCE, tokens.n_tokens))
        if part.min() < 0 or part.max() >= vocab_size:
            first = int(np.argmax((part < 0) | (part >= vocab_size)))
            raise UserError(
                f"{bin_path(tokens.prefix)}: token {start + first} is {part[first]}, outside its vocabulary: "
                f"0 to {vocab_size - 1}"
            )
        yield part
