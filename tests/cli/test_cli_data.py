"""`widthwise data` from argument to output."""

import json

import pytest
from tokenizers import Tokenizer, normalizers

from widthwise.data.prepared import PreparedData


@pytest.fixture
def books(tmp_path):
    """A folder of nine texts."""
    (tmp_path / "books").mkdir()
    for number in range(9):
        (tmp_path / f"books/{number}.txt").write_text(f"book {number}" * 10)
    return tmp_path / "books"


def test_table_and_json_show_the_manifest(tmp_path, succeeds):
    asked = ("data", "prepare", "synthetic", "--tokenizer", "bpe-300", "--held-out", "0.2", "--out")
    shown, said = succeeds(*asked, tmp_path / "out", "--json")
    manifest = PreparedData.open(tmp_path / "out").manifest
    assert json.loads(shown) == json.loads(manifest.model_dump_json())
    assert "training the tokenizer" in said
    table, _ = succeeds(*asked, tmp_path / "again")
    for split in (manifest.splits.train, manifest.splits.held_out):
        assert f"{split.n_tokens:,}" in table
        assert f"{split.n_bytes / split.n_tokens:.3f}" in table


def test_a_tokenizer_that_changes_the_text_is_noted(tmp_path, books, succeeds):
    prepare = ("data", "prepare", books, "--held-out-from", books / "3.txt", "--out")
    said, _ = succeeds(*prepare, tmp_path / "same", "--tokenizer", "bpe-262")
    assert "changes the text" not in said
    tokenizer = Tokenizer.from_file(str(tmp_path / "same/tokenizer.json"))
    tokenizer.normalizer = normalizers.Replace("book", "b")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    said, _ = succeeds(*prepare, tmp_path / "other", "--tokenizer", tmp_path / "tokenizer.json")
    assert "held-out tokens decode to 30 bytes, the text has 60" in " ".join(said.split())


def test_every_option_reaches_the_preparation(tmp_path, succeeds):
    rows = [json.dumps({"body": f"line {index}\n" * 20}) for index in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    asked = ("data", "prepare", tmp_path / "rows.jsonl", "--tokenizer", "bytes", "--field", "body", "--held-out", "0.3")
    changes = {"all": (), "cut": ("--document-bytes", "50"), "one": ("--max-tokens", "1234")}
    changes["two"] = (*changes["one"], "--workers", "2")
    for name, options in changes.items():
        succeeds(*asked, "--out", tmp_path / name, *options)
    found = {name: PreparedData.open(tmp_path / name) for name in changes}
    assert found["all"].manifest.corpus.n_documents == 60
    assert found["cut"].manifest.corpus.n_documents > 120
    assert 1234 - 161 < found["one"].train.n_tokens <= 1234
    assert found["one"].manifest == found["two"].manifest


def test_a_held_out_book_is_validated_on_and_listed(tmp_path, books, succeeds, answer, refused):
    (tmp_path / "new.txt").write_text("unseen")
    kept = ("--held-out-from", books / "3.txt", "--held-out-from", tmp_path / "new.txt")
    said, _ = succeeds("data", "prepare", books, "--out", tmp_path / "out", "--tokenizer", "bytes", *kept)
    assert "equal documents dropped from training: 1" in said
    listed, _ = succeeds("data", "list", tmp_path / "out")
    assert "documents held out: 2, in" in listed
    assert [name in listed for name in ("3.txt", "new.txt", "4.txt")] == [True, True, False]
    of_train = ("data", "list", tmp_path / "out", "--split", "train")
    assert answer(*of_train) == [{"name": f"{number}.txt", "n_tokens": 61} for number in range(9) if number != 3]
    few, _ = succeeds(*of_train, "--n", "3")
    assert "documents to train on: the first 3 of 8, in" in few
    assert "4.txt" not in few
    assert refused("data", "list", tmp_path / "out", "--split", "val") == "--split: got 'val'; allowed: held-out, train"


@pytest.fixture
def prepared(tmp_path, succeeds):
    """A folder of prepared data."""
    succeeds("data", "prepare", "synthetic", "--out", tmp_path / "made", "--tokenizer", "bytes")
    return tmp_path / "made"


def test_adopt_makes_a_folder_of_existing_shards(tmp_path, prepared, succeeds, answer):
    shards = ("--train", prepared / "train", "--held-out", prepared / "held_out", "--tokenizer", "bytes")
    table, _ = succeeds("data", "adopt", *shards, "--out", tmp_path / "out")
    splits = PreparedData.open(tmp_path / "out").manifest.splits
    assert splits == PreparedData.open(prepared).manifest.splits
    assert f"{splits.train.n_tokens:,}" in table
    found = answer("data", "adopt", *shards, "--out", tmp_path / "again")
    manifest = json.loads((tmp_path / "again/manifest.json").read_text())
    assert {**found, "checksums": manifest["checksums"]} == manifest


def test_verify_reads_a_folder_and_names_what_is_damaged(prepared, succeeds, refused):
    assert f"{PreparedData.open(prepared).train.n_tokens:,}" in succeeds("data", "verify", prepared)[0]
    content = bytearray((prepared / "held_out.bin").read_bytes())
    content[7] ^= 1
    (prepared / "held_out.bin").write_bytes(content)
    assert "held_out.bin: its checksum differs" in refused("data", "verify", prepared)
