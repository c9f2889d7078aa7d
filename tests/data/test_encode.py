"""The shards of both splits with the names of their documents, written in batches or appended to one another."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import UserError
from widthwise.data.documents import Document, HeldOutFraction, HeldOutSources, digest_of
from widthwise.data.encode import SplitShards, encode
from widthwise.data.shards import NameWriter, TokenFile, names_path, read_names
from widthwise.data.tokenizer import ByteTokenizer

DIVISION = HeldOutFraction(0.4)
ALL = [Document(str(number), f"text {number} é" * (number % 7)) for number in range(60)]


def write(folder: Path, batches: list[list[Document]], max_tokens: int | None = None, division=DIVISION) -> SplitShards:
    folder.mkdir()
    tokenizer = ByteTokenizer()
    with SplitShards(folder, tokenizer, max_tokens) as shards:
        for batch in batches:
            entries = [(document, division.entry(document)) for document in batch]
            shards.fill(encode(entries, tokenizer))
    return shards


def check_same_files(folder: Path, expected: Path) -> None:
    names = [f"{split}.{ending}" for split in ("train", "held_out") for ending in ("bin", "idx", "names.jsonl")]
    assert [(folder / name).read_bytes() for name in names] == [(expected / name).read_bytes() for name in names]


@pytest.mark.parametrize("max_tokens", [None, 611, 10**6])
def test_batches_make_no_difference(tmp_path, max_tokens):
    one = write(tmp_path / "one", [ALL], max_tokens)
    many = write(tmp_path / "many", [ALL[n : n + 5] for n in range(0, 60, 5)], max_tokens)
    assert (one.found(), one.splits(), one.is_full) == (many.found(), many.splits(), many.is_full)
    check_same_files(tmp_path / "many", tmp_path / "one")


def test_each_document_is_in_its_split_with_its_bytes(tmp_path):
    shards = write(tmp_path / "out", [ALL])
    for name in ("train", "held_out"):
        chosen = [each for each in ALL if DIVISION.entry(each).split == name]
        own = [each.text.encode() for each in chosen]
        assert list(read_names(tmp_path / "out" / name)) == [each.name for each in chosen]
        tokens = TokenFile(tmp_path / "out" / name)
        assert [bytes(tokens.document(n)[:-1].astype(np.uint8)) for n in range(tokens.n_documents)] == own
        record = getattr(shards.splits(), name)
        assert (record.n_documents, record.n_bytes) == (len(own), sum(map(len, own)))
        assert record.n_tokens == record.n_bytes + record.n_documents


def test_appended_shards_and_their_keys_are_what_writing_on_would_give(tmp_path):
    whole = write(tmp_path / "whole", [ALL])
    (tmp_path / "out").mkdir()
    with SplitShards(tmp_path / "out", ByteTokenizer()) as shards:
        for half in (ALL[:30], ALL[30:]):
            part = write(tmp_path / half[0].name, [half])
            keys = [DIVISION.entry(document).key for document in half]
            shards.append(tmp_path / half[0].name, part.splits(), part.n_left_out, keys)
    assert (shards.found(), shards.splits()) == (whole.found(), whole.splits())
    check_same_files(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize("max_tokens", [None, 611])
def test_documents_that_are_left_out_are_counted_and_make_no_other_difference(tmp_path, max_tokens):
    left_out = ALL[3::7]
    apart = HeldOutSources([digest_of(each) for each in left_out], ["elsewhere"])
    mixed = write(tmp_path / "mixed", [ALL], max_tokens, apart)
    kept = write(tmp_path / "kept", [[each for each in ALL if each not in left_out]], max_tokens, apart)
    assert mixed.splits() == kept.splits()
    assert mixed.found() == replace(kept.found(), n_left_out=mixed.found().n_left_out)
    assert max_tokens is not None or mixed.found().n_left_out == len(left_out)
    check_same_files(tmp_path / "mixed", tmp_path / "kept")


@settings(max_examples=30)
@given(names=st.lists(st.text(max_size=9)))
def test_any_names_are_read_as_they_were_written(tmp_path_factory, names):
    prefix = tmp_path_factory.mktemp("names") / "train"
    names.append(b"caf\xe9\n.txt".decode(errors="surrogateescape"))  # of bytes that are no text
    with NameWriter(prefix) as writer:
        writer.add(names[:3])
        writer.add(names[3:])
    assert list(read_names(prefix)) == names
    assert names_path(prefix).read_bytes().count(b"\n") == len(names)
    with NameWriter(prefix.with_name("twice")) as writer:
        writer.append(prefix)
        writer.append(prefix)
    assert list(read_names(prefix.with_name("twice"))) == names * 2


def test_anything_else_than_names_is_refused_with_its_line(tmp_path):
    for line, message in ((b"3", "holds int, not the name"), (b"\xff", "is not valid JSON")):
        names_path(tmp_path / "train").write_bytes(b'"a"\n' + line + b"\n")
        with pytest.raises(UserError, match=rf"train\.names\.jsonl: line 2: {message}"):
            list(read_names(tmp_path / "train"))
