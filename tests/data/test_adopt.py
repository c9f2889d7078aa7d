"""Megatron-LM shards of others become a prepared folder: without a copy where links are possible, never changed."""

import errno
import os
import shutil
import struct
import subprocess
from itertools import accumulate, chain
from pathlib import Path
from unittest.mock import Mock

import pytest

from widthwise import files
from widthwise.config_io import parse
from widthwise.data.config import DataConfig, open_data
from widthwise.data.prepared import PreparedData, adopt
from widthwise.mistakes import UserError

EOS = 256
TRAIN = [[*f"document {index} of the training text".encode(), EOS] for index in range(7)]
HELD_OUT = [[*"naïve ☃".encode(), EOS], [EOS], [*b"the last of the held-out text", EOS]]
CODES = {"h": 3, "i": 4, "q": 5, "H": 8}
"""Megatron-LM's dtype codes by the letters of `struct`."""


def write_megatron(prefix: Path, documents: list[list[int]], letter: str = "H") -> Path:
    """A `.bin` and an `.idx` written from the description of the format alone."""
    lengths = [len(document) for document in documents]
    n, itemsize = len(documents), struct.calcsize(f"<{letter}")
    offsets = [itemsize * start for start in accumulate(lengths[:-1], initial=0)][:n]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[letter], n, n + 1)
    index += struct.pack(f"<{n}i{n}q{n + 1}q", *lengths, *offsets, *range(n + 1))
    Path(f"{prefix}.idx").write_bytes(index)
    Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{sum(lengths)}{letter}", *chain.from_iterable(documents)))
    return prefix


@pytest.fixture
def theirs(tmp_path) -> Path:
    """A folder of its own, with the shards a and b."""
    (tmp_path / "theirs").mkdir()
    write_megatron(tmp_path / "theirs/a", TRAIN)
    write_megatron(tmp_path / "theirs/b", HELD_OUT, "i")
    return tmp_path / "theirs"


def adopted(theirs: Path, out: str = "out", train: str = "a", held_out: str = "b", **options) -> PreparedData:
    return adopt(theirs / train, theirs / held_out, theirs.parent / out, **{"tokenizer": "bytes", **options})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def documents_of(data: PreparedData) -> list[list[list[int]]]:
    return [[part.document(i).tolist() for i in range(part.n_documents)] for part in (data.train, data.held_out)]


def test_adopted_shards_hold_the_same_tokens_and_true_counts_and_take_no_second_space(theirs, tmp_path):
    before, seen = contents(theirs), {}
    data = adopted(theirs, progress=lambda stage, *n_bytes: seen.update({stage: n_bytes}))
    data.verify()
    assert documents_of(data) == [TRAIN, HELD_OUT]
    splits = data.manifest.splits
    for name, documents, record in (("a", TRAIN, splits.train), ("b", HELD_OUT, splits.held_out)):
        n_tokens, n_bytes = sum(map(len, documents)), (theirs / f"{name}.bin").stat().st_size
        assert (record.n_documents, record.n_tokens) == (len(documents), n_tokens)
        assert record.n_bytes == record.n_token_bytes == n_tokens - len(documents)  # all but the end-of-text tokens
        assert seen[f"checking {theirs}/{name}"] == (n_bytes, n_bytes)
    assert data.manifest.corpus.n_documents == len(TRAIN) + len(HELD_OUT)
    with pytest.raises(UserError, match="has no names of documents; it was adopted"):
        next(data.documents("train"))
    assert contents(theirs) == before
    assert sorted(os.listdir(tmp_path)) == ["out", "theirs"]
    assert (tmp_path / "out/train.bin").samefile(theirs / "a.bin")
    assert (tmp_path / "out/held_out.idx").samefile(theirs / "b.idx")
    shutil.rmtree(theirs)
    path = str(tmp_path / "out")
    open_data(parse(DataConfig, {"path": path, "tokenizer": "bytes"})).verify()
    with pytest.raises(UserError, match=r"data\.held_out: got 0\.1, but .* was made without one"):
        open_data(parse(DataConfig, {"path": path, "held_out": 0.1}))


def test_a_relative_symbolic_link_is_followed(theirs, tmp_path):
    for ending in (".bin", ".idx"):
        os.symlink(f"theirs/a{ending}", tmp_path / f"link{ending}")
    data = adopted(theirs, "elsewhere/out", "../link")
    assert documents_of(data) == [TRAIN, HELD_OUT]
    assert not (data.path / "train.bin").is_symlink()


