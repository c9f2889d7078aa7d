"""Corpora, and folders of text files in several formats, to be prepared; and what a prepared folder holds."""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from file_operations import forge

from widthwise.data.corpus import named_corpus
from widthwise.data.documents import Corpus, Document


def corpus_of(name: str, texts: Iterable[str]) -> Corpus:
    """Documents NAME/0, NAME/1, ... texts: can be read again and again."""
    return Corpus(name, lambda: (Document(f"{name}/{index}", text) for index, text in enumerate(texts)))


def make_source(folder: Path, n_files: int = 7, n_documents: int = 11) -> Path:
    """JSON lines, some compressed, and plain text; one file holds nothing."""
    folder.mkdir(parents=True)
    texts = [document.text for document in named_corpus("synthetic")]
    for number in range(n_files):
        own = texts[number * n_documents : (number + 1) * n_documents]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in own)
        if number % 3 == 0:
            (folder / f"{number:02d}.jsonl").write_text(lines)
        elif number % 3 == 1:
            (folder / f"{number:02d}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            (folder / f"{number:02d}.txt").write_text("".join(own))
    (folder / "03b.jsonl").write_text("\n")
    return folder


def check_same_bytes(folder: Path, expected: Path) -> None:
    """Every file of the folders, the manifest with its checksums among them."""
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name


def in_manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a function that lets `change` change what the manifest of a prepared folder says."""

    return lambda folder: forge(folder / "manifest.json", change)
