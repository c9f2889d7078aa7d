"""The manifest of a prepared folder, with checksums of all its files, and the identity of a run's data.

{train,held_out}.{bin,idx}               token files (shards.py)
{train,held_out}.names.jsonl             names of their documents (also shards.py), absent for adopted shards
tokenizer.json or tokenizer_spec.json
manifest.json                            written last: a folder without it is not finished

A run records the identity of its data in `environment.json`, and checks the data when it is resumed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pydantic

from widthwise.config_io import Config, parse
from widthwise.data.shards import NAMES, bin_path, idx_path
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import FileRecord, PathInside
from widthwise.mistakes import UserError
from widthwise.records.record import Record, SealedFile
from widthwise.run_dir import RunDir

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
DATA_KEY = "data"
"""Key of the identity in `environment.json`; null while the run has no data, such as after an import."""
IMPORTED = "imported"
"""Key in `environment.json` of the origin of an imported run."""
TOKENIZER_KEY = "tokenizer"
"""Key of the tokenizer of a run that has no data; null without a tokenizer."""
VALIDATION_KEY = "validation"
"""Key of the checksums of the recipe's validation texts and tasks, if any."""


class TokenizerIdentity(Config):
    """The tokenizer of the data."""

    spec: str
    id: str

    def __str__(self) -> str:
        return f"tokenizer {self.spec} {self.id[:12]}"


class CorpusIdentity(Config):
    """The text that was tokenized."""

    name: str
    fingerprint: str
    """sha256 of all names and contents; for adopted shards, of the checksums of their files."""

    def __str__(self) -> str:
        return f"{self.name} {self.fingerprint[:12]}"


class DataIdentity(Config):
    """Base class of the identity of data. Two identities are equal if and only if all bytes of the data are."""

    tokenizer: TokenizerIdentity

    def record(self) -> dict[str, Any]:
        """Return the entry of `environment.json`."""
        return {DATA_KEY: self.model_dump()}

    def rows(self) -> dict[str, str]:
        """Return the rows of a table that describe the data."""
        return {"tokenizer": self.tokenizer.spec}


class FolderIdentity(DataIdentity):
    """The identity of a prepared folder."""

    corpus: CorpusIdentity
    files: dict[str, str]
    """File name -> sha256."""

    def __str__(self) -> str:
        return f"{self.corpus}, {self.tokenizer}"

    def rows(self) -> dict[str, str]:
        return {"corpus": self.corpus.name, **super().rows()}


class SourceIdentity(Config):
    """The identity of a source of a mixture."""

    weight: int
    corpus: CorpusIdentity
    files: dict[str, str]
    """File name -> sha256."""

    def __str__(self) -> str:
        return f"{self.corpus} of weight {self.weight}"


class MixtureIdentity(DataIdentity):
    """The identity of a mixture of prepared folders with the same tokenizer."""

    sources: dict[str, SourceIdentity]

    def __str__(self) -> str:
        return "; ".join([*(f"{name}: {source}" for name, source in self.sources.items()), str(self.tokenizer)])

    def rows(self) -> dict[str, str]:
        weights = ", ".join(f"{name}: {source.weight}" for name, source in self.sources.items())
        return {"corpora and their weights": weights, **super().rows()}


class TokenizerRecord(TokenizerIdentity):
    """The tokenizer of a prepared folder."""

    vocab_size: int
    eos_id: int
    file: PathInside
    """The tokenizer file in the folder."""


class CorpusRecord(CorpusIdentity):
    """The text that was prepared."""

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
    """Size of the decoded tokens. Differs from n_bytes if the tokenizer changes text (adds spaces, normalises)."""


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
    """The sources of a held-out split that is not a fraction of the corpus."""

    sources: tuple[str, ...]
    n_left_out: int
    """Documents of the corpus that are equal to a held-out one, and therefore in neither split."""


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
        """Require that shards and tokenizer are in `files`. Otherwise they would be read without a check."""
        shards = [path_of(Path(split)).name for split in Splits.model_fields for path_of in (bin_path, idx_path)]
        missing = [name for name in (*shards, self.tokenizer.file) if name not in self.files]
        if missing:
            raise ValueError(f"files: lacks {missing[0]}")
        return self

    @property
    def identity(self) -> FolderIdentity:
        """Identity of the data, without the names of documents."""
        return FolderIdentity(
            tokenizer=TokenizerIdentity(spec=self.tokenizer.spec, id=self.tokenizer.id),
            corpus=CorpusIdentity(name=self.corpus.name, fingerprint=self.corpus.fingerprint),
            files={name: record.sha256 for name, record in sorted(self.files.items()) if not name.endswith(NAMES)},
        )


