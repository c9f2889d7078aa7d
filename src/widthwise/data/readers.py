"""Documents from text files, JSON lines, Parquet files, folders of them, and Hugging Face datasets."""

import gzip
import io
import warnings
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from widthwise.config_io import refusing, require
from widthwise.data.corpus import CORPORA, Corpus, Document, files_below, named_corpus
from widthwise.files import parse_json, reading
from widthwise.mistakes import UserError

Reader = Callable[[Path, str, str], Iterator[Document]]
"""(file, name for its documents, field with the text) -> documents."""

MAX_LINE_BYTES = 2**26
"""Longest JSON line."""
MAX_TEXT_BYTES = 2**30
"""Longest text after decompression, because a few kilobytes can expand to any length."""
COMPRESSED = (".gz", ".zst")


def open_source(source: str, field: str = "text", document_bytes: int | None = None) -> Corpus:
    """Return a corpus from its name, a path, or `hf:NAME[@CONFIG][:SPLIT]`.

    A source that is both a name and an existing path is read as a path. field, document_bytes: see `read_documents`.
    """
    if source in CORPORA and not Path(source).exists():
        return named_corpus(source)
    return Corpus(source, lambda: read_documents(source, field, document_bytes))


def read_documents(source: str | Path, field: str = "text", document_bytes: int | None = None) -> Iterator[Document]:
    """Yield the documents of a file, a folder (recursive, sorted by path) or a Hugging Face dataset.

    `.txt .md .py`: a file is a document. `.jsonl .json .parquet` and datasets: a row is a document, with its text in
    `field`. Text and JSON lines may be compressed (`.gz .zst`). In a folder, uncompressed `.json`, which often
    describes the data, and other endings are not read; a warning names them. Byte order marks are removed.

    document_bytes: cut longer texts at line ends into documents of about this size.
    Raises UserError with file and line for a file that is missing, unreadable, not UTF-8 or not text, and for a source
    without documents.
    """
    if document_bytes is not None and document_bytes < 1:
        raise UserError(f"document_bytes: got {document_bytes}; expected a positive number of bytes")
    if str(source).startswith("hf:"):
        documents = _read_dataset(str(source), field)
    else:
        files = _source_files(str(source)).items()
        documents = chain.from_iterable(READERS[_ending(path)](path, name, field) for path, name in files)
    n_documents = 0
    for document in documents:
        for part in _cut(document, document_bytes):
            yield part
            n_documents += 1
    if n_documents == 0:
        raise UserError(f"{source}: holds no documents")


def _source_files(source: str) -> dict[Path, str]:
    """Return a dict from each file of a source to the name of its documents, in the order of reading.

    Warns of files in a folder that are not read. Raises UserError for a source without readable files.
    """
    if not source:
        raise UserError("source: got ''; expected a path or the name of a corpus; `.` is the working folder")
    path = Path(source)
    if path.is_dir():
        files = files_below(path)
        readable = [file for file in files if _ending(file) in READERS and _ending(file) != ".json"]
        endings = Counter(_ending(file) or file.name for file in files)
        for file in readable:
            del endings[_ending(file)]
        skipped = ", ".join(f"{ending} ({n:,})" for ending, n in endings.most_common())
        if not readable:
            raise UserError(f"{path}: holds no file that can be read; {EXPECTED}; it has {skipped or 'no files'}")
        if endings:
            warnings.warn(f"{path}: files that are not read, by ending: {skipped}", stacklevel=2)
        return {file: file.relative_to(path).as_posix() for file in readable}
    if not path.exists():
        raise UserError(f"{source}: no such file or folder; corpora by name: {', '.join(CORPORA)}")
    if _ending(path) not in READERS:
        raise UserError(f"{source}: unknown format; {EXPECTED}")
    return {path: path.name}


def _ending(path: Path) -> str:
    """Return the ending of a name in lower case, including compression: `.jsonl.gz`."""
    name = Path(path.name.lower())
    return Path(name.stem).suffix + name.suffix if name.suffix in COMPRESSED else name.suffix


def _cut(document: Document, document_bytes: int | None) -> Iterator[Document]:
    """Yield a document, or its parts of at least document_bytes (the last may be shorter), cut at line ends."""
    if document_bytes is None or len(document.text.encode()) <= document_bytes:
        yield document
        return
    lines: list[str] = []
    n_bytes = n_parts = 0
    for line in document.text.splitlines(keepends=True):
        lines.append(line)
        n_bytes += len(line.encode())
        if n_bytes >= document_bytes:
            yield Document(f"{document.name}#{n_parts}", "".join(lines))
            lines = []
            n_bytes = 0
            n_parts += 1
    if lines:
        yield Document(f"{document.name}#{n_parts}", "".join(lines))


