"""`widthwise data` from argument to output."""

import json

from typer.testing import CliRunner

from widthwise.cli.data import data_app
from widthwise.data.prepared import PreparedData


def run(*arguments: object):
    return run_verb("prepare", *arguments)


def run_verb(*arguments: object):
    return CliRunner().invoke(data_app, [*map(str, arguments)])


def test_table_and_json_show_the_manifest(tmp_path):
    result = run("synthetic", "--out", tmp_path / "out", "--tokenizer", "bpe-300", "--held-out", "0.2", "--json")
    manifest = PreparedData.open(tmp_path / "out").manifest
    assert json.loads(result.stdout) == json.loads(manifest.model_dump_json())
    assert "training the tokenizer" in result.stderr
    result = run("synthetic", "--out", tmp_path / "again", "--tokenizer", "bpe-300", "--held-out", "0.2")
    for split in (manifest.splits.train, manifest.splits.held_out):
        assert f"{split.n_tokens:,}" in result.stdout
        assert f"{split.n_bytes / split.n_tokens:.3f}" in result.stdout


def test_field_and_document_bytes_reach_the_reader(tmp_path):
    rows = [json.dumps({"body": f"line {index}\n" * 20}) for index in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    options = ("--tokenizer", "bytes", "--field", "body", "--held-out", "0.3")
    run(tmp_path / "rows.jsonl", "--out", tmp_path / "out", *options)
    run(tmp_path / "rows.jsonl", "--out", tmp_path / "cut", *options, "--document-bytes", "50")
    assert PreparedData.open(tmp_path / "out").manifest.corpus.n_documents == 60
    assert PreparedData.open(tmp_path / "cut").manifest.corpus.n_documents > 120


def test_max_tokens_and_workers_reach_the_preparation(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(30):
        (tmp_path / f"texts/{number}.txt").write_text(f"text {number:03d}" * 10)
    options = ("--tokenizer", "bytes", "--held-out", "0.3", "--max-tokens", "1234")
    for out, more in (("one", ()), ("two", ("--workers", "2"))):
        assert run(tmp_path / "texts", "--out", tmp_path / out, *options, *more).exit_code == 0
    one, two = PreparedData.open(tmp_path / "one"), PreparedData.open(tmp_path / "two")
    assert one.manifest == two.manifest
    assert 1234 - 81 < one.train.n_tokens <= 1234


def test_a_held_out_book_is_validated_on_and_listed(tmp_path):
    (tmp_path / "books").mkdir()
    for number in range(9):
        (tmp_path / f"books/{number}.txt").write_text(f"book {number}" * 10)
    (tmp_path / "new.txt").write_text("unseen")
    kept = ("--held-out-from", tmp_path / "books/3.txt", "--held-out-from", tmp_path / "new.txt")
    result = run(tmp_path / "books", "--out", tmp_path / "out", "--tokenizer", "bytes", *kept)
    assert result.exit_code == 0, result.exception
    assert "documents left out of training as equal to one: 1" in result.stdout
    listed = run_verb("list", tmp_path / "out")
    assert "documents held out: 2, in" in listed.stdout
    assert [name in listed.stdout for name in ("3.txt", "new.txt", "4.txt")] == [True, True, False]
    printed = json.loads(run_verb("list", tmp_path / "out", "--split", "train", "--json").stdout)
    assert printed == [{"name": f"{number}.txt", "n_tokens": 61} for number in range(9) if number != 3]
    few = run_verb("list", tmp_path / "out", "--split", "train", "--n", "3").stdout
    assert "documents to train on: the first 3 of 8, in" in few
    assert "4.txt" not in few


def test_a_path_is_no_fraction_and_a_name_no_path(tmp_path):
    (tmp_path / "books").mkdir()
    for n in range(2):
        (tmp_path / f"books/{n}.txt").write_text(f"Book {n}.\n" * 9)
    result = run(tmp_path / "books", "--out", tmp_path / "out", "--held-out", "books/1.txt")
    assert str(result.exception).startswith(
        "--held-out: got 'books/1.txt'; expected a fraction between 0 and 1; `--held-"
    )
    for source in ("books", "books/1.txt"):
        for name in ("1.txt", "1.txt#3"):
            result = run(tmp_path / source, "--out", tmp_path / "out", "--held-out-from", name)
            expected = f"--held-out-from: got {name!r}; expected a path; did you mean '{tmp_path}/books/1.txt'?"
            assert str(result.exception) == expected
    result = run(tmp_path / "books", "--out", tmp_path / "out", "--held-out-from", "3.txt")
    assert "3.txt: no such file or folder" in str(result.exception)


def test_both_spellings_of_a_split_are_read_and_others_refused_in_one_line(tmp_path):
    run("synthetic", "--out", tmp_path / "out", "--tokenizer", "bytes")
    usual, *others = (
        run_verb("list", tmp_path / "out", *options, "--json").stdout
        for options in ((), ("--split", "held-out"), ("--split", "held_out"))
    )
    assert json.loads(usual)
    assert others == [usual, usual]
    result = run_verb("list", tmp_path / "out", "--split", "val")
    assert str(result.exception) == "--split: got 'val'; allowed: held-out, train"


def test_adopt_makes_a_folder_of_existing_shards(tmp_path):
    run("synthetic", "--out", tmp_path / "made", "--tokenizer", "bytes")
    made = ("--train", tmp_path / "made/train", "--held-out", tmp_path / "made/held_out", "--tokenizer", "bytes")
    table = run_verb("adopt", *made, "--out", tmp_path / "out")
    splits = PreparedData.open(tmp_path / "out").manifest.splits
    assert splits == PreparedData.open(tmp_path / "made").manifest.splits
    assert f"{splits.train.n_tokens:,}" in table.stdout
    printed = run_verb("adopt", *made, "--out", tmp_path / "again", "--json").stdout
    assert json.loads(printed) == json.loads((tmp_path / "again/manifest.json").read_text())


def test_verify_reads_a_folder_and_names_what_is_damaged(tmp_path):
    run("synthetic", "--out", tmp_path / "out", "--tokenizer", "bytes")
    checked = run_verb("verify", tmp_path / "out")
    assert checked.exit_code == 0
    assert f"{PreparedData.open(tmp_path / 'out').train.n_tokens:,}" in checked.stdout
    content = bytearray((tmp_path / "out/held_out.bin").read_bytes())
    content[7] ^= 1
    (tmp_path / "out/held_out.bin").write_bytes(content)
    assert "held_out.bin: its checksum differs" in str(run_verb("verify", tmp_path / "out").exception)
