"""The `data:` section of a recipe, and a cache of its opened and checked data for several runs."""

import hashlib
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, Discriminator, Tag

from widthwise.config_io import Config
from widthwise.data.corpus import ProgressCallback, ignore_progress, named_corpus
from widthwise.data.identity import FORMAT_VERSION, MANIFEST
from widthwise.data.json_tokenizer import check_spec
from widthwise.data.loader import PackingConfig
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.prepared import PreparedData
from widthwise.data.remote import cache_folder, check_url, is_url
from widthwise.files import FileRecord, PathText
from widthwise.mistakes import UserError

DEFAULTS = {"corpus": "python-stdlib", "tokenizer": "bpe-4096", "held_out": 0.05}


class OneSource(Config):
    """One source of text: a `corpus` or a `path`. Default: `corpus: python-stdlib`, which needs no download.

    With a corpus, `tokenizer` defaults to `bpe-4096` and `held_out` to 0.05; with a path, both come from the folder,
    and a given value must equal the folder's.
    """

    corpus: Annotated[str, AfterValidator(lambda name: named_corpus(name).name)] | None = None
    """A corpus by name: python-stdlib (the default), installed-python, synthetic."""
    path: Annotated[PathText, AfterValidator(lambda path: check_url(path) if is_url(path) else path)] | None = None
    """A folder written by `widthwise data prepare` or `widthwise data adopt`, or its URL, see `data.remote`."""
    tokenizer: Annotated[str, AfterValidator(check_spec)] | None = None
    """bytes, bpe-N, or the path of a tokenizer.json."""
    held_out: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """The fraction of documents held out for validation."""
    verify: Literal["full", "sizes"] = "full"
    """Check of the data at every start of a run: `full` reads every byte; `sizes` trusts files of the right size."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {key: value for key, value in data.items() if key != "mixture" or value is not None}
        if data.get("path") is None:
            data |= {key: default for key, default in DEFAULTS.items() if data.get(key) is None}
        return data

    @pydantic.model_validator(mode="after")
    def _check_one_source(self) -> "OneSource":
        if self.corpus is not None and self.path is not None:
            raise ValueError(f"got corpus {self.corpus!r} and path {self.path!r}; give one and set the other to null")
        return self

    def open(self, where: str, progress: ProgressCallback = ignore_progress) -> PreparedData:
        """Open or prepare the data, see `open_data`. where: the path of this section, for errors."""
        if self.path is not None:
            data = PreparedData.open(self.path, progress)
            prepared_with = {"tokenizer": data.manifest.tokenizer.spec, "held_out": data.manifest.held_out_fraction}
            for key, value in prepared_with.items():
                given = getattr(self, key)
                if given not in (None, value):
                    origin = "made without one" if value is None else f"prepared with {value!r}"
                    raise UserError(f"{where}.{key}: got {given!r}, but {self.path} was {origin}")
            return data
        # Slow to import, and not needed to read a recipe.
        from widthwise.data.prepare import HeldOutFraction, prepare, scan

        assert self.corpus is not None
        assert self.tokenizer is not None
        assert self.held_out is not None
        corpus = named_corpus(self.corpus)
        fingerprint = scan(HeldOutFraction(self.held_out).documents(corpus), progress).fingerprint
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(self.tokenizer).name)
        path = Path(self.tokenizer.partition("#")[0])
        content = FileRecord.of(path).sha256 if path.suffix == ".json" else ""
        key = f"{FORMAT_VERSION}\n{self.tokenizer}{content}\n{self.held_out!r}\n{fingerprint}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        out = cache_folder() / "data" / f"{self.corpus}-{readable}-{digest[:16]}"
        return prepare(corpus, out, tokenizer=self.tokenizer, held_out=self.held_out, reuse=True, progress=progress)

    def check(self, data: OpenedData, progress: ProgressCallback = ignore_progress) -> None:
        """Check opened data as `verify` requires; file sizes, manifest and index were checked when they were opened.

        Raises UserError as `PreparedData.verify`; `sizes` does not detect damage that keeps the size of a file.
        """
        assert isinstance(data, PreparedData)
        if self.verify == "full":
            data.verify(progress)
        else:
            _ = data.tokenizer  # reading the tokenizer checks it


class DataConfig(PackingConfig, OneSource):
    """One source, with options for its rows."""


class SourceConfig(OneSource):
    """A source of a mixture."""

    weight: pydantic.PositiveFloat
    """Share of the source in the training windows, relative to the other weights."""


SourceName = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class MixtureConfig(PackingConfig):
    """Several sources, read in proportion to their weights. All must have the same tokenizer."""

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
                raise ValueError(f"got {key}; conflicts with mixture, whose sources define it; set it to null")
        return {key: value for key, value in data.items() if key not in OneSource.model_fields}

    @property
    def weights(self) -> dict[str, int]:
        """The weights of the sources, scaled to whole numbers without a common divisor: 0.5 and 1.25 -> 2 and 5."""
        exact = {name: Fraction(repr(source.weight)) for name, source in self.mixture.items()}
        denominator = math.lcm(*(weight.denominator for weight in exact.values()))
        whole = {name: int(weight * denominator) for name, weight in exact.items()}
        divisor = math.gcd(*whole.values())
        return {name: weight // divisor for name, weight in whole.items()}

    def open(self, where: str, progress: ProgressCallback = ignore_progress) -> MixedData:
        """Open or prepare every source, see `open_data`. where: the path of this section, for errors."""
        sources = {name: source.open(f"{where}.mixture.{name}", progress) for name, source in self.mixture.items()}
        return MixedData(sources, self.weights)

    def check(self, data: OpenedData, progress: ProgressCallback = ignore_progress) -> None:
        """Check every source, see `OneSource.check`."""
        assert isinstance(data, MixedData)
        for name, source in self.mixture.items():
            source.check(data.sources[name], progress)


def _form(data: Any) -> str:
    """Return the tag of a data section. data: plain data, or a config already."""
    mixture = data.get("mixture") if isinstance(data, Mapping) else getattr(data, "mixture", None)
    return "one" if mixture is None else "several"


DataSection = Annotated[
    Annotated[DataConfig, Tag("one")] | Annotated[MixtureConfig, Tag("several")], Discriminator(_form)
]


def open_data(config: DataSection, progress: ProgressCallback = ignore_progress) -> OpenedData:
    """Return the prepared data of a recipe; a named corpus is prepared once and kept in the cache folder.

    If several processes open the same data, one prepares them and the others wait. Raises UserError as `prepare` and
    `PreparedData.open` do, if the tokenizer or held-out fraction of `path` differs from the recipe, and if the sources
    of a mixture have different tokenizers.
    """
    return config.open("data", progress)


Stamps = dict[Path, tuple[int, int, int]]
"""File -> its inode, size in bytes, and time of the last change in ns."""


class DataCache:
    """A cache of the opened and checked data of data sections. An entry is valid until one of its files changes.

    All runs of a comparison share one. A process that receives it by pickle opens the data again, but does not check
    them again.
    """

    def __init__(self, checked: Mapping[str, Stamps] | None = None):
        """checked: section, as JSON -> stamps of its files when they passed the check."""
        self._checked = dict(checked or {})
        self._opened: dict[str, tuple[OpenedData, Stamps]] = {}

    def __reduce__(self) -> tuple[type["DataCache"], tuple[Mapping[str, Stamps]]]:
        return DataCache, (self._checked,)

    def open(self, section: DataSection, progress: ProgressCallback) -> OpenedData:
        """Open as `open_data` does, once until the files change."""
        key = section.model_dump_json()
        if key in self._opened:
            data, stamps = self._opened[key]
            if stamps == _stamps(data):
                return data
        data = open_data(section, progress)
        self._opened[key] = data, _stamps(data)  # taken before any check
        return data

    def check(self, section: DataSection, progress: ProgressCallback) -> None:
        """Check the opened data of a section, once until the files change."""
        key = section.model_dump_json()
        data, stamps = self._opened[key]
        if self._checked.get(key) != stamps:
            section.check(data, progress)
            self._checked[key] = stamps


def _stamps(data: OpenedData) -> Stamps:
    """Return the stamps of the files of some data. A missing file has none, so that it causes a difference."""
    paths = [folder.path / name for folder in data.folders for name in (MANIFEST, *folder.manifest.files)]
    stats = {path: path.stat() for path in paths if path.exists()}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
