"""The parts of a preparation: tokenized in any order by any process or machine, then joined in order.

FOLDER/plan.json and tokenizer   see plan.py
FOLDER/held_out/                 the documents of separate held-out sources, as a part, written with the plan
FOLDER/parts/00000/shards/       a part, a folder that appears whole
FOLDER/parts/00000/progress.json how far it is, for those who watch

A part:

train.bin .idx .names.jsonl, held_out.bin .idx .names.jsonl   as in a prepared folder
keys.bin                         the keys of its documents, one after the other: a length, a name, a digest
part.json                        counts
"""

import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from widthwise.config_io import Config, UserError, parse, to_data
from widthwise.data.documents import (
    DIGEST_BYTES,
    Counter,
    Division,
    Document,
    Entry,
    HeldOutFraction,
    HeldOutSources,
    ProgressCallback,
    ignore_progress,
)
from widthwise.data.encode import SplitShards, encode
from widthwise.data.json_tokenizer import restore_tokenizer
from widthwise.data.manifest import Splits
from widthwise.data.prepare import PLAN, PreparationPlan, finish, read_plan, write_tokenizer
from widthwise.data.prepared import PreparedData, assemble
from widthwise.data.readers import open_source
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import fsync_file, new_folder, read_json, reading
from widthwise.records.record import SealedFile

KEYS, RECORD = "keys.bin", "part.json"
KEYS_READ_AT_ONCE = 2**24
SECONDS_BETWEEN_REPORTS = 0.5


class PartRecord(Config):
    """Counts of a part, stored next to its shards."""

    splits: Splits
    n_left_out: int
    """Documents that were equal to a held-out one."""
    is_cut: bool
    """True if it alone has more training tokens than the whole may have, and was left before its end."""


class PartProgress(Config):
    """Progress of a part: what is tokenized and written."""

    n_bytes: int = 0
    """Bytes of text, as UTF-8."""
    n_train_tokens: int = 0


def held_out_folder(folder: Path) -> Path:
    """Folder of the part that holds the documents of separate held-out sources."""
    return folder / "held_out"


def shards_folder(folder: Path, part: int) -> Path:
    """The folder that a part's shards are written to."""
    return folder / "parts" / f"{part:05d}" / "shards"


def _progress_path(folder: Path, part: int) -> Path:
    return shards_folder(folder, part).with_name("progress.json")


def progress_of(folder: Path, part: int) -> PartProgress:
    """Read the progress of a part; zeros where it has not begun."""
    path = _progress_path(folder, part)
    return parse(PartProgress, read_json(path), str(path)) if path.exists() else PartProgress()


def begin(plan: PreparationPlan, folder: Path, progress: ProgressCallback = ignore_progress) -> None:
    """Writes the plan and its tokenizer, which is trained now where it is to be, into the folder that parts go to.

    Does nothing where this was done before. Raises UserError where the folder belongs to another plan.
    """
    if (folder / PLAN).exists():
        if read_plan(folder) != plan:
            raise UserError(f"{folder}: holds the parts of another preparation; delete it or choose another folder")
        return
    corpus, division = open_source(plan.name, plan.field, plan.document_bytes), plan.division
    tokenizer = write_tokenizer(folder, plan.tokenizer, corpus, division, progress)
    if plan.held_out_from:
        shutil.rmtree(held_out_folder(folder), ignore_errors=True)  # of a beginning that was killed
        _write_part(held_out_folder(folder), division.held_out_elsewhere(), tokenizer)
    SealedFile(folder / PLAN).write(to_data(plan))