def test_files_are_copied_where_they_cannot_be_linked_and_a_full_disk_leaves_nothing(theirs, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    before, seen = contents(theirs), []
    data = adopted(theirs, progress=lambda stage, *_: seen.append(stage))
    data.verify()
    assert documents_of(data) == [TRAIN, HELD_OUT]
    assert not (data.path / "train.bin").samefile(theirs / "a.bin")
    assert f"copying {theirs}/b.idx" in seen
    monkeypatch.setattr("shutil.copyfile", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(UserError, match=r"train\.bin: cannot be copied from .*a\.bin \(No space left on device\)"):
        adopted(theirs, "full")
    assert sorted(os.listdir(tmp_path)) == ["out", "theirs"]
    assert contents(theirs) == before


@pytest.mark.parametrize(("name", "letter", "token"), [("a", "H", 257), ("a", "h", -1), ("b", "q", 2**40)])
def test_a_token_outside_the_vocabulary_is_refused_with_file_place_and_value(
    theirs, tmp_path, monkeypatch, name, letter, token
):
    """In any of the parts that are looked at at once."""
    monkeypatch.setattr("widthwise.data.prepared.CHECKED_TOKENS_AT_ONCE", 5)
    write_megatron(theirs / name, [[5, 6, EOS], [0] * 10 + [token, 500, EOS]], letter)
    before = contents(theirs)
    with pytest.raises(UserError) as refused:
        adopted(theirs)
    assert str(refused.value) == f"{theirs / name}.bin: token 13 is {token}, outside its vocabulary: 0 to 256"
    assert os.listdir(tmp_path) == ["theirs"]
    assert contents(theirs) == before


def test_what_cannot_be_adopted_is_refused_by_name_and_leaves_nothing(theirs, tmp_path):
    """Damage of shards is told in `test_shards.py`."""
    for name, documents in (("none", []), ("empty", [[], []])):
        write_megatron(theirs / name, documents)
    before = contents(theirs)
    for options, message in (
        ({"held_out": "none"}, r"none\.bin: holds no tokens"),
        ({"held_out": "empty"}, r"empty\.bin: holds no tokens"),
        ({"held_out": "c"}, r"c\.idx: cannot be read"),
        ({"held_out": "../theirs/a"}, "is both train and held-out"),
        ({"tokenizer": "bpe-300"}, r"'bpe-300': is trained on a corpus; name bytes or"),
        ({"tokenizer": "gpt"}, "allowed: bytes"),
        ({"tokenizer": "missing.json"}, r"missing\.json: cannot be read"),
    ):
        with pytest.raises(UserError, match=message):
            adopted(theirs, **options)
    assert os.listdir(tmp_path) == ["theirs"]
    assert contents(theirs) == before


def test_what_a_killed_adoption_left_is_replaced_and_the_originals_survive(theirs, tmp_path):
    before = contents(theirs)
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = tmp_path / f".out.{files.HOST}-{gone.pid}.0a1b2c3d"
    left.mkdir()
    os.link(theirs / "a.bin", left / "train.bin")
    (tmp_path / ".out.lock").touch()
    first = adopted(theirs)
    first.verify()
    assert contents(theirs) == before
    assert sorted(os.listdir(tmp_path)) == ["out", "theirs"]
    assert adopted(theirs, "again").manifest == first.manifest
    assert adopted(theirs, "other", "b", "a").manifest.corpus.fingerprint != first.manifest.corpus.fingerprint


def test_a_folder_of_shards_is_joined_in_the_order_of_their_names(theirs, tmp_path):
    (theirs / "parts").mkdir()
    for number, documents in enumerate((TRAIN[:3], TRAIN[3:4], TRAIN[4:])):
        write_megatron(theirs / f"parts/0{number}_tokens", documents, "iHq"[number])
    data = adopted(theirs, train="parts")
    data.verify()
    assert documents_of(data) == [TRAIN, HELD_OUT]
    assert data.manifest.splits == adopted(theirs, out="alone").manifest.splits
    (tmp_path / "none").mkdir()
    for train, message in (
        (tmp_path / "none", "none: holds no shards; expected files NAME.bin and NAME.idx"),
        (theirs, "b: is both train and held-out"),
    ):
        with pytest.raises(UserError, match=message):
            adopt(train, theirs / "b", tmp_path / "new", tokenizer="bytes")
