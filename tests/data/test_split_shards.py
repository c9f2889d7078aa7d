import numpy as np
import pytest

from widthwise.data.documents import Document, Scanner
from widthwise.data.encode import encode
from widthwise.data.shards import TokenFile
from widthwise.data.split_shards import SplitShards
from widthwise.data.tokenizer import ByteTokenizer

HELD_OUT = 0.4


def documents(first: int, last: int) -> list[Document]:
    return [Document(str(number), f"text {number} é" * (number % 7)) for number in range(first, last)]


def write(folder, batches: list[list[Document]], max_tokens: int | None = None) -> SplitShards:
    folder.mkdir()
    scanner, tokenizer = Scanner(HELD_OUT), ByteTokenizer()
    with SplitShards(folder, tokenizer, scanner, max_tokens) as shards:
        for batch in batches:
            for encoded in encode(batch, scanner, tokenizer, tokenizer.save(folder), 1):
                shards.add(encoded)
    return shards


@pytest.mark.parametrize("max_tokens", [None, 611, 10**6])
def test_batches_make_no_difference(tmp_path, max_tokens):
    one = write(tmp_path / "one", [documents(0, 60)], max_tokens)
    many = write(tmp_path / "many", [documents(n, n + 5) for n in range(0, 60, 5)], max_tokens)
    assert (one.found(), one.splits(), one.is_full) == (many.found(), many.splits(), many.is_full)
    for name in ("train.bin", "train.idx", "held_out.bin", "held_out.idx"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


def test_each_document_is_in_its_split_with_its_bytes(tmp_path):
    shards = write(tmp_path / "out", [documents(0, 60)])
    scanner = Scanner(HELD_OUT)
    for name, is_held_out in (("train", False), ("held_out", True)):
        own = [each.text.encode() for each in documents(0, 60) if scanner.entry(each).is_held_out == is_held_out]
        tokens = TokenFile(tmp_path / "out" / name)
        assert [bytes(tokens.document(n)[:-1].astype(np.uint8)) for n in range(tokens.n_documents)] == own
        record = getattr(shards.splits(), name)
        assert (record.n_documents, record.n_bytes) == (len(own), sum(map(len, own)))
        assert record.n_tokens == record.n_bytes + record.n_documents


def test_appended_shards_and_their_keys_are_what_writing_on_would_give(tmp_path):
    whole = write(tmp_path / "whole", [documents(0, 60)])
    parts = [write(tmp_path / str(first), [documents(first, first + 30)]) for first in (0, 30)]
    scanner = Scanner(HELD_OUT)
    (tmp_path / "out").mkdir()
    with SplitShards(tmp_path / "out", ByteTokenizer(), scanner) as shards:
        for first, part in zip((0, 30), parts):
            keys = [scanner.entry(document).key for document in documents(first, first + 30)]
            shards.append(tmp_path / str(first), part.splits(), part.found(), keys)
    assert (shards.found(), shards.splits()) == (whole.found(), whole.splits())
    assert (tmp_path / "out/train.bin").read_bytes() == (tmp_path / "whole/train.bin").read_bytes()
