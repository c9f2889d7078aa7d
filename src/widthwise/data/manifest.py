"""The manifest of a prepared folder, with checksums of all its files.

train.bin .idx, held_out.bin .idx              token files (shards.py)
train.names.jsonl, held_out.names.jsonl        the names of their documents (also shards.py), absent for adopted shards
tokenizer.json or tokenizer_spec.json
manifest.json                                  written last: a folder without it is not finished
"""

from pathlib import Path
from typing import Any, Self

import pydantic

from widthwise.config_io import Config, parse
from widthwise.data.shards import bin_path, idx_path
from widthwise.files import FileRecord, PathInside
from widthwise.mistakes import UserError
from widthwise.records.record import SealedFile

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


class TokenizerRecord(Config):
    """The tokenizer of a prepared folder."""

    spec: str
    id: str
    vocab_size: int
    eos_id: int
    file: PathInside
    """The tokenizer file in the folder."""


class CorpusRecord(Config):
    """The text that was prepared."""

    name: str
    fingerprint: str
    """sha256 of all names and contents; for adopted shards, of the checksums of their files."""
    n_documents: int
    n_bytes: int


class SplitRecord(Config):
    """Counts of a split. `n_bytes` is the size of the text in UTF-8; `n_tokens` includes the end-of-text tokens.

    Adopted shards have no text: their `n_bytes` is `n_token_bytes`.
    """

    n_documents: int
    n_tokens: int
    n_bytes: int
    n_token_bytes: int
    """Bytes of the decoded tokens: n_bytes unless the tokenizer changes text (adds spaces, normalises, drops text)."""

    @property
    def bytes_per_token_byte(self) -> float:
        """Bytes of text for each byte of the decoded tokens."""
        return self.n_bytes / max(1, self.n_token_bytes)


class Splits(Config):
    """The training and the held-out split."""

    train: SplitRecord
    held_out: SplitRecord

    @property
    def n_documents(self) -> int:
        return self.train.n_documents + self.held_out.n_documents

    @property
    def n_bytes(self) -> int:
        return self.train.n_bytes + self.held_out.n_bytes


class HeldOutRecord(Config):
    """Source of a held-out split that is not a fraction of the corpus."""

    sources: tuple[str, ...]
    n_left_out: int
    """Documents of the corpus that are equal to a held-out one, and therefore in no split."""


class Manifest(Config):
    """The content of manifest.json."""

    format_version: int
    tokenizer: TokenizerRecord
    corpus: CorpusRecord
    held_out_fraction: float | None
    """None with `held_out_from`, and for adopted shards, which were not split by a fraction."""
    held_out_from: HeldOutRecord | None = None
    splits: Splits
    files: dict[PathInside, FileRecord]
    """Every file of the folder except the manifest."""

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> Self:
        """Require every file to be listed, because an unlisted file would be read without a check."""
        shards = [path_of(Path(split)).name for split in Splits.model_fields for path_of in (bin_path, idx_path)]
        missing = [name for name in (*shards, self.tokenizer.file) if name not in self.files]
        if missing:
            raise ValueError(f"files: lacks {missing[0]}")
        return self


def parse_manifest(data: Any, where: str) -> Manifest:
    """Parse a manifest from JSON data. Raises UserError beginning with `where` if it is damaged or too new."""
    if not isinstance(data, dict):
        raise UserError(f"{where}: holds {type(data).__name__}, not a mapping")
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(f"{where}: has format version {version!r}; this program reads {FORMAT_VERSION}")
    return parse(Manifest, SealedFile.checked(data, where), where)