def parse_manifest(data: Any, where: str) -> Manifest:
    """Parse a manifest from JSON data. Raises UserError beginning with `where` if it is damaged or too new."""
    if not isinstance(data, dict):
        raise UserError(f"{where}: holds {type(data).__name__}, not a mapping")
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(f"{where}: has format version {version!r}; this program reads {FORMAT_VERSION}")
    return parse(Manifest, SealedFile.checked(data, where), where)


def describe_difference(first: DataIdentity, second: DataIdentity) -> tuple[str, str]:
    """Return descriptions of two identities that differ.

    For mixtures with the same tokenizer, they are of the first source that differs.
    """
    if (
        isinstance(first, MixtureIdentity)
        and isinstance(second, MixtureIdentity)
        and first.tokenizer == second.tokenizer
    ):
        for name in sorted(first.sources.keys() | second.sources.keys()):
            first_source = first.sources.get(name)
            second_source = second.sources.get(name)
            if first_source != second_source:
                return f"source {name}: {first_source or 'none'}", f"source {name}: {second_source or 'none'}"
    return str(first), str(second)


class ImportRecord(Record):
    """The Hugging Face folder from which a run was imported, with fields of `interop.hf_import.ImportedModel`."""

    model_type: str
    n_positions: int = 0
    token_ids: dict[str, int | list[int]]
    config_token_ids: dict[str, int | list[int]] | None = None
    settings: dict[str, dict[str, Any]] = pydantic.Field(default_factory=dict)


def recorded_import(run: RunDir) -> ImportRecord | None:
    """Return the folder from which a run was imported; None for another run. Raises UserError for a damaged record."""
    record = run.environment().get(IMPORTED)
    return None if record is None else parse(ImportRecord, record, f"{run.path}/environment.json: {IMPORTED}")


def without_data(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the entries of `environment.json` of a run that has no data yet."""
    identity = None if tokenizer is None else {"spec": tokenizer.spec, "id": tokenizer.id}
    return {DATA_KEY: None, TOKENIZER_KEY: identity}


def read_identity(environment: Mapping[str, Any], where: str) -> DataIdentity:
    """Return the identity of the data in the content of `environment.json`.

    where: the path of the file, for errors. Raises UserError for a damaged identity.
    """
    record = environment.get(DATA_KEY)
    kind = MixtureIdentity if isinstance(record, Mapping) and "sources" in record else FolderIdentity
    return parse(kind, record, f"{where}: {DATA_KEY}")


def recorded_identity(run: RunDir) -> DataIdentity:
    """Return the identity of the data that a run was begun with. Raises UserError for a damaged record."""
    return read_identity(run.environment(), f"{run.path}/environment.json")


def check_data_of_run(run: RunDir, data: DataIdentity, name: str, advice: str = "") -> None:
    """Raise UserError if a run was trained on other data. name: of `data` in the message; advice: its end."""
    recorded = recorded_identity(run)
    if recorded != data:
        before, now = describe_difference(recorded, data)
        raise UserError(f"{run.path}: was trained on other data ({before}) than {name} ({now}){advice}")


def recorded_tokenizer(run: RunDir) -> TokenizerIdentity | None:
    """Return the identity of a run's tokenizer; None without data and tokenizer. Raises as `recorded_identity`."""
    if has_seen_data(run):
        return recorded_identity(run).tokenizer
    record = run.environment().get(TOKENIZER_KEY)
    return None if record is None else parse(TokenizerIdentity, record, f"{run.path}/environment.json: {TOKENIZER_KEY}")


def has_seen_data(run: RunDir) -> bool:
    """Return True if a run is bound to its data. An imported run is bound when it is first trained."""
    environment = run.environment()
    return DATA_KEY not in environment or environment[DATA_KEY] is not None
