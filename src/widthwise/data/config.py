"""The `data:` part of a recipe: opened and checked, in one process or once for several runs."""

import hashlib
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, Discriminator, Tag

from widthwise.config_io import Config, UserError
from widthwise.data.corpus import named_corpus
from widthwise.data.documents import HeldOutFraction, ProgressCallback, ignore_progress, scan
from widthwise.data.json_tokenizer import check_spec
from widthwise.data.loader import PackingConfig
from widthwise.data.manifest import FORMAT_VERSION, MANIFEST
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.prepared import PreparedData
from widthwise.data.remote import cache_folder, check_url, is_url
from widthwise.files import PathText, file_sha256

DEFAULTS = {"corpus": "python-stdlib", "tokenizer": "bpe-4096", "held_out": 0.05}


class OneSource(Config):
    """Exactly one of `corpus` and `path`. Without either: `corpus: python-stdlib`, which needs no download.

    With a corpus, `tokenizer` defaults to `bpe-4096` and `held_out` to 0.05; with a path, both are the folder's, and
    a given value must agree.
    """

    corpus: Annotated[str, AfterValidator(lambda name: named_corpus(name).name)] | None = None
    """A corpus by name: python-stdlib (the default), installed-python, synthetic."""
    path: Annotated[PathText, AfterValidator(lambda path: check_url(path) if is_url(path) else path)] | None = None
    """A folder made by `widthwise data prepare` or `widthwise data adopt`, or the URL of one, see `data.remote`."""
    tokenizer: Annotated[str, AfterValidator(check_spec)] | None = None
    """bytes, bpe-N, tiktoken:NAME, or the path of a tokenizer.json."""
    held_out: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """The fraction of documents kept for validation."""
    verify: Literal["full", "sizes"] = "full"
    """Check at every start of a run: `full` reads every byte; `sizes` trusts files of the right size."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {key: value for key, value in data.items() if (key, value) != ("mixture", None)}
        if data.get("path") is not None:
            return data
        return {**data, **{key: default for key, default in DEFAULTS.items() if data.get(key) is None}}

    @pydantic.model_validator(mode="after")
    def _check_one_source(self) -> "OneSource":
        if self.corpus is not None and self.path is not None:
            raise ValueError(f"got corpus {self.corpus!r} and path {self.path!r}; give one and set the other to null")
        return self

    def open(self, where: str, progress: ProgressCallback = ignore_progress) -> PreparedData:
        """Opens or prepares the data, see `open_data`. where: the path of this section, for errors."""
        if self.path is not None:
            data = PreparedData.open(self.path, progress)
            found = {"tokenizer": data.manifest.tokenizer.spec, "held_out": data.manifest.held_out_fraction}
            for key, value in found.items():
                given = getattr(self, key)
                if given not in (None, value):
                    adopted = (
                        "adopted without one" if data.manifest.held_out_from is None else "prepared with held_out_from"
                    )
                    made = adopted if value is None else f"prepared with {value!r}"
                    raise UserError(f"{where}.{key}: got {given!r}, but {self.path} was {made}")
            return data
        from widthwise.data.prepare import prepare  # slow to import, and a recipe is read without data

        assert self.corpus is not None
        assert self.tokenizer is not None
        assert self.held_out is not None
        corpus = named_corpus(self.corpus)
        fingerprint = scan(HeldOutFraction(self.held_out).entries(corpus), progress).fingerprint
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(self.tokenizer).name)
        path = Path(self.tokenizer.partition("#")[0])
        content = file_sha256(path) if path.suffix == ".json" else ""
        key = f"{FORMAT_VERSION}\n{self.tokenizer}{content}\n{self.held_out!r}\n{fingerprint}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        out = cache_folder() / "data" / f"{self.corpus}-{readable}-{digest[:16]}"
        return prepare(corpus, out, tokenizer=self.tokenizer, held_out=self.held_out, reuse=True, progress=progress)

    def check(self, data: OpenedData, progress: ProgressCallback = ignore_progress) -> None:
        """Checks opened data, whose sizes, manifest and index are known to agree, as far as `verify` says.

        Raises UserError as `PreparedData.verify`; `sizes` leaves damage unseen that keeps the size of a file.
        """
        assert isinstance(data, PreparedData)
        if self.verify == "full":
            data.verify(progress)
        else:
            _ = data.tokenizer  # opened, and so checked


class DataConfig(PackingConfig, OneSource):
    """One source, and how its rows are read."""


class SourceConfig(OneSource):
    """A source of a mixture."""

    weight: pydantic.PositiveFloat
    """Its share of the training windows, relative to the other weights."""


SourceName = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class MixtureConfig(PackingConfig):
    """Several sources, read in proportion to their weights. All must have one tokenizer."""

    mixture: dict[SourceName, SourceConfig] = pydantic.Field(min_length=2)
    """Sources by name. Their order makes no difference."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _check_no_other_source(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for key in OneSource.model_fields:
            if data.get(key) is not None:
                # Without the value, which may be a URL with a password.
                raise ValueError(f"got {key}; conflicts with mixture, whose sources have their own; set it to null")
        return {key: value for key, value in data.items() if key not in OneSource.model_fields}

    @property
    def weights(self) -> dict[str, int]:
        """The weights, as they are written in decimals, as whole numbers without a common divisor."""
        exact = {name: Fraction(repr(source.weight)) for name, source in self.mixture.items()}
        common = math.lcm(*(weight.denominator for weight in exact.values()))
        whole = {name: int(weight * common) for name, weight in exact.items()}
        return {name: weight // math.gcd(*whole.values()) for name, weight in whole.items()}

    def open(self, where: str, progress: ProgressCallback = ignore_progress) -> MixedData:
        """Opens or prepares every source, see `open_data`. where: the path of this section, for errors."""
        sources = {name: source.open(f"{where}.mixture.{name}", progress) for name, source in self.mixture.items()}
        return MixedData(sources, self.weights)

    def check(self, data: OpenedData, progress: ProgressCallback = ignore_progress) -> None:
        """As `OneSource.check`, of every source."""
        assert isinstance(data, MixedData)
        for name, source in self.mixture.items():
            source.check(data.sources[name], progress)


def _form(data: Any) -> str:
    mixture = data.get("mixture") if isinstance(data, Mapping) else getattr(data, "mixture", None)
    return "one" if mixture is None else "several"


DataSection = Annotated[
    Annotated[DataConfig, Tag("one")] | Annotated[MixtureConfig, Tag("several")], Discriminator(_form)
]


def open_data(config: DataSection, progress: ProgressCallback = ignore_progress) -> OpenedData:
    """The prepared data a recipe asks for; a named corpus is prepared once and kept in the cache folder.

    Processes that ask for the same data at once wait for one of them to prepare it. Raises UserError as `prepare` and
    `PreparedData.open` do, if `path` holds data of another tokenizer or held-out fraction than the recipe names, and
    if the sources of a mixture have different tokenizers.
    """
    return config.open("data", progress)


Stamps = dict[Path, tuple[int, int, int]]
"""File -> its inode, its size in bytes, and when it was changed, in ns."""


class DataCache:
    """Keeps what was opened and checked for a data section until one of its files changes.

    A comparison keeps one for all its runs; a run that is trained alone begins with an empty one. A process that gets
    one by pickle opens the data again, but does not check them again.
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
        if key in self._opened:
            data, stamps = self._opened[key]
            if stamps == _stamps(data):
                return data
        data = open_data(section, progress)
        self._opened[key] = data, _stamps(data)  # of the files before any check
        return data

    def check(self, section: DataSection, progress: ProgressCallback) -> None:
        """Check as the section does what was opened for it, once while the files stay the same."""
        key = section.model_dump_json()
        data, stamps = self._opened[key]
        if self._checked.get(key) != stamps:
            section.check(data, progress)
            self._checked[key] = stamps


def _stamps(data: OpenedData) -> Stamps:
    """Return the stamp of every file that exists, so that a missing one differs from any."""
    paths = [folder.path / name for folder in data.folders for name in (MANIFEST, *folder.manifest.files)]
    stats = {path: path.stat() for path in paths if path.exists()}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
