"""A prepared folder is opened only if it is whole, and its manifest vouches for every file in it and none outside."""

import shutil
from pathlib import Path

import pytest
from source_folders import in_manifest

from widthwise.data.prepared import PreparedData
from widthwise.data.shards import write_tokens
from widthwise.files import FileRecord
from widthwise.mistakes import UserError


@pytest.fixture
def folder(original, tmp_path) -> Path:
    return shutil.copytree(original, tmp_path / "copy")


def test_a_copied_folder_is_complete_in_itself_and_verify_tells_how_far_it_is(folder):
    data, seen = PreparedData.open(folder), []
    data.verify(lambda *report: seen.append(report))
    assert data.tokenizer.spec == data.manifest.tokenizer.spec == "bytes"
    assert data.train.n_documents == data.manifest.splits.train.n_documents
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


def cut(folder: Path) -> None:
    (folder / "train.bin").write_bytes((folder / "train.bin").read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "its preparation never finished"),
        (empty, r"train\.bin: holds no tokens; prepare the text again"),
        (cut, r"train\.bin: has \d+ bytes; its manifest promises"),
        (lambda folder: (folder / "held_out.idx").unlink(), r"held_out\.idx: cannot be read"),
        (in_manifest(lambda said: said["splits"]["train"].update(n_tokens=7)), r"train: holds \(documents, tokens\)"),
        (in_manifest(lambda said: said.update(format_version=2)), "has format version 2; this program reads 1"),
        (in_manifest(lambda said: said.update(corpus={})), r"manifest\.json: corpus\.name: is required"),
        (lambda folder: (folder / "manifest.json").write_text("["), r"manifest\.json: is not valid JSON"),
        (in_manifest(lambda said: said["files"].pop("train.bin")), r"files: lacks train\.bin"),
        (in_manifest(lambda said: said["files"].pop("held_out.idx")), r"files: lacks held_out\.idx"),
        (in_manifest(lambda said: said["files"].pop("tokenizer_spec.json")), "files: lacks tokenizer_spec"),
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
