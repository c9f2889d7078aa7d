"""The identity of a run's data, by which a resumed run checks that they are the same."""

from collections.abc import Mapping
from typing import Any

from widthwise.config_io import Config, parse, to_data
from widthwise.data.manifest import Manifest
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.run_dir import RunDir

KEY = "data"
"""Where `environment.json` keeps it; null there: the run has seen no data yet, as an imported one."""
TOKENIZER_KEY = "tokenizer"
"""Where it keeps the tokenizer of a run that has seen no data yet; null: it came without one."""
VALIDATION_KEY = "validation"
"""Where it keeps checksums of the texts and tasks that the recipe names for validations, if there are some."""


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
        """What two data sets are that differ, in words."""
        return str(self), str(other)


class DataIdentity(Identity):
    """What makes one prepared folder the data it is."""

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
    """What makes a mixture the data it is: its prepared folders and the proportions in which they are read."""

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
    """Whether a run is bound to its data. An imported one may take any of its tokenizer, until it is trained."""
    environment = run.environment()
    return KEY not in environment or environment[KEY] is not None
