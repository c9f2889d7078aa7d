"""Prepare a corpus: in one process, or by a plan that says which files make a part and how each part is done."""

import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from widthwise.config_io import Config, UserError, parse
from widthwise.data.corpus import CORPORA
from widthwise.data.documents import (
    Corpus,
    Division,
    HeldOutFraction,
    HeldOutSources,
    ProgressCallback,
    Scan,
    ignore_progress,
    scan,
    train_texts,
)
from widthwise.data.encode import SplitShards, encode
from widthwise.data.json_tokenizer import check_spec, open_tokenizer
from widthwise.data.manifest import CorpusRecord
from widthwise.data.prepared import PreparedData, assemble, record_files, write_manifest
from widthwise.data.readers import SourceFile, check_document_bytes, open_source, source_file, source_files
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import file_sha256
from widthwise.records.record import SealedFile


def prepare(
    corpus: Corpus | Path | str,
    out: Path | str,
    *,
    tokenizer: str = "bpe-4096",
    held_out: float | Sequence[Corpus | Path | str] = 0.05,
    max_tokens: int | None = None,
    reuse: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Tokenizes a corpus into `out`, which appears whole at the end or not at all.

    The corpus may be given as `open_source` takes it: a file, a folder, or the name of a corpus.
    `held_out` is the fraction of documents to hold out, which the hash of their content decides, so that neither order
    nor other documents matter; or it is corpora of which every document is held out, while all of `corpus` is trained
    on: but for documents equal to a held-out one, which are left out and counted in the manifest.
    `bpe-N` is trained on the training split alone. Tokenizers encode with threads of their own.
    With `max_tokens`, the result is that of the documents before the first whose training tokens would exceed this
    number, and the corpus is not read to its end; only `bpe-N` is trained on training documents of the whole corpus.
    With `reuse`, a finished `out` is opened as it is; without, anything in `out` is refused.
    Raises UserError where a split would be empty, the corpus changes while it is read, or the disk is full.
    """
    check_spec(tokenizer)
    check_max_tokens(max_tokens)
    division, opened = division_of(held_out), _opened(corpus)

    def fill(folder: Path) -> None:
        expected = None
        if max_tokens is None:
            expected = scan(division.entries(opened), progress)
            division.refuse_empty_split(expected, opened.name)
        trained = write_tokenizer(folder, tokenizer, opened, division, progress)
        with SplitShards(folder, trained, max_tokens) as shards:
            batches = encode(division.entries(opened), trained)
            shards.fill(batches, lambda: progress("tokenizing", shards.n_bytes, _n_bytes_in_all(shards, expected)))
            if expected not in (None, shards.found()):
                raise UserError(f"{opened.name}: changed while it was being read; prepare it again")
        finish(folder, opened.name, division, shards, progress)

    return assemble(out, fill, reuse)


def check_max_tokens(max_tokens: int | None) -> None:
    """Raises UserError for a number that is not positive."""
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens: got {max_tokens}; expected at least 1")


def division_of(
    held_out: float | Sequence[Corpus | Path | str], field: str = "text", document_bytes: int | None = None
) -> Division:
    """The division that `held_out` of `prepare` asks for; reads sources once. Raises UserError as `prepare`."""
    if isinstance(held_out, float | int):
        return HeldOutFraction(held_out)
    sources = [held_out] if isinstance(held_out, str) else held_out
    return HeldOutSources.of([_opened(each, field, document_bytes) for each in sources])


def _opened(source: Corpus | Path | str, field: str = "text", document_bytes: int | None = None) -> Corpus:
    return source if isinstance(source, Corpus) else open_source(str(source), field, document_bytes)


def write_tokenizer(
    folder: Path, spec: str, corpus: Corpus, division: Division, progress: ProgressCallback
) -> Tokenizer:
    """Return the tokenizer of a spec, trained on the training split where it is to be, and write it into a folder."""

    def training_texts() -> Iterator[str]:
        progress("training the tokenizer", 0, None)
        return train_texts(division.entries(corpus))

    tokenizer = open_tokenizer(spec, training_texts)
    tokenizer.save(folder)
    return tokenizer


def _n_bytes_in_all(shards: SplitShards, expected: Scan | None) -> int | None:
    """The bytes of text to tokenize; with `max_tokens` an estimate from the tokens so far."""
    if expected is not None:
        return expected.n_bytes
    assert shards.max_tokens is not None
    if shards.is_full:
        return shards.n_bytes
    return round(shards.n_bytes * shards.max_tokens / shards.n_train_tokens) if shards.n_train_tokens else None


def finish(folder: Path, name: str, division: Division, shards: SplitShards, progress: ProgressCallback) -> None:
    """Writes the manifest of a folder that holds shards and tokenizer. Raises UserError where a split is empty.

    name: of the corpus.
    """
    found = shards.found()
    if shards.max_tokens is not None and found.n_held_out in (0, found.n_documents):
        raise UserError(
            f"max_tokens: got {shards.max_tokens}, which leaves {found.n_documents - found.n_held_out} documents for "
            f"training and {found.n_held_out} held out; raise it, or cut the text into more documents (document_bytes)"
        )
    division.refuse_empty_split(found, name)
    write_manifest(
        folder,
        tokenizer=shards.tokenizer,
        corpus=CorpusRecord(
            name=name, fingerprint=found.fingerprint, n_documents=found.n_documents, n_bytes=found.n_bytes
        ),
        splits=shards.splits(),
        files=record_files(folder, progress),
        held_out_fraction=division.fraction,
        held_out_from=division.record(found),
    )


PLAN = "plan.json"
MAX_PARTS = 256
MIN_PART_BYTES = 2**24
"""A part has about this many bytes of files or more, because each takes a moment to begin and to end."""


class FileState(Config):
    """A file of the source as it was when the plan was made."""

    name: str
    n_bytes: int
    changed_at: int
    """Seconds since 1970."""

    @classmethod
    def of(cls, file: SourceFile) -> "FileState":
        status = file.path.stat()
        return cls(name=file.name, n_bytes=status.st_size, changed_at=int(status.st_mtime))


class PreparationPlan(Config):
    """Source, options and parts of a preparation. Equal plans give equal parts, whoever tokenizes them."""

    name: str
    """The source as it was given, which becomes the name of the corpus."""
    folder: str
    """The absolute path of the source's files, which every machine must reach."""
    files: tuple[FileState, ...]
    part_ends: tuple[int, ...]
    """For each part, how many files it and those before it have."""
    tokenizer: str
    tokenizer_sha256: str | None
    """sha256 of the file that the tokenizer's spec names; None for one that is trained or built in."""
    field: str
    document_bytes: int | None
    held_out: float | None
    held_out_from: tuple[str, ...]
    """Sources of held-out documents, as they were given; () where a fraction is held out."""
    held_out_fingerprint: str | None
    """Fingerprint of the documents of `held_out_from`; None where a fraction is held out."""
    max_tokens: int | None

    @property
    def n_parts(self) -> int:
        return len(self.part_ends)

    def files_of(self, part: int) -> tuple[FileState, ...]:
        return self.files[self.part_ends[part - 1] if part else 0 : self.part_ends[part]]

    def n_bytes_of(self, part: int) -> int:
        """Bytes of the files of a part."""
        return sum(file.n_bytes for file in self.files_of(part))

    @property
    def division(self) -> Division:
        """Return the division of the documents; reads the held-out sources."""
        held_out = self.held_out_from if self.held_out is None else self.held_out
        return division_of(held_out, self.field, self.document_bytes)

    def open(self, file: FileState) -> SourceFile:
        """A file to read from. Raises UserError if it is no longer as it was."""
        found = source_file(Path(self.folder), file.name)
        try:
            is_same = FileState.of(found) == file
        except OSError:
            is_same = False
        if not is_same:
            raise UserError(f"{found.path}: was changed after the preparation was planned; prepare the source again")
        return found


def make_plan(
    source: str,
    *,
    tokenizer: str = "bpe-4096",
    held_out: float | Sequence[str] = 0.05,
    field: str = "text",
    document_bytes: int | None = None,
    max_tokens: int | None = None,
    max_parts: int = MAX_PARTS,
) -> PreparationPlan:
    """Divides the files of a file or folder into parts of about equal size; options as those of `prepare`.

    held_out: a fraction, or sources as `open_source` takes them, of which every document is held out.
    Raises UserError for a mistake in the options, and for a source without files.
    """
    check_spec(tokenizer)
    check_document_bytes(document_bytes)
    check_max_tokens(max_tokens)
    held_out_from = tuple(held_out) if isinstance(held_out, Sequence) else ()
    division = division_of(held_out, field, document_bytes)
    if source.startswith("hf:") or (source in CORPORA and not Path(source).exists()):
        raise UserError(f"{source}: is not a folder of files, which workers share; leave out workers, or use processes")
    found = source_files(source)
    files = tuple(FileState.of(file) for file in found)
    tokenizer_path = Path(tokenizer.partition("#")[0])
    return PreparationPlan(
        name=source,
        folder=str(Path(source).resolve() if Path(source).is_dir() else Path(source).resolve().parent),
        files=files,
        part_ends=_part_ends([file.n_bytes for file in files], max_parts),
        tokenizer=tokenizer,
        tokenizer_sha256=file_sha256(tokenizer_path) if tokenizer_path.suffix == ".json" else None,
        field=field,
        document_bytes=document_bytes,
        held_out=division.fraction,
        held_out_from=held_out_from,
        held_out_fingerprint=scan(division.held_out_elsewhere()).fingerprint if held_out_from else None,
        max_tokens=max_tokens,
    )


def _part_ends(n_bytes: list[int], max_parts: int) -> tuple[int, ...]:
    """Return the ends of parts of about equal size, each with at least one file."""
    ends = [*accumulate(n_bytes)]
    n_parts = max(1, min(max_parts, len(n_bytes), ends[-1] // MIN_PART_BYTES))
    at = {_nearest(ends, ends[-1] * part // n_parts) + 1 for part in range(1, n_parts)}
    return (*sorted(at - {len(n_bytes)}), len(n_bytes))


def _nearest(numbers: list[int], wanted: int) -> int:
    """The index of the nearest of some ascending numbers."""
    index = bisect.bisect_left(numbers, wanted)
    return index - 1 if index and wanted - numbers[index - 1] < numbers[index] - wanted else index


def read_plan(folder: Path) -> PreparationPlan:
    """The plan of a folder. Raises UserError where there is none."""
    return parse(PreparationPlan, SealedFile(folder / PLAN).read(), str(folder / PLAN))
