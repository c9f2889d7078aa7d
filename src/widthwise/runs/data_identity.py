"""The identity of a run's data, by which a resumed run checks that they are the same."""

from typing import Any

from widthwise.config_io import Config, parse, to_data
from widthwise.data.prepared import PreparedData
from widthwise.run_dir import RunDir

KEY = "data"
"""Where `environment.json` keeps it; null there: the run has seen no data yet, as an imported one."""
TOKENIZER_KEY = "tokenizer"
"""Where it keeps the tokenizer of a run that has seen no data yet; null: it came without one."""


class TokenizerIdentity(Config):
    """The tokenizer that made the tokens."""

    spec: str
    id: str


class CorpusIdentity(Config):
    """The text that was tokenized."""

    name: str
    fingerprint: str


class DataIdentity(Config):
    """Equal for two data sets exactly if every byte is equal."""

    tokenizer: TokenizerIdentity
    corpus: CorpusIdentity
    files: dict[str, str]
    """File name -> sha256."""

    def __str__(self) -> str:
        corpus, tokenizer = self.corpus, self.tokenizer
        return f"{corpus.name} {corpus.fingerprint[:12]}, tokenizer {tokenizer.spec} {tokenizer.id[:12]}"

    def record(self) -> dict[str, Any]:
        """The entry of `environment.json`."""
        return {KEY: to_data(self)}


def identity_of(data: PreparedData) -> DataIdentity:
    """The identity of prepared data, as their manifest has it."""
    manifest = data.manifest
    return DataIdentity(
        tokenizer=TokenizerIdentity(spec=manifest.tokenizer.spec, id=manifest.tokenizer.id),
        corpus=CorpusIdentity(name=manifest.corpus.name, fingerprint=manifest.corpus.fingerprint),
        files={name: record.sha256 for name, record in sorted(manifest.files.items())},
    )


def recorded_identity(run: RunDir) -> DataIdentity:
    """The identity of the data a run was begun with. Raises UserError where its record is broken."""
    return parse(DataIdentity, run.environment().get(KEY), f"{run.path}/environment.json: {KEY}")


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
