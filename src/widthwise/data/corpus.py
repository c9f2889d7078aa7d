"""Documents with their splits, and named corpora of text that is already on the machine, without downloads."""

import os
import random
import sysconfig
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from widthwise.config_io import check_one_of, refusing
from widthwise.files import reading
from widthwise.mistakes import UserError

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the stage, the bytes of text or shards done in it, and the total bytes (None while unknown)."""


def ignore_progress(stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
    """A progress callback that does nothing."""


@dataclass
class ByteCounter:
    """Adds up the bytes of one stage for a progress callback."""

    progress: ProgressCallback
    stage: str
    n_bytes_total: int | None
    n_bytes: int = 0

    def add(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self.progress(self.stage, self.n_bytes, self.n_bytes_total)


@dataclass(frozen=True)
class Document:
    """A text. `name` is its origin; only `text` is used in training."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents that can be read repeatedly, always in the same order. An OSError of `read` becomes a UserError."""

    name: str
    read: Callable[[], Iterator[Document]]

    def __iter__(self) -> Iterator[Document]:
        with refusing(f"{self.name}: cannot be read", OSError):
            yield from self.read()


Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Totals:
    """Totals of documents in both splits. `fingerprint` is the sha256 (hex) of their names and contents in order."""

    fingerprint: str
    n_documents: int
    n_bytes: int
    n_held_out: int
    n_left_out: int
    """Documents in neither split, which no other number counts."""


@dataclass(frozen=True)
class SplitDocument(Document):
    """A document with its digest, size and split."""

    digest: bytes
    """sha256 of the content."""
    n_bytes: int
    split: Split | None
    """None: left out of both."""

    @property
    def key(self) -> bytes:
        """The bytes from which the fingerprint of a corpus is computed: name and digest."""
        name = self.name.encode("utf-8", "surrogateescape")
        return len(name).to_bytes(8, "little") + name + self.digest


TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})
N_DOCUMENTS = 500
SENTENCES_PER_DOCUMENT = 10
NOUNS = ("cat", "dog", "owl", "bear", "crow", "goat", "duck", "horse")
VERBS = ("see", "hear", "chase", "follow", "greet", "carry")
ADJECTIVES = ("red", "old", "tall", "quiet", "small", "brave")
ENDINGS = ("at dawn", "in the rain", "near the river", "by night")


@cache
def synthetic_documents() -> tuple[Document, ...]:
    """Return N_DOCUMENTS documents, about 200 KB in total. Each is about one animal, its hero.

    A model can learn the order of words, the agreement of verb and subject, and to copy the hero of the document.
    """
    documents = []
    for index in range(N_DOCUMENTS):
        rng = random.Random(index)
        hero = _pick(rng, NOUNS)
        sentences = [f"This is about the {hero}."]
        for _ in range(SENTENCES_PER_DOCUMENT):
            is_plural = rng.random() < 0.3
            adjective = f"{_pick(rng, ADJECTIVES)} " if rng.random() < 0.5 else ""
            noun = _pick(rng, NOUNS) + "s" if is_plural else hero
            verb = _pick(rng, VERBS)
            if not is_plural:
                verb = verb[:-1] + "ies" if verb.endswith("y") else verb + "s"
            sentences.append(f"The {adjective}{noun} {verb} the {_pick(rng, NOUNS)} {_pick(rng, ENDINGS)}.")
        documents.append(Document(f"synthetic/{index:04d}", " ".join(sentences) + "\n"))
    return tuple(documents)


def _pick(rng: random.Random, choices: tuple[str, ...]) -> str:
    # Random.random() gives the same numbers in every Python version; choice() may not.
    return choices[int(rng.random() * len(choices))]


def files_below(folder: Path, leave_out: frozenset[str] = frozenset()) -> list[Path]:
    """Return all files below a folder, sorted by relative path; a file reached twice through links counts once.

    Hidden entries, `__pycache__` and folders named in `leave_out` are omitted. Raises UserError if a folder cannot be
    listed.
    """
    files: list[Path] = []
    entered: set[str] = set()

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None

    for path, subfolders, names in os.walk(folder, followlinks=True, onerror=refuse):
        if os.path.realpath(path) in entered:
            subfolders.clear()
            continue
        entered.add(os.path.realpath(path))
        subfolders[:] = sorted(name for name in subfolders if _is_visible(name) and name not in leave_out)
        files += [Path(path, name) for name in names if _is_visible(name)]
    by_target: dict[str, Path] = {}
    for path in sorted(files, key=lambda path: path.relative_to(folder).as_posix()):
        by_target.setdefault(os.path.realpath(path), path)
    return list(by_target.values())


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__"


def _python_source(folder: Path, prefix: str, leave_out: frozenset[str]) -> Iterator[Document]:
    """Yield the non-empty UTF-8 Python files below a folder."""
    for path in files_below(folder, leave_out):
        if path.suffix != ".py" or not path.is_file():
            continue
        with reading(path):
            content = path.read_bytes()
        try:
            text = content.removeprefix(BOM_UTF8).decode()
        except UnicodeDecodeError:
            continue
        if text:
            yield Document(f"{prefix}{path.relative_to(folder).as_posix()}", text)


def _installed_python() -> Iterator[Document]:
    """Yield the standard library with its tests, then every installed package."""
    yield from _python_source(Path(sysconfig.get_path("stdlib")), "stdlib/", INSTALLED_FOLDERS)
    for folder in sorted({os.path.realpath(sysconfig.get_path(key)) for key in ("purelib", "platlib")}):
        yield from _python_source(Path(folder), "site-packages/", frozenset())


CORPORA: dict[str, Callable[[], Iterator[Document]]] = {
    "python-stdlib": lambda: _python_source(Path(sysconfig.get_path("stdlib")), "", INSTALLED_FOLDERS | TEST_FOLDERS),
    "installed-python": _installed_python,
    "synthetic": lambda: iter(synthetic_documents()),
}
"""Name -> function that yields the documents. python-stdlib: the standard library without its tests."""


def named_corpus(name: str) -> Corpus:
    """Return the corpus of a name. The contents vary with the Python installation. Raises UserError for other names."""
    check_one_of("corpus", name, CORPORA)
    return Corpus(name, CORPORA[name])
