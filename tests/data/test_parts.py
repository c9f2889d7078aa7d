"""A preparation planned in parts, made by tasks or by worker processes, joins to the folder that one process makes."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from source_folders import check_same_bytes, make_source

from widthwise.config_io import UserError
from widthwise.data.corpus import named_corpus
from widthwise.data.parts import (
    JoinParts,
    TokenizePart,
    begin,
    join_parts,
    planned_tokenizer,
    progress_of,
    shards_folder,
)
from widthwise.data.prepare import PreparationPlan, make_plan, prepare, read_plan
from widthwise.data.prepared import PreparedData
from widthwise.data.readers import open_source
from widthwise.data.workers import prepare_with_workers


def planned(source: str, folder: Path, **options) -> PreparationPlan:
    plan = make_plan(source, **{"tokenizer": "bytes", **options})
    begin(plan, folder)
    return plan


def tokenize(folder: Path, n_parts: int, order) -> None:
    for part in order:
        TokenizePart(str(folder))(None, part, n_parts)


def test_parts_hold_every_file_once_in_order_and_about_the_same_bytes(source, tmp_path):
    for max_parts in (1, 2, 5, 100):
        plan = make_plan(source, max_parts=max_parts)
        parts = [plan.files_of(part) for part in range(plan.n_parts)]
        assert [file for part in parts for file in part] == list(plan.files)
        assert [file.name for file in plan.files] == sorted(os.listdir(source))
        assert all(parts)
        assert plan.n_parts <= max_parts
    (tmp_path / "even").mkdir()
    for number in range(40):
        (tmp_path / f"even/{number:02d}.txt").write_text("x" * (10 + number))
    plan = make_plan(str(tmp_path / "even"), max_parts=4)
    n_bytes = [plan.n_bytes_of(part) for part in range(plan.n_parts)]
    assert len(n_bytes) == 4
    assert max(n_bytes) - min(n_bytes) <= 2 * 49


def test_a_small_source_is_one_part_and_one_file_is_a_source_too(tmp_path):
    assert make_plan(str(make_source(tmp_path / "source"))).n_parts == 1
    plan = make_plan(str(tmp_path / "source/00.jsonl"))
    assert plan.open(plan.files[0]).path == tmp_path / "source/00.jsonl"


def test_mistakes_are_refused(source):
    for options, message in (
        ({"source": "synthetic"}, "^synthetic: is not a folder of files, which workers share"),
        ({"source": "hf:books"}, "^hf:books: is not a folder of files"),
        ({"held_out": 1.0}, "held_out: got 1.0"),
        ({"max_tokens": 0}, "max_tokens: got 0"),
        ({"document_bytes": 0}, "document_bytes: got 0"),
        ({"tokenizer": "gpt5"}, "tokenizer 'gpt5'"),
    ):
        with pytest.raises(UserError, match=message):
            make_plan(**{"source": source, **options})


def test_a_plan_is_read_as_it_was_written_and_its_tokenizer_is_trained_once(source, tmp_path):
    plan, stages = make_plan(source, tokenizer="bpe-300"), []
    for _ in range(2):
        begin(plan, tmp_path / "parts", lambda stage, *_: stages.append(stage))
    assert stages == ["training the tokenizer"]
    assert read_plan(tmp_path / "parts") == plan
    tokenizer = planned_tokenizer(plan, tmp_path / "parts")
    assert (tokenizer.spec, tokenizer.vocab_size) == ("bpe-300", 300)
    with pytest.raises(UserError, match="holds the parts of another preparation"):
        planned(source, tmp_path / "parts", held_out=0.1)


def test_other_files_are_another_plan(source, tmp_path):
    """Sources, held-out sources and tokenizers; a file that was changed makes no part."""
    book, tokenizer = tmp_path / "book.txt", tmp_path / "tokenizer.json"
    book.write_text("a book")
    tokenizer.write_text("{}")
    options = {"held_out": [str(book)], "tokenizer": f"{tokenizer}#<s>"}
    for path, text in ((book, "a look"), (tokenizer, "{ }")):
        before = make_plan(source, **options)
        assert make_plan(source, **options) == before
        path.write_text(text)
        assert make_plan(source, **options) != before
    plan = planned(source, tmp_path / "parts")
    os.utime(os.path.join(source, "02.txt"), (5, 5))
    assert make_plan(source, tokenizer="bytes") != plan
    changed = next(part for part in range(plan.n_parts) if "02.txt" in {file.name for file in plan.files_of(part)})
    with pytest.raises(UserError, match=r"02\.txt: was changed after the preparation was planned"):
        tokenize(tmp_path / "parts", plan.n_parts, [changed])
    assert os.listdir(shards_folder(tmp_path / "parts", changed).parent) == []


@pytest.mark.parametrize(
    ("max_parts", "options"),
    [
        (1, {}),
        (3, {"tokenizer": "bpe-301"}),
        (8, {"document_bytes": 200}),
        (6, {"max_tokens": 450, "held_out": 0.4}),
        (6, {"max_tokens": 1_500, "held_out": 0.4}),
        (6, {"max_tokens": 10**9}),
        (4, {"held_out": ["04.jsonl.gz", "00.jsonl"], "tokenizer": "bpe-301"}),
        (4, {"held_out": ["04.jsonl.gz", "00.jsonl"], "max_tokens": 1_500}),
    ],
)
def test_parts_in_any_order_make_the_folder_of_one_process(source, tmp_path, max_parts, options):
    options = {"tokenizer": "bytes", "held_out": 0.3, **options}
    if held_out := isinstance(options["held_out"], list):
        options["held_out"] = [os.path.join(source, name) for name in options["held_out"]]
    plan = planned(source, tmp_path / "parts", max_parts=max_parts, **options)
    tokenize(tmp_path / "parts", plan.n_parts, random.Random(5).sample(range(plan.n_parts), plan.n_parts))
    JoinParts(str(tmp_path / "parts"), str(tmp_path / "joined"))(None, 0, 1)  # as datatrove calls it
    joined, document_bytes = PreparedData.open(tmp_path / "joined"), options.pop("document_bytes", None)
    corpus = open_source(source, document_bytes=document_bytes) if document_bytes else source
    check_same_bytes(joined.path, prepare(corpus, tmp_path / "one", **options).path)
    joined.verify()
    if held_out:
        assert joined.manifest.held_out_from.sources == tuple(options["held_out"])
        assert 0 < joined.manifest.held_out_from.n_left_out <= 22


def test_parts_behind_max_tokens_are_not_tokenized(source, tmp_path):
    plan = planned(source, tmp_path / "parts", max_parts=6, held_out=0.4, max_tokens=1_500)
    tokenize(tmp_path / "parts", plan.n_parts, range(plan.n_parts))
    there = [shards_folder(tmp_path / "parts", part).exists() for part in range(plan.n_parts)]
    assert there == sorted(there, reverse=True)
    assert not all(there)


def test_a_part_that_is_there_is_left_as_it_is_and_progress_ends_at_bytes_and_tokens(source, tmp_path):
    parts = tmp_path / "parts"
    plan = planned(source, parts, held_out=0.3)
    assert progress_of(parts, 0).n_bytes == 0
    tokenize(parts, plan.n_parts, [1])
    written_at = (shards_folder(parts, 1) / "part.json").stat().st_mtime_ns
    tokenize(parts, plan.n_parts, range(plan.n_parts))
    assert (shards_folder(parts, 1) / "part.json").stat().st_mtime_ns == written_at
    joined = join_parts(parts, tmp_path / "joined").manifest
    reports = [progress_of(parts, part) for part in range(plan.n_parts)]
    assert sum(report.n_bytes for report in reports) == joined.corpus.n_bytes
    assert sum(report.n_train_tokens for report in reports) == joined.splits.train.n_tokens


def test_what_cannot_be_joined_is_named_and_nothing_is_left(source, tmp_path):
    parts, joined = tmp_path / "parts", tmp_path / "joined"
    plan = planned(source, parts, held_out=1e-9)
    with pytest.raises(UserError, match=rf"was planned in {plan.n_parts} parts; got 99 tasks"):
        TokenizePart(str(parts))(None, 0, 99)
    tokenize(parts, plan.n_parts, {*range(plan.n_parts)} - {2})
    with pytest.raises(UserError, match=f"part 2 of {plan.n_parts} is missing; run its task first"):
        join_parts(parts, joined)
    tokenize(parts, plan.n_parts, [2])
    with pytest.raises(UserError, match="and 0 in held-out; raise held_out"):
        join_parts(parts, joined)
    assert not joined.exists()
    Path(source, "04b.jsonl").write_text(json.dumps({"body": "x"}))
    plan = planned(source, tmp_path / "others")
    with pytest.raises(UserError, match=r"04b\.jsonl: line 1: has no field 'text'"):
        tokenize(tmp_path / "others", plan.n_parts, range(plan.n_parts))


@pytest.mark.parametrize(
    ("n_workers", "options"),
    [(1, {"held_out": "04.jsonl.gz"}), (3, {"held_out": 0.3}), (2, {"held_out": 0.3, "max_tokens": 1_500})],
)
def test_any_number_of_workers_makes_the_folder_of_one_process(source, tmp_path, n_workers, options):
    seen: dict[str, tuple[int, int | None]] = {}
    if options["held_out"] == "04.jsonl.gz":
        options = {"held_out": [f"{source}/04.jsonl.gz"]}
    plan = make_plan(source, max_parts=4, tokenizer="bytes", **options)
    data = prepare_with_workers(plan, tmp_path / "out", n_workers, lambda stage, *done: seen.update({stage: done}))
    check_same_bytes(data.path, prepare(source, tmp_path / "one", tokenizer="bytes", **options).path)
    assert sorted(os.listdir(tmp_path)) == ["one", "out", "source"]
    if options == {"held_out": 0.3}:
        assert seen["tokenizing"] == (data.manifest.corpus.n_bytes, data.manifest.corpus.n_bytes)


def test_a_mistake_in_a_file_that_a_worker_reads_is_the_users_and_leaves_no_folder(source, tmp_path):
    (tmp_path / "source/06b.jsonl").write_text('{"text": "fine"}\n{"text": 7}\n')
    plan = make_plan(source, max_parts=4, tokenizer="bytes", held_out=0.3)
    with pytest.raises(UserError, match="workers: got 0"):
        prepare_with_workers(plan, tmp_path / "out", 0)
    assert os.listdir(tmp_path) == ["source"]
    with pytest.raises(UserError, match=r"06b\.jsonl: line 2: field 'text' holds int, not text"):
        prepare_with_workers(plan, tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def test_the_error_that_ends_a_worker_is_shown_and_the_parts_go_once_the_folder_is_there(source, tmp_path):
    parts, plan = tmp_path / ".out.parts", make_plan(source, max_parts=1, tokenizer="bytes", held_out=0.3)
    (parts / "parts/00000/lock").mkdir(parents=True)  # where a file is locked
    with pytest.raises(UserError, match=r"workers: one of them failed \(\w+Error: .*lock.*\)"):
        prepare_with_workers(plan, tmp_path / "out", 1)
    assert parts.exists()
    prepare(source, tmp_path / "out", tokenizer="bytes", held_out=0.3)
    assert not parts.exists()
    parts.mkdir()  # of a process that was killed before it removed them
    with pytest.raises(UserError, match="already holds a prepared corpus"):
        prepare_with_workers(plan, tmp_path / "out", 1)
    assert not parts.exists()


PREPARE = """
import sys
from widthwise.config_io import UserError
from widthwise.data import prepare as prepare_module
from widthwise.data.prepare import make_plan
from widthwise.data.workers import prepare_with_workers

