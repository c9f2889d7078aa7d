"""The data of runs: the identity by which a resumed run checks that they are the same, and a cache for several runs."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from widthwise.config_io import Config, parse, to_data
from widthwise.data.config import DataSection, open_data
from widthwise.data.documents import ProgressCallback
from widthwise.data.manifest import MANIFEST, Manifest
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.run_dir import RunDir

KEY = "data"
"""Key of the identity in `environment.json`; null there: the run has seen no data yet, as an imported one."""
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


class Identity(Config):
    """Equal for two data sets exactly if every byte is equal."""

    tokenizer: TokenizerIdentity

    def record(self) -> dict[str, Any]:
        """The entry of `environment.json`."""
        return {KEY: to_data(self)}

    def compared(self, other: "Identity") -> tuple[str, str]:
        """Describe two data sets that differ."""
        return str(self), str(other)


class DataIdentity(Identity):
    """Identity of one prepared folder."""

    corpus: CorpusIdentity
    files: dict[str, str]
    """File name -> sha256."""

    def __str__(self) -> str:
        corpus, tokenizer = self.corpus, self.tokenizer
        return f"{corpus.name} {corpus.fingerprint[:12]}, tokenizer {tokenizer.spec} {tokenizer.id[:12]}"


class SourceIdentity(Config):
    """A source of a mixture."""

    weight: int
    corpus: CorpusIdentity
    files: dict[str, str]
    """File name -> sha256."""

    def __str__(self) -> str:
        return f"{self.corpus.name} {self.corpus.fingerprint[:12]} of weight {self.weight}"


class MixtureIdentity(Identity):
    """Identity of a mixture: its prepared folders and their proportions."""

    sources: dict[str, SourceIdentity]

    def __str__(self) -> str:
        sources = "; ".join(f"{name}: {source}" for name, source in self.sources.items())
        return f"{sources}; tokenizer {self.tokenizer.spec} {self.tokenizer.id[:12]}"

    def compared(self, other: Identity) -> tuple[str, str]:
        """Only the first source that differs, where both are mixtures made by one tokenizer."""
        if isinstance(other, MixtureIdentity) and self.tokenizer == other.tokenizer:
            for name in sorted(self.sources.keys() | other.sources.keys()):
                own, others = self.sources.get(name), other.sources.get(name)
                if own != others:
                    return f"source {name}: {own or 'none'}", f"source {name}: {others or 'none'}"
        return super().compared(other)


def identity_of(data: OpenedData) -> Identity:
    """The identity of prepared data, as their manifests have it."""
    if not isinstance(data, MixedData):
        return DataIdentity(tokenizer=_tokenizer(data.manifest), **_content(data.manifest))
    sources = {
        name: SourceIdentity(weight=data.weights[name], **_content(source.manifest))
        for name, source in data.sources.items()
    }
    first, *_ = data.sources.values()
    return MixtureIdentity(tokenizer=_tokenizer(first.manifest), sources=sources)


def _tokenizer(manifest: Manifest) -> TokenizerIdentity:
    return TokenizerIdentity(spec=manifest.tokenizer.spec, id=manifest.tokenizer.id)


def _content(manifest: Manifest) -> dict[str, Any]:
    """The fields in which the identity of a folder and of a source say what is in it."""
    return {
        "corpus": CorpusIdentity(name=manifest.corpus.name, fingerprint=manifest.corpus.fingerprint),
        "files": {name: record.sha256 for name, record in sorted(manifest.trained_on.items())},
    }


def unseen_data(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The entries of `environment.json` of a run that has seen no data yet."""
    return {KEY: None, TOKENIZER_KEY: None if tokenizer is None else {"spec": tokenizer.spec, "id": tokenizer.id}}


def recorded_identity(run: RunDir) -> Identity:
    """The identity of the data a run was begun with. Raises UserError where its record is broken."""
    found = run.environment().get(KEY)
    is_mixture = isinstance(found, Mapping) and "sources" in found
    return parse(MixtureIdentity if is_mixture else DataIdentity, found, f"{run.path}/environment.json: {KEY}")


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
