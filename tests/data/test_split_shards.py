from dataclasses import replace

import numpy as np
import pytest

from widthwise.data.division import Apart, ByFraction, digest_of
from widthwise.data.documents import Document, Scanner
from widthwise.data.encode import encode
from widthwise.data.names import read_names
from widthwise.data.shards import TokenFile
from widthwise.data.split_shards import SplitShards
from widthwise.data.tokenizer import ByteTokenizer

DIVISION = ByFraction(0.4)
FILES = [f"{split}.{ending}" for split in ("train", "held_out") for ending in ("bin", "idx", "names.jsonl")]


def documents(first: int, last: int) -> list[Document]:
    return [Document(str(number), f"text {number} é" * (number % 7)) for number in range(first, last)]


def write(folder, batches: list[list[Document]], max_tokens: int | None = None, division=DIVISION) -> SplitShards:
    folder.mkdir()
    tokenizer = ByteTokenizer()
    with SplitShards(folder, tokenizer, Scanner(), max_tokens) as shards:
        for batch in batches:
            entries = [(document, division.entry(document)) for document in batch]
            for encoded in encode(entries, tokenizer, tokenizer.save(folder), 1):
                shards.add(encoded)
    return shards


@pytest.mark.parametrize("max_tokens", [None, 611, 10**6])
def test_batches_make_no_difference(tmp_path, max_tokens):
    one = write(tmp_path / "one", [documents(0, 60)], max_tokens)
    many = write(tmp_path / "many", [documents(n, n + 5) for n in range(0, 60, 5)], max_tokens)
    assert (one.found(), one.splits(), one.is_full) == (many.found(), many.splits(), many.is_full)
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


def test_each_document_is_in_its_split_with_its_bytes(tmp_path):
    shards = write(tmp_path / "out", [documents(0, 60)])
    for name in ("train", "held_out"):
        chosen = [each for each in documents(0, 60) if DIVISION.entry(each).split == name]
        own = [each.text.encode() for each in chosen]
        assert list(read_names(tmp_path / "out" / name)) == [each.name for each in chosen]
        tokens = TokenFile(tmp_path / "out" / name)
        assert [bytes(tokens.document(n)[:-1].astype(np.uint8)) for n in range(tokens.n_documents)] == own
        record = getattr(shards.splits(), name)
        assert (record.n_documents, record.n_bytes) == (len(own), sum(map(len, own)))
        assert record.n_tokens == record.n_bytes + record.n_documents


def test_appended_shards_and_their_keys_are_what_writing_on_would_give(tmp_path):
    whole = write(tmp_path / "whole", [documents(0, 60)])
    parts = [write(tmp_path / str(first), [documents(first, first + 30)]) for first in (0, 30)]
    (tmp_path / "out").mkdir()
    with SplitShards(tmp_path / "out", ByteTokenizer(), Scanner()) as shards:
        for first, part in zip((0, 30), parts):
            keys = [DIVISION.entry(document).key for document in documents(first, first + 30)]
            shards.append(tmp_path / str(first), part.splits(), part.found(), keys)
    assert (shards.found(), shards.splits()) == (whole.found(), whole.splits())
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("max_tokens", [None, 611])
def test_documents_that_are_left_out_are_counted_and_make_no_other_difference(tmp_path, max_tokens):
    among = documents(0, 60)
    left_out = [each for index, each in enumerate(among) if index % 7 == 3]
    apart = Apart([digest_of(each) for each in left_out], ["elsewhere"])
    mixed = write(tmp_path / "mixed", [among], max_tokens, apart)
    kept = write(tmp_path / "kept", [[each for each in among if each not in left_out]], max_tokens, apart)
    assert mixed.splits() == kept.splits()
    assert mixed.found() == replace(kept.found(), n_left_out=mixed.found().n_left_out)
    if max_tokens is None:
        assert mixed.found().n_left_out == len(left_out)
    for name in FILES:
        assert (tmp_path / "mixed" / name).read_bytes() == (tmp_path / "kept" / name).read_bytes()
