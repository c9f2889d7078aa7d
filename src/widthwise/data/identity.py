"""The identity of a run's data, recorded in `environment.json`, by which a resumed run checks its data."""

from collections.abc import Mapping
from typing import Any

from widthwise.config_io import Config, parse
from widthwise.data.tokenizer import Tokenizer
from widthwise.mistakes import UserError
from widthwise.run_dir import RunDir

KEY = "data"
"""Key of the identity in `environment.json`; null while the run has no data, as after an import."""
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

    def __str__(self) -> str:
        return f"{self.name} {self.fingerprint[:12]}"


class DataIdentity(Config):
    """Base class of identities, which are equal if and only if every byte of two data sets is equal."""

    tokenizer: TokenizerIdentity

    def record(self) -> dict[str, Any]:
        """Return the entry of `environment.json`."""
        return {KEY: self.model_dump()}

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


def describe_difference(first: DataIdentity, second: DataIdentity) -> tuple[str, str]:
    """Describe two data sets that differ; for mixtures with the same tokenizer only the first source that differs."""
    if (
        isinstance(first, MixtureIdentity)
        and isinstance(second, MixtureIdentity)
        and first.tokenizer == second.tokenizer
    ):
        for name in sorted(first.sources.keys() | second.sources.keys()):
            pair = [identity.sources.get(name) for identity in (first, second)]
            if pair[0] != pair[1]:
                return f"source {name}: {pair[0] or 'none'}", f"source {name}: {pair[1] or 'none'}"
    return str(first), str(second)


def unseen_data(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the entries of `environment.json` of a run that has no data yet."""
    identity = None if tokenizer is None else {"spec": tokenizer.spec, "id": tokenizer.id}
    return {KEY: None, TOKENIZER_KEY: identity}


def read_identity(environment: Mapping[str, Any], where: str) -> DataIdentity:
    """Return the identity in the content of `environment.json`. Raises UserError, which begins with `where`."""
    record = environment.get(KEY)
    kind = MixtureIdentity if isinstance(record, Mapping) and "sources" in record else FolderIdentity
    return parse(kind, record, f"{where}: {KEY}")


def recorded_identity(run: RunDir) -> DataIdentity:
    """Return the identity of the data that a run was begun with. Raises UserError for a damaged record."""
    return read_identity(run.environment(), f"{run.path}/environment.json")


def check_data_of_run(run: RunDir, data: DataIdentity, than: str, advice: str = "") -> None:
    """Raise UserError if a run was trained on other data. than: name of `data`; advice: the end of the message."""
    recorded = recorded_identity(run)
    if recorded != data:
        before, now = describe_difference(recorded, data)
        raise UserError(f"{run.path}: was trained on other data ({before}) than {than} ({now}){advice}")


def recorded_tokenizer(run: RunDir) -> TokenizerIdentity | None:
    """Return the tokenizer of a run; None without data and tokenizer. Raises as `recorded_identity`."""
    if has_seen_data(run):
        return recorded_identity(run).tokenizer
    record = run.environment().get(TOKENIZER_KEY)
    return None if record is None else parse(TokenizerIdentity, record, f"{run.path}/environment.json: {TOKENIZER_KEY}")


def has_seen_data(run: RunDir) -> bool:
    """Return True for a run bound to its data. An imported run accepts any data of its tokenizer until trained."""
    environment = run.environment()
    return KEY not in environment or environment[KEY] is not None
