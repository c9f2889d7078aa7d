import json
import re
import shutil

import pytest

from widthwise.config_io import UserError
from widthwise.data.prepared import PreparedData
from widthwise.files import FileRecord


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy")


def edit_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_copied_folder_is_complete_in_itself(folder):
    data = PreparedData.open(folder)
    data.verify()
    assert data.tokenizer.spec == data.manifest.tokenizer.spec == "bytes"
    assert data.train.n_documents == data.manifest.splits.train.n_documents


def test_verify_tells_how_far_it_is(folder):
    data, seen = PreparedData.open(folder), []
    data.verify(lambda *report: seen.append(report))
    n_bytes = sum(record.n_bytes for record in data.manifest.files.values())
    n_token_bytes = sum((folder / name).stat().st_size for name in ("train.bin", "held_out.bin"))
    assert ("checking the data", n_bytes, n_bytes) in seen
    assert seen[-1] == ("checking the tokens", n_token_bytes, n_token_bytes)


def test_a_folder_without_manifest_is_refused(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="its preparation never finished"):
        PreparedData.open(folder)


def test_a_truncated_file_is_refused_on_opening(folder):
    path = folder / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"train\.bin: has \d+ bytes; its manifest promises"):
        PreparedData.open(folder)


def test_a_missing_file_is_refused_on_opening(folder):
    (folder / "held_out.idx").unlink()
    with pytest.raises(UserError, match=r"held_out\.idx: cannot be read"):
        PreparedData.open(folder)


def test_a_changed_byte_is_found_by_verify(folder):
    path = folder / "train.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    data = PreparedData.open(folder)
    with pytest.raises(UserError, match=r"train\.bin: its checksum differs"):
        data.verify()


def test_a_token_outside_the_vocabulary_is_found_by_verify(folder):
    content = bytearray((folder / "train.bin").read_bytes())
    content[1001] = 0xFF
    (folder / "train.bin").write_bytes(content)
    record = FileRecord.of(folder / "train.bin").model_dump()
    edit_manifest(folder, lambda manifest: manifest["files"].update({"train.bin": record}))
    with pytest.raises(UserError, match=r"train\.bin: token 500 is \d+, outside its vocabulary: 0 to 256"):
        PreparedData.open(folder).verify()


def test_counts_that_contradict_the_manifest_are_refused(folder):
    edit_manifest(folder, lambda manifest: manifest["splits"]["train"].update(n_tokens=7))
    with pytest.raises(UserError, match=r"train: holds \(documents, tokens\)"):
        PreparedData.open(folder)


def test_another_tokenizer_than_at_preparation_is_refused(folder):
    edit_manifest(folder, lambda manifest: manifest["tokenizer"].update(id="0" * 64))
    with pytest.raises(UserError, match="is not the tokenizer the data was made with"):
        _ = PreparedData.open(folder).tokenizer


def test_another_format_version_and_a_broken_manifest_are_refused(folder):
    edit_manifest(folder, lambda manifest: manifest.update(format_version=2))
    with pytest.raises(UserError, match="has format version 2; this program reads 1"):
        PreparedData.open(folder)
    edit_manifest(folder, lambda manifest: manifest.update(format_version=1, corpus={}))
    with pytest.raises(UserError, match=r"manifest\.json: corpus\.name: is required"):
        PreparedData.open(folder)
    (folder / "manifest.json").write_text("[")
    with pytest.raises(UserError, match=r"manifest\.json: is not valid JSON"):
        PreparedData.open(folder)


@pytest.mark.parametrize("name", ["train.bin", "held_out.idx", "tokenizer_spec.json"])
def test_a_manifest_vouches_for_every_file_that_is_read(folder, name):
    edit_manifest(folder, lambda manifest: manifest["files"].pop(name))
    with pytest.raises(UserError, match=rf"manifest\.json: files: says nothing of {re.escape(name)}"):
        PreparedData.open(folder)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname"])
def test_a_manifest_names_nothing_outside_its_folder(folder, name):
    def lead_out(manifest):
        manifest["files"][name] = manifest["files"]["train.bin"]

    edit_manifest(folder, lead_out)
    with pytest.raises(UserError, match=rf"got '{name}'; allowed: a path inside the folder"):
        PreparedData.open(folder)
