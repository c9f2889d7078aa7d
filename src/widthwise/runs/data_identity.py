"""The data of runs: the identity by which a resumed run checks that they are the same, and a cache for several runs."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pydantic

from widthwise.config_io import Config, UserError, parse
from widthwise.data.config import DataSection, open_data
from widthwise.data.documents import ProgressCallback
from widthwise.data.manifest import MANIFEST
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.run_dir import RunDir

KEY = "data"
"""Key of the identity in `environment.json`; null there: the run has seen no data yet, as an imported one."""
IMPORTED = "imported"
"""Key in `environment.json` of what a run was imported from."""
TOKENIZER_KEY = "tokenizer"
"""Key of the tokenizer of a run that has seen no data yet; null: it came without one."""
VALIDATION_KEY = "validation"
"""Key of the checksums of the texts and tasks that the recipe names for validations, if there are some."""


class TokenizerIdentity(Config):
    """The tokenizer that made the tokens."""

    spec: str
    id: str


class CorpusIdentity(Config):
    """The text that was tokenized."""

    name: str
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.name} {self.fingerprint[:12]}"


class SourceIdentity(Config):
    """A source of a mixture."""

    weight: int
    corpus: CorpusIdentity
    files: dict[str, str]
    """File name -> sha256."""

    def __str__(self) -> str:
        return f"{self.corpus} of weight {self.weight}"


class DataIdentity(Config):
    """Equal for two data sets exactly if every byte is equal: two prepared folders, or two mixtures of some."""

    tokenizer: TokenizerIdentity
    corpus: CorpusIdentity | None = None
    """None of a mixture."""
    files: dict[str, str] = pydantic.Field(default_factory=dict)
    """File name -> sha256; empty of a mixture."""
    sources: dict[str, SourceIdentity] = pydantic.Field(default_factory=dict)
    """Prepared folders of a mixture and their proportions."""

    @pydantic.model_validator(mode="after")
    def _check_content(self) -> "DataIdentity":
        if bool(self.corpus and self.files) == bool(self.sources):
            raise ValueError("expected either corpus and files, or sources")
        return self

    def record(self) -> dict[str, Any]:
        """Return the entry of `environment.json`."""
        return {KEY: self.model_dump(exclude_defaults=True)}

    def compared(self, other: "DataIdentity") -> tuple[str, str]:
        """Describe two data sets that differ; of mixtures made by one tokenizer the first source that does."""
        if self.sources and other.sources and self.tokenizer == other.tokenizer:
            for name in sorted(self.sources.keys() | other.sources.keys()):
                own, others = self.sources.get(name), other.sources.get(name)
                if own != others:
                    return f"source {name}: {own or 'none'}", f"source {name}: {others or 'none'}"
        return str(self), str(other)

    def __str__(self) -> str:
        tokenizer = f"tokenizer {self.tokenizer.spec} {self.tokenizer.id[:12]}"
        if not self.sources:
            return f"{self.corpus}, {tokenizer}"
        return "; ".join([*(f"{name}: {source}" for name, source in self.sources.items()), tokenizer])


def identity_of(data: OpenedData) -> DataIdentity:
    """Return the identity of prepared data, as their manifests have it."""
    folders = data.sources if isinstance(data, MixedData) else {"": data}
    contents = {
        name: {
            "corpus": CorpusIdentity(name=folder.manifest.corpus.name, fingerprint=folder.manifest.corpus.fingerprint),
            "files": {file: record.sha256 for file, record in sorted(folder.manifest.trained_on.items())},
        }
        for name, folder in folders.items()
    }
    record = next(iter(folders.values())).manifest.tokenizer
    tokenizer = TokenizerIdentity(spec=record.spec, id=record.id)
    if not isinstance(data, MixedData):
        return DataIdentity(tokenizer=tokenizer, **contents[""])
    sources = {name: SourceIdentity(weight=data.weights[name], **content) for name, content in contents.items()}
    return DataIdentity(tokenizer=tokenizer, sources=sources)


def unseen_data(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The entries of `environment.json` of a run that has seen no data yet."""
    return {KEY: None, TOKENIZER_KEY: None if tokenizer is None else {"spec": tokenizer.spec, "id": tokenizer.id}}


def recorded_identity(run: RunDir) -> DataIdentity:
    """Return the identity of the data a run was begun with. Raises UserError where its record is broken."""
    return parse(DataIdentity, run.environment().get(KEY), f"{run.path}/environment.json: {KEY}")


def check_data_of_run(run: RunDir, data: DataIdentity, than: str, advice: str = "") -> None:
    """Raises UserError where a run was trained on other data. than: says which, advice: what to do about it."""
    if (before := recorded_identity(run)) != data:
        was, expected = before.compared(data)
        raise UserError(f"{run.path}: was trained on other data ({was}) than {than} ({expected}){advice}")


def recorded_tokenizer(run: RunDir) -> TokenizerIdentity | None:
    """The tokenizer of a run; None where it has seen no data and came without one. Raises as `recorded_identity`."""
    if has_seen_data(run):
        return recorded_identity(run).tokenizer
    found = run.environment().get(TOKENIZER_KEY)
    return None if found is None else parse(TokenizerIdentity, found, f"{run.path}/environment.json: {TOKENIZER_KEY}")


def has_seen_data(run: RunDir) -> bool:
    """Return True for a run bound to its data. An imported run accepts any data of its tokenizer until trained."""
    environment = run.environment()
    return KEY not in environment or environment[KEY] is not None


Stamps = dict[Path, tuple[int, int, int]]
"""File -> its inode, its size in bytes, and when it was changed, in ns."""


class DataCache:
    """Keeps what was opened and checked for a data section until one of its files changes.

    A comparison keeps one for all its runs; a run that is trained alone begins with an empty one. In another process,
    to which it is sent by pickle, data are opened again, but not checked again.
    """

    def __init__(self, checked: Mapping[str, Stamps] = MappingProxyType({})):
        """checked: section, as JSON -> its files as they were when they passed the check."""
        self._checked = dict(checked)
        self._opened: dict[str, tuple[OpenedData, Stamps]] = {}

    def __reduce__(self) -> tuple[type["DataCache"], tuple[Mapping[str, Stamps]]]:
        return DataCache, (self._checked,)

    def open(self, section: DataSection, progress: ProgressCallback) -> OpenedData:
        """Open as `open_data` does, once while the files stay the same."""
        key = section.model_dump_json()
        kept = self._opened.get(key)
        if kept is None or kept[1] != _stamps(kept[0]):
            data = open_data(section, progress)
            kept = self._opened[key] = data, _stamps(data)  # of the files before any check
        return kept[0]

    def check(self, section: DataSection, progress: ProgressCallback) -> None:
        """The section's `check` of what was opened for it, made once while the files stay the same."""
        key = section.model_dump_json()
        data, stamps = self._opened[key]
        if self._checked.get(key) != stamps:
            section.check(data, progress)
            self._checked[key] = stamps


def _stamps(data: OpenedData) -> Stamps:
    """One for every file that is there, so that a missing one differs from whatever it was before."""
    sources = data.sources.values() if isinstance(data, MixedData) else (data,)
    paths = (source.path / name for source in sources for name in (MANIFEST, *source.manifest.files))
    found = {path: path.stat() for path in paths if path.exists()}
    return {path: (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in found.items()}
