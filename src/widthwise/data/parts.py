"""The parts of a preparation: tokenized in any order by any process or machine, then joined in order.

FOLDER/plan.json and tokenizer   see plan.py
FOLDER/held_out/                 the part of documents that sources of their own hold out, written with the plan
FOLDER/parts/00000/shards/       a part, see part_folder.py: a folder that appears whole
FOLDER/parts/00000/progress.json how far it is, for those who watch
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from widthwise.config_io import Config, UserError, parse
from widthwise.data.assemble import assemble
from widthwise.data.division import Division
from widthwise.data.documents import Counter, Document, Entry, ProgressCallback, Scanner, ignore_progress
from widthwise.data.encode import encode
from widthwise.data.part_folder import read_keys, read_record, write_part
from widthwise.data.plan import PreparationPlan, held_out_folder, planned_division, planned_tokenizer, read_plan
from widthwise.data.prepare import finish, refuse_too_few_tokens
from widthwise.data.prepared import PreparedData
from widthwise.data.split_shards import SplitShards
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import read_json

SECONDS_BETWEEN_REPORTS = 0.5


class PartProgress(Config):
    """How much of a part has been tokenized and written."""

    n_bytes: int = 0
    """Bytes of text, as UTF-8."""
    n_train_tokens: int = 0


def shards_folder(folder: Path, part: int) -> Path:
    """The folder that a part's shards are written to."""
    return folder / "parts" / f"{part:05d}" / "shards"


def _progress_path(folder: Path, part: int) -> Path:
    return shards_folder(folder, part).with_name("progress.json")


def progress_of(folder: Path, part: int) -> PartProgress:
    """How much of a part has been tokenized; zeros where it has not begun."""
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
    entries = _entries(plan, part, planned_division(plan, folder))
    reported_at = 0.0

    def report(shards: SplitShards) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at > SECONDS_BETWEEN_REPORTS:
            _report(folder, part, PartProgress(n_bytes=shards.n_bytes, n_train_tokens=shards.n_train_tokens))
            reported_at = time.monotonic()

    write_part(target, entries, tokenizer, tokenizer_path, plan.max_tokens, report)
    record = read_record(target)
    _report(
        folder,
        part,
        PartProgress(n_bytes=record.found.n_bytes, n_train_tokens=record.splits.train.n_tokens),
    )


def _entries(plan: PreparationPlan, part: int, division: Division) -> Iterator[tuple[Document, Entry]]:
    for file in plan.files_of(part):
        for document in plan.open(file).read(plan.field, plan.document_bytes):
            yield document, division.entry(document)
        plan.open(file)  # raises if it was changed while it was read


def _lies_behind_the_end(folder: Path, plan: PreparationPlan, part: int) -> bool:
    """Whether the parts before that are there have more training tokens than the whole may have."""
    if plan.max_tokens is None:
        return False
    done = (
        read_record(shards_folder(folder, before)) for before in range(part) if shards_folder(folder, before).is_dir()
    )
    n_tokens = 0
    for record in done:
        n_tokens += record.splits.train.n_tokens
        if record.is_cut or n_tokens > plan.max_tokens:
            return True
    return False


def _report(folder: Path, part: int, report: PartProgress) -> None:
    path = _progress_path(folder, part)
    partial = path.with_name(f".{path.name}")
    partial.write_text(report.model_dump_json())
    os.replace(partial, path)  # not synced to disk: it is only shown


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
    division, scanner = planned_division(plan, folder), Scanner()
    done = Counter(progress, "joining the parts", None)
    with SplitShards(out, tokenizer, scanner, plan.max_tokens) as shards:
        if plan.held_out_from:
            _append(shards, held_out_folder(folder))
        for part in range(plan.n_parts):
            if not shards_folder(folder, part).is_dir():
                raise UserError(f"{folder}: part {part} of {plan.n_parts} is missing; run its task first")
            record = read_record(shards_folder(folder, part))
            if record.is_cut or not shards.has_room_for(record.splits):
                _add_what_fits(shards, _entries(plan, part, division), tokenizer, tokenizer_path)
                break
            _append(shards, shards_folder(folder, part))
            done.add(record.found.n_bytes)
    found = scanner.result()
    if plan.max_tokens is not None:
        refuse_too_few_tokens(found, plan.max_tokens)
    finish(
        out,
        name=plan.name,
        tokenizer=tokenizer,
        division=division,
        found=found,
        splits=shards.splits(),
        progress=progress,
    )


def _append(shards: SplitShards, part_folder: Path) -> None:
    record = read_record(part_folder)
    shards.append(part_folder, record.splits, record.found, read_keys(part_folder))


def _add_what_fits(
    shards: SplitShards, entries: Iterator[tuple[Document, Entry]], tokenizer: Tokenizer, tokenizer_path: Path
) -> None:
    """The part in which the last training token lies, document by document."""
    for batch in encode(entries, tokenizer, tokenizer_path, 1):
        shards.add(batch)
        if shards.is_full:
            return
