import json
import os
import random

import pytest
from source_folders import check_same_bytes, make_source

from widthwise.config_io import UserError
from widthwise.data import plan as plan_module
from widthwise.data import split_shards
from widthwise.data.parts import JoinParts, TokenizePart, join_parts, progress_of, shards_folder
from widthwise.data.plan import begin, make_plan
from widthwise.data.prepare import prepare
from widthwise.data.prepared import PreparedData
from widthwise.data.readers import open_source


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "MIN_PART_BYTES", 1)
    monkeypatch.setattr(split_shards, "APPENDED_TOKENS_AT_ONCE", 97)
    return str(make_source(tmp_path / "source"))


def planned(source, folder, **options):
    plan = make_plan(source, **options)
    begin(plan, folder)
    return plan


def tokenize(folder, n_parts, order) -> None:
    step = TokenizePart(str(folder))
    for part in order:
        step(None, part, n_parts)


@pytest.mark.parametrize(("tokenizer", "max_parts"), [("bytes", 1), ("bpe-301", 3), ("bytes", 8)])
def test_parts_in_any_order_make_the_folder_of_one_process(source, tmp_path, tokenizer, max_parts):
    options = {"tokenizer": tokenizer, "held_out": 0.3}
    plan = planned(source, tmp_path / "parts", max_parts=max_parts, document_bytes=200, **options)
    order = random.Random(5).sample(range(plan.n_parts), plan.n_parts)
    tokenize(tmp_path / "parts", plan.n_parts, order)
    JoinParts(str(tmp_path / "parts"), str(tmp_path / "joined"))()
    joined = PreparedData.open(tmp_path / "joined")
    check_same_bytes(joined, prepare(open_source(source, document_bytes=200), tmp_path / "one", **options))
    joined.verify()


@pytest.mark.parametrize("max_tokens", [450, 1_500, 3_001, 10**9])
@pytest.mark.parametrize("is_forward", [True, False])
def test_max_tokens_cuts_parts_where_one_process_stops(source, tmp_path, max_tokens, is_forward):
    options = {"tokenizer": "bytes", "held_out": 0.4, "max_tokens": max_tokens}
    plan = planned(source, tmp_path / "parts", max_parts=6, **options)
    order = [*range(plan.n_parts)][:: 1 if is_forward else -1]
    tokenize(tmp_path / "parts", plan.n_parts, order)
    joined = join_parts(tmp_path / "parts", tmp_path / "joined")
    check_same_bytes(joined, prepare(open_source(source), tmp_path / "one", **options))


@pytest.mark.parametrize(("tokenizer", "max_tokens"), [("bpe-301", None), ("bytes", 1_500), ("bytes", 10**9)])
def test_held_out_sources_make_the_folder_of_one_process(source, tmp_path, tokenizer, max_tokens):
    held_out = [os.path.join(source, name) for name in ("04.jsonl.gz", "00.jsonl")]
    options = {"tokenizer": tokenizer, "held_out": held_out, "max_tokens": max_tokens}
    plan = planned(source, tmp_path / "parts", max_parts=4, **options)
    tokenize(tmp_path / "parts", plan.n_parts, reversed(range(plan.n_parts)))
    joined = join_parts(tmp_path / "parts", tmp_path / "joined")
    check_same_bytes(joined, prepare(source, tmp_path / "one", **options))
    assert joined.manifest.held_out_from.sources == tuple(held_out)
    assert 0 < joined.manifest.held_out_from.n_left_out <= 22


def test_another_content_of_a_held_out_source_is_another_plan(source, tmp_path):
    (tmp_path / "book.txt").write_text("a book")
    first = make_plan(source, held_out=[str(tmp_path / "book.txt")])
    assert make_plan(source, held_out=[str(tmp_path / "book.txt")]) == first
    (tmp_path / "book.txt").write_text("a look")
    assert make_plan(source, held_out=[str(tmp_path / "book.txt")]) != first