def _read_text(path: Path, name: str, field: str) -> Iterator[Document]:
    with _opened(path) as file:
        max_bytes = MAX_TEXT_BYTES if path.suffix.lower() in COMPRESSED else path.stat().st_size
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UserError(f"{path}: holds more than {max_bytes:,} bytes of text; cut it into several")
    yield Document(name, _decode(content, path))


def _decode(content: bytes, path: Path, first_line: int = 1) -> str:
    """Decode UTF-8, without a byte order mark. first_line: number of the first line of the content, for errors."""
    try:
        return content.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = first_line + content.count(b"\n", 0, error.start)
        raise UserError(f"{path}: line {line}: is not UTF-8 text; save it as UTF-8, or leave it out") from None


def _read_jsonl(path: Path, name: str, field: str) -> Iterator[Document]:
    with _opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            where = f"{path}: line {number}"
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"{where}: is longer than {MAX_LINE_BYTES:,} bytes; cut its document into several")
            if line.isspace():
                continue
            row = parse_json(_decode(line, path, number), where)
            if not isinstance(row, dict):
                raise UserError(f"{where}: holds {type(row).__name__}, not an object with a field {field!r}")
            yield Document(f"{name}:{number}", _text_of_row(row, field, where))


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file, decompressed. Raises UserError for errors of opening and reading."""
    ending = path.suffix.lower()
    with reading(path), refusing(f"{path}: cannot be read", EOFError, zlib.error):
        if ending == ".zst":
            # Arrow's reader accepts several frames, which parallel compressors write, and refuses a truncated one.
            file = io.BufferedReader(require("pyarrow", "prep").input_stream(str(path), compression="zstd"))
        else:
            open_file = gzip.open if ending == ".gz" else open
            file = open_file(path, "rb")
        with file:
            yield file


def _text_of_row(row: dict[str, Any], field: str, where: str) -> str:
    """Return the text in a field of a row. Raises UserError without the field, and for anything but valid text."""
    if field not in row:
        raise UserError(f"{where}: has no field {field!r}; --field may be: {', '.join(row) or 'none'}")
    text = row[field]
    if not isinstance(text, str):
        raise UserError(f"{where}: field {field!r} holds {type(text).__name__}, not text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: field {field!r} holds half a surrogate pair, which is not text") from None
    return text.removeprefix("\ufeff")


def _read_parquet(path: Path, name: str, field: str) -> Iterator[Document]:
    """Yield the documents of a column. Arrow reads text without validation, so it is validated here."""
    pyarrow = require("pyarrow", "prep")
    parquet = require("pyarrow.parquet", "prep")
    with (
        reading(path),
        refusing(f"{path}: cannot be read", UnicodeError, pyarrow.ArrowException),
        parquet.ParquetFile(path) as file,
    ):
        if field not in file.schema_arrow.names:
            raise UserError(f"{path}: has no column {field!r}; --field may be: {', '.join(file.schema_arrow.names)}")
        number = 0
        for column in (batch.column(0) for batch in file.iter_batches(batch_size=1024, columns=[field])):
            is_batch_valid = _is_valid(column)
            for index in range(len(column)):
                number += 1
                where = f"{path}: row {number}"
                if not is_batch_valid and not _is_valid(column.slice(index, 1)):
                    raise UserError(f"{where}: field {field!r} is not UTF-8 text")
                yield Document(f"{name}:{number}", _text_of_row({field: column[index].as_py()}, field, where))


def _is_valid(column: Any) -> bool:
    try:
        column.validate(full=True)
    except ValueError:  # ArrowInvalid
        return False
    return True


def _read_dataset(source: str, field: str) -> Iterator[Document]:
    """Yield the documents of a Hugging Face dataset. source: `hf:NAME[@CONFIG][:SPLIT]`."""
    datasets = require("datasets", "hf")
    fsspec = require("fsspec", "hf")

    class RefusedFileSystem(fsspec.AbstractFileSystem):
        """Replaces the protocol `reference`, which a dataset may name and which reads the environment.

        See PROTOCOLS in data/remote.py.
        """

        def __init__(self, *arguments: Any, **options: Any):
            raise ValueError("it names files by reference://, which is not read")

    fsspec.register_implementation("reference", RefusedFileSystem, clobber=True)
    name, _, split = source.removeprefix("hf:").partition(":")
    name, _, config = name.partition("@")
    with refusing(f"{source}: cannot be read", Exception):  # the library raises any error of its readers
        rows = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Document(f"{source}:{number}", _text_of_row(row, field, f"{source}: row {number}"))


_COMPRESSIBLE = {".txt": _read_text, ".md": _read_text, ".py": _read_text, ".jsonl": _read_jsonl, ".json": _read_jsonl}
READERS: dict[str, Reader] = {".parquet": _read_parquet}
for _compression in ("", *COMPRESSED):
    READERS |= {ending + _compression: reader for ending, reader in _COMPRESSIBLE.items()}
EXPECTED = "expected names ending in .txt .md .py .jsonl .json (.gz and .zst of each) or .parquet"
