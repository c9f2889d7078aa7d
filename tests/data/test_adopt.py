import errno
import json
import os
import struct
from itertools import accumulate, chain
from pathlib import Path

import pytest

from widthwise.config_io import UserError, parse
from widthwise.data.adopt import adopt
from widthwise.data.config import DataConfig, open_data
from widthwise.data.corpus import named_corpus
from widthwise.data.prepare import prepare
from widthwise.data.prepared import PreparedData
from widthwise.recipe.recipe import Recipe
from widthwise.runs.train import train

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
def shards(tmp_path) -> tuple[Path, Path]:
    """Prefixes of a corpus in a folder of its own."""
    (tmp_path / "theirs").mkdir()
    return write_megatron(tmp_path / "theirs/a", TRAIN), write_megatron(tmp_path / "theirs/b", HELD_OUT, "i")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def documents_of(data: PreparedData) -> list[list[list[int]]]:
    return [[part.document(i).tolist() for i in range(part.n_documents)] for part in (data.train, data.held_out)]


def test_adopted_shards_hold_the_same_tokens_and_true_counts(shards, tmp_path):
    data = adopt(*shards, tmp_path / "out", tokenizer="bytes")
    data.verify()
    assert documents_of(data) == [TRAIN, HELD_OUT]
    splits = data.manifest.splits
    for documents, record in ((TRAIN, splits.train), (HELD_OUT, splits.held_out)):
        n_tokens = sum(len(document) for document in documents)
        assert (record.n_documents, record.n_tokens) == (len(documents), n_tokens)
        assert record.n_bytes == record.n_token_bytes == n_tokens - len(documents)  # all but the end-of-text tokens
    assert data.manifest.corpus.n_documents == len(TRAIN) + len(HELD_OUT)
    assert sorted(os.listdir(tmp_path)) == ["out", "theirs"]


@pytest.mark.parametrize("size", [301, 353])
def test_an_adopted_preparation_is_the_preparation(tmp_path, size):
    made = prepare(named_corpus("synthetic"), tmp_path / "made", tokenizer=f"bpe-{size}", held_out=0.2)
    spec = f"{tmp_path}/made/tokenizer.json#<|endoftext|>"
    data = adopt(tmp_path / "made/train", tmp_path / "made/held_out", tmp_path / "out", tokenizer=spec)
    data.verify()
    assert data.manifest.splits == made.manifest.splits
    assert data.manifest.files == made.manifest.trained_on
    assert data.manifest.corpus.n_bytes == made.manifest.corpus.n_bytes
    assert data.tokenizer.id == made.tokenizer.id
    assert data.tokenizer.spec == spec


def test_adopted_shards_are_trained_on(shards, tmp_path):
    adopt(*shards, tmp_path / "out", tokenizer="bytes")
    recipe = {
        "model": {"vocab_size": 257, "d_model": 16, "n_layers": 2, "attention": {"head_dim": 8}},
        "seq_len": 11,
        "data": {"path": str(tmp_path / "out")},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "schedule": {"kind": "cosine", "warmup_steps": 1},
        "train": {"steps": 2, "batch_size": 3, "precision": "fp32"},
    }
    result = train(parse(Recipe, recipe), tmp_path / "run")
    assert result["steps"] == 2
    assert 0 < result["val_loss"] < 8
    assert result["val_bits_per_byte"] > 0


def test_originals_stay_as_they_are_and_take_no_second_space(shards, tmp_path):
    before = contents(tmp_path / "theirs")
    adopt(*shards, tmp_path / "out", tokenizer="bytes")
    assert contents(tmp_path / "theirs") == before
    assert (tmp_path / "out/train.bin").samefile(tmp_path / "theirs/a.bin")
    assert (tmp_path / "out/held_out.idx").samefile(tmp_path / "theirs/b.idx")
    for path in (tmp_path / "theirs").iterdir():
        path.unlink()
    PreparedData.open(tmp_path / "out").verify()