@dataclass(frozen=True)
class TokenizePart:
    """A step of a datatrove pipeline: task `rank` tokenizes that part of the plan in a folder.

    There must be as many tasks as parts. A part that is there already is left as it is, so that work that was killed
    can be started again.
    """

    folder: str

    def __call__(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:
        n_parts = read_plan(Path(self.folder)).n_parts
        if world_size != n_parts:
            raise UserError(f"{self.folder}: was planned in {n_parts} parts; got {world_size} tasks")
        tokenize_part(Path(self.folder), rank)


def tokenize_part(folder: Path, part: int) -> None:
    """Tokenizes a part, unless it is there or lies behind `max_tokens`. Raises UserError as reading does."""
    plan, target = read_plan(folder), shards_folder(folder, part)
    if target.is_dir() or _lies_behind_the_end(folder, plan, part):
        return
    reported_at = 0.0

    def report(shards: SplitShards) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at > SECONDS_BETWEEN_REPORTS:
            _report(folder, part, shards)
            reported_at = time.monotonic()

    entries = _entries(plan, part, _planned_division(plan, folder))
    _report(folder, part, _write_part(target, entries, planned_tokenizer(plan, folder), plan.max_tokens, report))


def _write_part(
    target: Path,
    entries: Iterable[tuple[Document, Entry]],
    tokenizer: Tokenizer,
    max_tokens: int | None = None,
    has_added: Callable[[SplitShards], None] = lambda shards: None,
) -> SplitShards:
    """Tokenizes documents into a folder that appears whole; `has_added` is called after each batch."""
    with new_folder(target) as partial:
        with open(partial / KEYS, "xb") as keys, SplitShards(partial, tokenizer, max_tokens, keys) as shards:
            shards.fill(encode(entries, tokenizer), lambda: has_added(shards))
        fsync_file(partial / KEYS)
        record = PartRecord(splits=shards.splits(), n_left_out=shards.n_left_out, is_cut=shards.is_full)
        SealedFile(partial / RECORD).write(to_data(record))
    return shards


def _report(folder: Path, part: int, shards: SplitShards) -> None:
    path = _progress_path(folder, part)
    partial = path.with_name(f".{path.name}")
    partial.write_text(PartProgress(n_bytes=shards.n_bytes, n_train_tokens=shards.n_train_tokens).model_dump_json())
    os.replace(partial, path)  # not synced to disk: it is only shown


def _planned_division(plan: PreparationPlan, folder: Path) -> Division:
    """Return the division of a part's documents, by the digests that `begin` wrote of separate held-out sources."""
    if plan.held_out is not None:
        return HeldOutFraction(plan.held_out)
    return HeldOutSources([*_read_digests(held_out_folder(folder))], plan.held_out_from)


def planned_tokenizer(plan: PreparationPlan, folder: Path) -> Tokenizer:
    """Read the tokenizer that `begin` wrote."""
    return restore_tokenizer(plan.tokenizer, next(folder.glob("tokenizer*.json")))


def _entries(plan: PreparationPlan, part: int, division: Division) -> Iterator[tuple[Document, Entry]]:
    for file in plan.files_of(part):
        for document in plan.open(file).read(plan.field, plan.document_bytes):
            yield document, division.entry(document)
        plan.open(file)  # raises if it was changed while it was read


def _lies_behind_the_end(folder: Path, plan: PreparationPlan, part: int) -> bool:
    """Return True where the finished parts before this one already exceed `max_tokens`."""
    if plan.max_tokens is None:
        return False
    done = [each for before in range(part) if (each := shards_folder(folder, before)).is_dir()]
    n_tokens = 0
    for record in map(_read_record, done):
        n_tokens += record.splits.train.n_tokens
        if record.is_cut or n_tokens > plan.max_tokens:
            return True
    return False


@dataclass(frozen=True)
class JoinParts:
    """A step of a datatrove pipeline with one task: joins the parts in a folder into the prepared folder `out`."""

    folder: str
    out: str

    def __call__(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:
        join_parts(self.folder, self.out)


def join_parts(folder: Path | str, out: Path | str, progress: ProgressCallback = ignore_progress) -> PreparedData:
    """Makes of all parts the folder that `prepare` makes of the source, byte for byte; it appears whole.

    Raises UserError where a part is missing, and as `prepare`.
    """
    return assemble(out, lambda partial: fill_from_parts(Path(folder), partial, progress))


def fill_from_parts(folder: Path, out: Path, progress: ProgressCallback) -> None:
    """Fills a folder as `join_parts` does, the manifest last."""
    plan = read_plan(folder)
    tokenizer = planned_tokenizer(plan, folder)
    tokenizer.save(out)
    division = _planned_division(plan, folder)
    done = Counter(progress, "joining the parts", None)
    with SplitShards(out, tokenizer, plan.max_tokens) as shards:
        if plan.held_out_from:
            _append(shards, held_out_folder(folder), _read_record(held_out_folder(folder)))
        for part in range(plan.n_parts):
            if not shards_folder(folder, part).is_dir():
                raise UserError(f"{folder}: part {part} of {plan.n_parts} is missing; run its task first")
            record = _read_record(shards_folder(folder, part))
            n_tokens = shards.n_train_tokens + record.splits.train.n_tokens
            if record.is_cut or n_tokens > (plan.max_tokens or math.inf):  # the last training token lies in it
                shards.fill(encode(_entries(plan, part, division), tokenizer))
                break
            _append(shards, shards_folder(folder, part), record)
            done.add(record.splits.n_bytes)
    finish(out, plan.name, division, shards, progress)


def _append(shards: SplitShards, part_folder: Path, record: PartRecord) -> None:
    shards.append(part_folder, record.splits, record.n_left_out, _read_keys(part_folder))


def _read_record(folder: Path) -> PartRecord:
    """Raises UserError where there is none."""
    return parse(PartRecord, SealedFile(folder / RECORD).read(), str(folder / RECORD))


def _read_keys(folder: Path) -> Iterator[bytes]:
    """The keys of all documents, cut anywhere."""
    with reading(folder / KEYS), open(folder / KEYS, "rb") as file:
        while keys := file.read(KEYS_READ_AT_ONCE):
            yield keys


def _read_digests(folder: Path) -> Iterator[bytes]:
    """The digest of each document."""
    with reading(folder / KEYS), open(folder / KEYS, "rb") as file:
        while length := file.read(8):
            file.seek(int.from_bytes(length, "little"), 1)
            yield file.read(DIGEST_BYTES)
