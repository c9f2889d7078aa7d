"""A prepared folder is opened only if it is complete and matches its manifest.

Megatron-LM shards are adopted: linked where possible, otherwise copied, and never changed.
"""

import errno
import os
import shutil
import struct
from itertools import accumulate, chain
from pathlib import Path
from unittest.mock import Mock

import pytest
from source_folders import in_manifest

from widthwise.data.prepared import PreparedData, adopt
from widthwise.data.shards import write_tokens
from widthwise.files import FileRecord
from widthwise.mistakes import UserError


@pytest.fixture
def folder(original, tmp_path) -> Path:
    return shutil.copytree(original, tmp_path / "copy")


def test_a_copied_folder_is_complete_in_itself_and_verify_tells_how_far_it_is(folder):
    data, seen = PreparedData.open(folder), []
    data.verify(lambda *report: seen.append(report))
    n_bytes = sum(record.n_bytes for record in data.manifest.files.values())
    n_token_bytes = sum((folder / name).stat().st_size for name in ("train.bin", "held_out.bin"))
    assert ("checking the data", n_bytes, n_bytes) in seen
    assert seen[-1] == ("checking the tokens", n_token_bytes, n_token_bytes)


def empty(folder: Path) -> None:
    names = ("train.bin", "train.idx")
    for name in names:
        (folder / name).unlink()
    write_tokens(folder / "train", 257, [])
    records = {name: FileRecord.of(folder / name).model_dump() for name in names}
    in_manifest(lambda said: said["files"].update(records))(folder)
    in_manifest(lambda said: said["splits"].update(train=dict.fromkeys(said["splits"]["train"], 0)))(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "its preparation never finished"),
        (empty, r"train\.bin: holds no tokens; prepare the text again"),
        (lambda folder: os.truncate(folder / "train.bin", 7), r"train\.bin: has 7 bytes; its manifest promises"),
        (lambda folder: (folder / "held_out.idx").unlink(), r"held_out\.idx: cannot be read"),
        (in_manifest(lambda said: said["splits"]["train"].update(n_tokens=7)), r"train: holds \(documents, tokens\)"),
        (in_manifest(lambda said: said.update(format_version=2)), "has format version 2; this program reads 1"),
        (in_manifest(lambda said: said.update(corpus={})), r"manifest\.json: corpus\.name: is required"),
        (lambda folder: (folder / "manifest.json").write_text("["), r"manifest\.json: is not valid JSON"),
        *(
            (in_manifest(lambda said, name=name: said["files"].pop(name)), f"files: lacks {name}")
            for name in ("train.bin", "held_out.idx", "tokenizer_spec.json")
        ),
    ],
)
def test_a_damaged_folder_is_refused_on_opening(folder, change, message):
    change(folder)
    with pytest.raises(UserError, match=message):
        PreparedData.open(folder)


def test_an_empty_path_is_not_the_working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    PreparedData.open(".").verify()
    with pytest.raises(UserError, match="data: got ''; expected a prepared folder"):
        PreparedData.open("")


def test_a_changed_byte_and_a_token_outside_the_vocabulary_are_found_by_verify(folder):
    content = bytearray((folder / "train.bin").read_bytes())
    content[1001] = 0xFF
    (folder / "train.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"train\.bin: its checksum differs"):
        PreparedData.open(folder).verify()
    record = FileRecord.of(folder / "train.bin").model_dump()
    in_manifest(lambda said: said["files"].update({"train.bin": record}))(folder)
    with pytest.raises(UserError, match=r"train\.bin: token 500 is \d+, outside its vocabulary: 0 to 256"):
        PreparedData.open(folder).verify()
    in_manifest(lambda said: said["tokenizer"].update(id="0" * 64))(folder)
    with pytest.raises(UserError, match="is not the tokenizer the data was made with"):
        _ = PreparedData.open(folder).tokenizer


EOS = 256
TRAIN = [[*f"document {index} of the training text".encode(), EOS] for index in range(7)]
HELD_OUT = [[*"naïve ☃".encode(), EOS], [EOS], [*b"the last of the held-out text", EOS]]
CODES = {"h": 3, "i": 4, "q": 5, "H": 8}
"""Megatron-LM's dtype codes by the letters of `struct`."""


def write_megatron(prefix: Path, documents: list[list[int]], letter: str = "H") -> None:
    """Write a `.bin` and an `.idx` by the description of the format, independently of ShardWriter."""
    lengths = [len(document) for document in documents]
    n, itemsize = len(documents), struct.calcsize(f"<{letter}")
    offsets = [itemsize * start for start in accumulate(lengths[:-1], initial=0)][:n]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[letter], n, n + 1)
    index += struct.pack(f"<{n}i{n}q{n + 1}q", *lengths, *offsets, *range(n + 1))
    Path(f"{prefix}.idx").write_bytes(index)
    Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{sum(lengths)}{letter}", *chain.from_iterable(documents)))


