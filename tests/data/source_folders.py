"""Folders of text files in several formats, to be prepared in parts."""

import gzip
import json
from pathlib import Path

from widthwise.data.corpus import named_corpus
from widthwise.data.prepared import PreparedData


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


def check_same_bytes(data: PreparedData, expected: PreparedData) -> None:
    """Every file of the folders, the manifest with its checksums among them."""
    names = sorted(path.name for path in expected.path.iterdir())
    assert sorted(path.name for path in data.path.iterdir()) == names
    for name in names:
        assert (data.path / name).read_bytes() == (expected.path / name).read_bytes(), name
