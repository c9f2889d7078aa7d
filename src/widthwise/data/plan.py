"""The plan of a preparation in parts: which files make a part, and what is done with them."""

import bisect
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from widthwise.config_io import Config, UserError, parse
from widthwise.data.corpus import CORPORA
from widthwise.data.documents import Division, scan
from widthwise.data.prepare import check_max_tokens, division_of
from widthwise.data.readers import SourceFile, check_document_bytes, open_source, source_file, source_files
from widthwise.data.tokenizer_spec import check_spec
from widthwise.files import file_sha256, read_json

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
    """What is prepared, and how it is divided. Equal plans give equal parts, whoever tokenizes them."""

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
        """What divides the documents; reads the sources of held-out ones."""
        held_out = self.held_out_from if self.held_out is None else self.held_out
        return _division(held_out, self.field, self.document_bytes)

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
    Raises UserError for a mistake in the options, and for a source that has no files of its own.
    """
    check_spec(tokenizer)
    check_document_bytes(document_bytes)
    check_max_tokens(max_tokens)
    held_out_from = tuple(held_out) if isinstance(held_out, Sequence) else ()
    division = _division(held_out, field, document_bytes)
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


def _division(held_out: float | Sequence[str], field: str, document_bytes: int | None) -> Division:
    if isinstance(held_out, Sequence):
        return division_of([open_source(each, field, document_bytes) for each in held_out])
    return division_of(held_out)


def _part_ends(n_bytes: list[int], max_parts: int) -> tuple[int, ...]:
    """Where parts end, each with at least one file, so that they have about the same bytes."""
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
    return parse(PreparationPlan, read_json(folder / PLAN), str(folder / PLAN))