@pytest.fixture
def theirs(tmp_path) -> Path:
    """A folder with the shards a and b, the only entry of `tmp_path`, also after an adoption that fails."""
    (tmp_path / "theirs").mkdir()
    write_megatron(tmp_path / "theirs/a", TRAIN)
    write_megatron(tmp_path / "theirs/b", HELD_OUT, "i")
    return tmp_path / "theirs"


def adopted(theirs: Path, out: str = "out", train: str = "a", held_out: str = "b", **options) -> PreparedData:
    return adopt(theirs / train, theirs / held_out, theirs.parent / out, **{"tokenizer": "bytes", **options})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_documents(data: PreparedData) -> None:
    data.verify()
    for part, documents in ((data.train, TRAIN), (data.held_out, HELD_OUT)):
        assert [part.document(i).tolist() for i in range(part.n_documents)] == documents


def test_adopted_shards_hold_the_same_tokens_and_true_counts_and_take_no_second_space(theirs, tmp_path):
    before, seen = contents(theirs), {}
    data = adopted(theirs, progress=lambda stage, *n_bytes: seen.update({stage: n_bytes}))
    check_documents(data)
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
    assert adopted(theirs, "again").manifest == data.manifest
    assert adopted(theirs, "other", "b", "a").manifest.corpus.fingerprint != data.manifest.corpus.fingerprint
    shutil.rmtree(theirs)
    PreparedData.open(tmp_path / "out").verify()


def test_a_relative_symbolic_link_is_followed(theirs, tmp_path):
    for ending in (".bin", ".idx"):
        os.symlink(f"theirs/a{ending}", tmp_path / f"link{ending}")
    data = adopted(theirs, "elsewhere/out", "../link")
    check_documents(data)
    assert not (data.path / "train.bin").is_symlink()


def test_files_are_copied_where_they_cannot_be_linked_and_a_full_disk_leaves_nothing(theirs, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    seen = []
    data = adopted(theirs, progress=lambda stage, *_: seen.append(stage))
    check_documents(data)
    assert not (data.path / "train.bin").samefile(theirs / "a.bin")
    assert f"copying {theirs}/b.idx" in seen
    monkeypatch.setattr("shutil.copyfile", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(UserError, match=r"train\.bin: cannot be copied from .*a\.bin \(No space left on device\)"):
        adopted(theirs, "full")
    assert sorted(os.listdir(tmp_path)) == ["out", "theirs"]


@pytest.mark.parametrize(("name", "letter", "token"), [("a", "H", 257), ("a", "h", -1), ("b", "q", 2**40)])
def test_a_token_outside_the_vocabulary_is_refused_with_file_place_and_value(
    theirs, tmp_path, monkeypatch, name, letter, token
):
    """In any of the parts that are checked at a time."""
    monkeypatch.setattr("widthwise.data.prepared.TOKENS_AT_ONCE", 5)
    write_megatron(theirs / name, [[5, 6, EOS], [0] * 10 + [token, 500, EOS]], letter)
    with pytest.raises(UserError) as refused:
        adopted(theirs)
    assert str(refused.value) == f"{theirs / name}.bin: token 13 is {token}, outside its vocabulary: 0 to 256"
    assert os.listdir(tmp_path) == ["theirs"]


def test_what_cannot_be_adopted_is_refused_by_name_and_leaves_nothing(theirs, tmp_path):
    """Damaged shards are tested in `test_shards.py`."""
    for name, documents in (("none", []), ("empty", [[], []])):
        write_megatron(theirs / name, documents)
    (theirs / "folder").mkdir()
    before = sorted(theirs.iterdir())
    for options, message in (
        ({"held_out": "none"}, r"none\.bin: holds no tokens"),
        ({"held_out": "empty"}, r"empty\.bin: holds no tokens"),
        ({"held_out": "c"}, r"c\.idx: cannot be read"),
        ({"held_out": "../theirs/a"}, "is both train and held-out"),
        ({"train": "."}, "b: is both train and held-out"),
        ({"train": "folder"}, r"folder: holds no shards; expected files NAME\.bin and NAME\.idx"),
        ({"tokenizer": "bpe-300"}, r"'bpe-300': is trained on a corpus; name bytes or"),
        ({"tokenizer": "gpt"}, "allowed: bytes"),
        ({"tokenizer": "missing.json"}, r"missing\.json: cannot be read"),
    ):
        with pytest.raises(UserError, match=message):
            adopted(theirs, **options)
    assert (os.listdir(tmp_path), sorted(theirs.iterdir())) == (["theirs"], before)


def test_a_folder_of_shards_is_joined_in_the_order_of_their_names(theirs):
    (theirs / "parts").mkdir()
    for number, documents in enumerate((TRAIN[:3], TRAIN[3:4], TRAIN[4:])):
        write_megatron(theirs / f"parts/0{number}_tokens", documents, "iHq"[number])
    data = adopted(theirs, train="parts")
    check_documents(data)
    assert data.manifest.splits == adopted(theirs, out="alone").manifest.splits