def test_a_relative_symbolic_link_is_followed(shards, tmp_path):
    for ending in (".bin", ".idx"):
        os.symlink(f"theirs/a{ending}", tmp_path / f"link{ending}")
    data = adopt(tmp_path / "link", shards[1], tmp_path / "elsewhere" / "out", tokenizer="bytes")
    assert documents_of(data) == [TRAIN, HELD_OUT]
    assert not (data.path / "train.bin").is_symlink()


def refuse_links(source, target):
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def test_files_are_copied_where_they_cannot_be_linked(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", refuse_links)
    seen = []
    data = adopt(*shards, tmp_path / "out", tokenizer="bytes", progress=lambda stage, *_: seen.append(stage))
    data.verify()
    assert documents_of(data) == [TRAIN, HELD_OUT]
    assert not (tmp_path / "out/train.bin").samefile(tmp_path / "theirs/a.bin")
    assert f"copying {tmp_path}/theirs/b.idx" in seen


def test_a_copy_that_fails_is_refused_and_leaves_nothing(shards, tmp_path, monkeypatch):
    def fill_disk(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", refuse_links)
    monkeypatch.setattr("shutil.copyfileobj", fill_disk)
    before = contents(tmp_path / "theirs")
    with pytest.raises(UserError, match=r"train\.bin: cannot be copied from .*a\.bin \(No space left on device\)"):
        adopt(*shards, tmp_path / "out", tokenizer="bytes")
    assert os.listdir(tmp_path) == ["theirs"]
    assert contents(tmp_path / "theirs") == before


@pytest.mark.parametrize(("letter", "token"), [("H", 257), ("i", 2**31 - 1), ("h", -1), ("q", 2**40)])
@pytest.mark.parametrize("split", [0, 1])
def test_a_token_outside_the_vocabulary_is_refused_with_file_place_and_value(shards, tmp_path, letter, token, split):
    write_megatron(shards[split], [[5, 6, EOS], [7, token, 500, EOS]], letter)
    before = contents(tmp_path / "theirs")
    with pytest.raises(UserError) as refused:
        adopt(*shards, tmp_path / "out", tokenizer="bytes")
    assert str(refused.value) == f"{shards[split]}.bin: token 4 is {token}, outside its vocabulary: 0 to 256"
    assert os.listdir(tmp_path) == ["theirs"]
    assert contents(tmp_path / "theirs") == before


def test_a_token_outside_the_vocabulary_is_found_in_any_part(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("widthwise.data.prepared.CHECKED_TOKENS_AT_ONCE", 5)
    assert adopt(*shards, tmp_path / "good", tokenizer="bytes").manifest.splits.train.n_bytes == sum(
        len(document) - 1 for document in TRAIN
    )
    write_megatron(shards[0], [[0] * 13 + [300]])
    with pytest.raises(UserError, match="token 13 is 300"):
        adopt(*shards, tmp_path / "bad", tokenizer="bytes")


DAMAGED = {
    "bin cut short": (".bin", lambda content: content[:-1], r"\.bin: has \d+ bytes where its index asks for"),
    "idx cut short": (".idx", lambda content: content[:-1], r"\.idx: has \d+ bytes where its header asks for"),
    "not an index": (".idx", lambda content: b"\0" * len(content), r"\.idx: is not a Megatron-LM index"),
    "float tokens": (".idx", lambda content: content[:17] + b"\x06" + content[18:], r"\.idx: has version 1, dtype"),
}


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("split", [0, 1])
def test_damaged_shards_are_refused_by_name(shards, tmp_path, kind, split):
    ending, change, message = DAMAGED[kind]
    path = Path(f"{shards[split]}{ending}")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=message) as refused:
        adopt(*shards, tmp_path / "out", tokenizer="bytes")
    assert str(refused.value).startswith(str(path))
    assert os.listdir(tmp_path) == ["theirs"]


@pytest.mark.parametrize("documents", [[], [[], []]], ids=["no documents", "no tokens"])
def test_empty_shards_are_refused_by_name(shards, tmp_path, documents):
    write_megatron(shards[1], documents)
    with pytest.raises(UserError, match=r"b\.bin: holds no tokens"):
        adopt(*shards, tmp_path / "out", tokenizer="bytes")


def test_missing_shards_and_the_same_twice_are_refused(shards, tmp_path):
    with pytest.raises(UserError, match=r"c\.idx: cannot be read"):
        adopt(shards[0], tmp_path / "theirs/c", tmp_path / "out", tokenizer="bytes")
    with pytest.raises(UserError, match="is given as train and as held-out"):
        adopt(shards[0], tmp_path / "theirs/../theirs/a", tmp_path / "out", tokenizer="bytes")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bpe-300", r"tokenizer 'bpe-300': would be trained anew; name the tokenizer\.json that made the tokens"),
        ("gpt", "allowed: bytes"),
        ("missing.json", r"missing\.json: cannot be read"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_refused(shards, tmp_path, spec, message):
    with pytest.raises(UserError, match=message):
        adopt(*shards, tmp_path / "out", tokenizer=spec)
    assert os.listdir(tmp_path) == ["theirs"]


def test_a_folder_in_use_is_refused_and_kept(shards, tmp_path):
    before = contents(tmp_path / "theirs")
    with pytest.raises(UserError, match="in use by other files"):
        adopt(*shards, tmp_path / "theirs", tokenizer="bytes")
    assert contents(tmp_path / "theirs") == before
    adopt(*shards, tmp_path / "out", tokenizer="bytes")
    with pytest.raises(UserError, match="already holds a prepared corpus"):
        adopt(*shards, tmp_path / "out", tokenizer="bytes")


def test_what_a_killed_adoption_left_is_replaced_and_the_originals_survive(shards, tmp_path):
    before = contents(tmp_path / "theirs")
    (tmp_path / ".out.partial").mkdir()
    os.link(f"{shards[0]}.bin", tmp_path / ".out.partial/train.bin")
    adopt(*shards, tmp_path / "out", tokenizer="bytes").verify()
    assert contents(tmp_path / "theirs") == before
    assert sorted(os.listdir(tmp_path)) == ["out", "theirs"]


def test_fingerprints_tell_adopted_corpora_apart(shards, tmp_path):
    first = adopt(*shards, tmp_path / "first", tokenizer="bytes").manifest
    again = adopt(*shards, tmp_path / "again", tokenizer="bytes").manifest
    other = adopt(*reversed(shards), tmp_path / "other", tokenizer="bytes").manifest
    assert again == first
    assert other.corpus.fingerprint != first.corpus.fingerprint


def test_progress_reports_every_byte_of_both_shards(shards, tmp_path):
    seen: dict[str, tuple[int, int | None]] = {}
    adopt(*shards, tmp_path / "out", tokenizer="bytes", progress=lambda stage, *bytes_: seen.update({stage: bytes_}))
    for prefix in shards:
        n_bytes = Path(f"{prefix}.bin").stat().st_size
        assert seen[f"checking {prefix}"] == (n_bytes, n_bytes)


def test_a_recipe_may_not_name_a_fraction_for_an_adopted_folder(shards, tmp_path):
    out = str(tmp_path / "out")
    adopt(*shards, out, tokenizer="bytes")
    assert json.loads((tmp_path / "out/manifest.json").read_text())["held_out_fraction"] is None
    assert open_data(parse(DataConfig, {"path": out, "tokenizer": "bytes"})).train.n_documents == len(TRAIN)
    with pytest.raises(UserError, match=r"data\.held_out: got 0\.1, but .* was adopted without one"):
        open_data(parse(DataConfig, {"path": out, "held_out": 0.1}))