def test_parts_behind_max_tokens_are_not_tokenized(source, tmp_path):
    plan = planned(source, tmp_path / "parts", max_parts=6, tokenizer="bytes", held_out=0.4, max_tokens=1_500)
    tokenize(tmp_path / "parts", plan.n_parts, range(plan.n_parts))
    there = [shards_folder(tmp_path / "parts", part).exists() for part in range(plan.n_parts)]
    assert there == sorted(there, reverse=True)
    assert not all(there)


def test_a_part_that_is_there_is_left_as_it_is(source, tmp_path):
    plan = planned(source, tmp_path / "parts", tokenizer="bytes")
    tokenize(tmp_path / "parts", plan.n_parts, [1])
    written_at = (shards_folder(tmp_path / "parts", 1) / "part.json").stat().st_mtime_ns
    tokenize(tmp_path / "parts", plan.n_parts, [1])
    assert (shards_folder(tmp_path / "parts", 1) / "part.json").stat().st_mtime_ns == written_at


def test_a_missing_part_is_named_and_nothing_is_left(source, tmp_path):
    plan = planned(source, tmp_path / "parts", tokenizer="bytes")
    tokenize(tmp_path / "parts", plan.n_parts, {*range(plan.n_parts)} - {2})
    with pytest.raises(UserError, match=f"part 2 of {plan.n_parts} is missing; run its task first"):
        join_parts(tmp_path / "parts", tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_another_number_of_tasks_than_parts_is_refused(source, tmp_path):
    plan = planned(source, tmp_path / "parts", tokenizer="bytes")
    with pytest.raises(UserError, match=rf"was planned in {plan.n_parts} parts; got 99 tasks"):
        TokenizePart(str(tmp_path / "parts"))(None, 0, 99)


def test_a_file_that_changes_before_or_while_it_is_read_makes_no_part(source, tmp_path):
    plan = planned(source, tmp_path / "parts", tokenizer="bytes")
    os.utime(os.path.join(source, "02.txt"), (5, 5))
    changed = next(part for part in range(plan.n_parts) if "02.txt" in {file.name for file in plan.files_of(part)})
    with pytest.raises(UserError, match=r"02\.txt: was changed after the preparation was planned"):
        tokenize(tmp_path / "parts", plan.n_parts, [changed])
    assert os.listdir(shards_folder(tmp_path / "parts", changed).parent) == []


def test_a_mistake_in_a_file_is_named_with_its_line(source, tmp_path):
    with open(os.path.join(source, "04b.jsonl"), "x") as file:
        file.write(json.dumps({"body": "x"}))
    plan = planned(source, tmp_path / "parts", tokenizer="bytes")
    with pytest.raises(UserError, match=r"04b\.jsonl: line 1: has no field 'text'"):
        tokenize(tmp_path / "parts", plan.n_parts, range(plan.n_parts))


def test_progress_of_a_part_ends_at_its_bytes_and_tokens(source, tmp_path):
    plan = planned(source, tmp_path / "parts", tokenizer="bytes", held_out=0.3)
    assert progress_of(tmp_path / "parts", 0).n_bytes == 0
    tokenize(tmp_path / "parts", plan.n_parts, range(plan.n_parts))
    joined = join_parts(tmp_path / "parts", tmp_path / "joined").manifest
    reports = [progress_of(tmp_path / "parts", part) for part in range(plan.n_parts)]
    assert sum(report.n_bytes for report in reports) == joined.corpus.n_bytes
    assert sum(report.n_train_tokens for report in reports) == joined.splits.train.n_tokens


def test_splits_that_would_be_empty_are_refused(source, tmp_path):
    plan = planned(source, tmp_path / "parts", tokenizer="bytes", held_out=1e-9)
    tokenize(tmp_path / "parts", plan.n_parts, range(plan.n_parts))
    with pytest.raises(UserError, match="and 0 in held-out; raise held_out"):
        join_parts(tmp_path / "parts", tmp_path / "joined")