prepare_module.MIN_PART_BYTES = 1
try:
    prepare_with_workers(make_plan(sys.argv[1], tokenizer="bpe-300", max_parts=4), sys.argv[2], 2)
except UserError as error:
    sys.exit(str(error))
"""
"""Without the guard against being imported by workers, which scripts need not have."""


@pytest.fixture
def slow_source(tmp_path) -> str:
    """Two files: a part that is done at once, and one that takes seconds."""
    texts = [document.text for document in named_corpus("synthetic")]
    (tmp_path / "slow").mkdir()
    for name, n_bytes in (("quick", 50_000), ("slow", 2_000_000)):
        repeats = n_bytes // sum(map(len, texts)) + 1
        lines = (json.dumps({"text": text}) + "\n" for text in texts * repeats)
        (tmp_path / f"slow/{name}.jsonl").write_text("".join(lines))
    return str(tmp_path / "slow")


def start(source: str, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PREPARE, source, str(out)], stderr=subprocess.PIPE, text=True)


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 200
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def busy_workers(parts: Path) -> list[int]:
    """The process numbers in the name of the slow part's unfinished folder."""
    names = [path.name for path in parts.glob("parts/00001/.shards.*")]
    return [int(found[1]) for name in names if (found := re.fullmatch(r"\.shards\..*-(\d+)\.[0-9a-f]{8}", name))]


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.hard
def test_a_killed_preparation_ends_its_workers_and_goes_on_with_what_is_finished(slow_source, tmp_path):
    out, parts = tmp_path / "out", tmp_path / ".out.parts"
    finished = parts / "parts/00000/shards/part.json"
    killed = start(slow_source, out)
    until(lambda: finished.exists() and busy_workers(parts))
    workers = busy_workers(parts)
    killed.kill()
    killed.communicate()
    assert not out.exists()
    until(lambda: not any(map(is_alive, workers)))
    written_at = finished.stat().st_mtime_ns
    again = start(slow_source, out)
    until(lambda: set(busy_workers(parts)) - set(workers))
    assert finished.stat().st_mtime_ns == written_at
    _, said = again.communicate(timeout=200)
    assert again.returncode == 0, said
    check_same_bytes(out, prepare(open_source(slow_source), tmp_path / "one", tokenizer="bpe-300").path)


@pytest.mark.hard
def test_a_worker_that_dies_ends_the_preparation_with_an_error(slow_source, tmp_path):
    out, parts = tmp_path / "out", tmp_path / ".out.parts"
    running = start(slow_source, out)
    until(lambda: busy_workers(parts))
    os.kill(busy_workers(parts)[0], signal.SIGKILL)
    _, said = running.communicate(timeout=200)
    assert running.returncode == 1
    assert "workers: one of them died; use fewer if memory is short" in said
    assert not out.exists()
