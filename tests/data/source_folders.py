"""Corpora to prepare, and checks of prepared folders."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from file_operations import forge

from widthwise.data.corpus import Corpus, Document


def corpus_of(name: str, texts: Iterable[str]) -> Corpus:
    """Return a corpus of documents NAME/0, NAME/1, ... texts: must be iterable more than once."""
    return Corpus(name, lambda: (Document(f"{name}/{index}", text) for index, text in enumerate(texts)))


def check_same_bytes(folder: Path, expected: Path) -> None:
    """Check that two folders have equal files, including the manifest."""
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name


def in_manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a function that applies `change` to the manifest of a prepared folder, in place."""

    return lambda folder: forge(folder / "manifest.json", change)
