"""The parts of a preparation: tokenized in any order by any process or machine, then joined in order.

FOLDER/plan.json and tokenizer   see plan.py
FOLDER/parts/00000/shards/       the shards of a part: a folder that appears whole
FOLDER/parts/00000/progress.json how far it is, for those who watch
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from widthwise.config_io import Config, UserError, parse
from widthwise.data.assemble import assemble
from widthwise.data.documents import Counter, Document, ProgressCallback, Scan, Scanner, ignore_progress
from widthwise.data.encode import encode
from widthwise.data.manifest import Splits
from widthwise.data.plan import Plan, planned_tokenizer, read_plan
from widthwise.data.prepare import finish, refuse_too_few_tokens
from widthwise.data.prepared import PreparedData
from widthwise.data.split_shards import SplitShards
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import fsync_file, new_folder, read_json, reading, write_atomic

KEYS, RECORD = "keys.bin", "part.json"
KEYS_READ_AT_ONCE = 2**24
SECONDS_BETWEEN_REPORTS = 0.5


class PartRecord(Config):
    """What a part holds, beside its shards."""

    splits: Splits
    is_cut: bool
    """Whether it alone has more training tokens than the whole may have, and was left before its end."""

    @property
    def found(self) -> Scan:
        """Its counts, without a fingerprint: that of the whole needs the keys of all documents."""
        train, held_out = self.splits.train, self.splits.held_out
        n_documents, n_bytes = train.n_documents + held_out.n_documents, train.n_bytes + held_out.n_bytes
        return Scan("", n_documents, n_bytes, held_out.n_documents)


class PartProgress(Config):
    """How far a part is."""

    n_bytes: int = 0
    """Of text."""
    n_train_tokens: int = 0


def shards_folder(folder: Path, part: int) -> Path:
    """Where the shards of a part are."""
    return folder / "parts" / f"{part:05d}" / "shards"


def _progress_path(folder: Path, part: int) -> Path:
    return shards_folder(folder, part).with_name("progress.json")


def progress_of(folder: Path, part: int) -> PartProgress:
    """How far a part is; nothing where it has not begun."""
    path = _progress_path(folder, part)
    return parse(PartProgress, read_json(path), str(path)) if path.exists() else PartProgress()


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
    tokenizer, tokenizer_path = planned_tokenizer(plan, folder)
    with new_folder(target) as partial:
        with open(partial / KEYS, "xb") as keys:
            scanner = _KeyWriter(plan.held_out, keys)
            with SplitShards(partial, tokenizer, scanner, plan.max_tokens) as shards:
                reported_at = 0.0
                for batch in encode(_documents(plan, part), scanner, tokenizer, tokenizer_path, 1):
                    shards.add(batch)
                    if time.monotonic() - reported_at > SECONDS_BETWEEN_REPORTS:
                        _report(folder, part, shards)
                        reported_at = time.monotonic()
                    if shards.is_full:
                        break
        fsync_file(partial / KEYS)
        record = PartRecord(splits=shards.splits(), is_cut=shards.is_full)
        write_atomic(partial / RECORD, record.model_dump_json(indent=1) + "\n")
        _report(folder, part, shards)


class _KeyWriter(Scanner):
    """A scanner that writes the keys of the documents to a file."""

    def __init__(self, held_out: float, file: BinaryIO):
        super().__init__(held_out)
        self._file = file

    def count_many(self, keys: bytes, n_documents: int, n_bytes: int, n_held_out: int) -> None:
        super().count_many(keys, n_documents, n_bytes, n_held_out)
        self._file.write(keys)


def _documents(plan: Plan, part: int) -> Iterator[Document]:
    for file in plan.files_of(part):
        yield from plan.open(file).read(plan.field, plan.document_bytes)
        plan.open(file)  # raises if it was changed while it was read


def _lies_behind_the_end(folder: Path, plan: Plan, part: int) -> bool:
    """Whether the parts before that are there have more training tokens than the whole may have."""
    if plan.max_tokens is None:
        return False
    done = (_record(folder, before) for before in range(part) if shards_folder(folder, before).is_dir())
    n_tokens = 0
    for record in done:
        n_tokens += record.splits.train.n_tokens
        if record.is_cut or n_tokens > plan.max_tokens:
            return True
    return False


def _report(folder: Path, part: int, shards: SplitShards) -> None:
    report = PartProgress(n_bytes=shards.n_bytes, n_train_tokens=shards.n_train_tokens)
    path = _progress_path(folder, part)
    partial = path.with_name(f".{path.name}")
    partial.write_text(report.model_dump_json())
    os.replace(partial, path)  # not synced to disk: it is only shown


def _record(folder: Path, part: int) -> PartRecord:
    path = shards_folder(folder, part) / RECORD
    return parse(PartRecord, read_json(path), str(path))


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
    tokenizer, tokenizer_path = planned_tokenizer(plan, folder)
    tokenizer.save(out)
    scanner = Scanner(plan.held_out)
    done = Counter(progress, "joining the parts", None)
    with SplitShards(out, tokenizer, scanner, plan.max_tokens) as shards:
        for part in range(plan.n_parts):
            if not shards_folder(folder, part).is_dir():
                raise UserError(f"{folder}: part {part} of {plan.n_parts} is missing; run its task first")
            record = _record(folder, part)
            if record.is_cut or not shards.has_room_for(record.splits):
                _add_what_fits(shards, plan, part, scanner, tokenizer, tokenizer_path)
                break
            shards.append(shards_folder(folder, part), record.splits, record.found, _keys(folder, part))
            done.add(record.found.n_bytes)
    found = scanner.result()
    if plan.max_tokens is not None:
        refuse_too_few_tokens(found, plan.max_tokens)
    finish(
        out,
        name=plan.name,
        tokenizer=tokenizer,
        held_out=plan.held_out,
        found=found,
        splits=shards.splits(),
        progress=progress,
    )


def _add_what_fits(
    shards: SplitShards, plan: Plan, part: int, scanner: Scanner, tokenizer: Tokenizer, tokenizer_path: Path
) -> None:
    """The part in which the last training token lies, document by document."""
    for batch in encode(_documents(plan, part), scanner, tokenizer, tokenizer_path, 1):
        shards.add(batch)
        if shards.is_full:
            return


def _keys(folder: Path, part: int) -> Iterator[bytes]:
    path = shards_folder(folder, part) / KEYS
    with reading(path), open(path, "rb") as file:
        while keys := file.read(KEYS_READ_AT_ONCE):
            yield keys
