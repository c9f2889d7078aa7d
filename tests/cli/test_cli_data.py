import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from widthwise.cli.data import data_app
from widthwise.config_io import UserError
from widthwise.data.prepared import PreparedData


def run(*arguments: object):
    return run_verb("prepare", *arguments)


def run_verb(*arguments: object):
    return CliRunner().invoke(data_app, [*map(str, arguments)])


def test_json_is_the_manifest_and_nothing_else(tmp_path):
    result = run("synthetic", "--out", tmp_path / "out", "--tokenizer", "bpe-300", "--json")
    assert result.exit_code == 0
    manifest = PreparedData.open(tmp_path / "out").manifest
    assert json.loads(result.stdout) == json.loads(manifest.model_dump_json())
    assert "training the tokenizer" in result.stderr


def test_table_shows_what_was_prepared(tmp_path):
    result = run("synthetic", "--out", tmp_path / "out", "--tokenizer", "bytes", "--held-out", "0.2")
    splits = PreparedData.open(tmp_path / "out").manifest.splits
    for split in (splits.train, splits.held_out):
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


@pytest.mark.parametrize("more", [(), ("--workers", "2")])
def test_a_held_out_book_is_validated_on_and_listed(tmp_path, more):
    (tmp_path / "books").mkdir()
    for number in range(9):
        (tmp_path / f"books/{number}.txt").write_text(f"book {number}" * 10)
    (tmp_path / "new.txt").write_text("unseen")
    kept = ("--held-out-from", tmp_path / "books/3.txt", "--held-out-from", tmp_path / "new.txt")
    result = run(tmp_path / "books", "--out", tmp_path / "out", "--tokenizer", "bytes", *kept, *more)
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


def test_a_fraction_and_a_held_out_source_together_are_refused(tmp_path):
    result = run("synthetic", "--out", tmp_path / "out", "--held-out", "0.1", "--held-out-from", tmp_path)
    assert "--held-out: got 0.1 beside --held-out-from; give one of them" in str(result.exception)


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


def test_an_empty_split_names_the_options(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    result = run(tmp_path / "a.txt", "--out", tmp_path / "out", "--held-out", "0.000001", "--tokenizer", "bytes")
    assert "(on the command line --held-out), or cut the text into more documents (--document-bytes)" in str(
        result.exception
    )


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


def test_workers_and_processes_together_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    result = run(tmp_path / "a.txt", "--out", tmp_path / "out", "--workers", "2", "--processes", "2")
    assert "processes: got 2 beside workers; give one of them" in str(result.exception)


def test_a_mistake_is_a_user_error(tmp_path):
    result = run(tmp_path / "missing.txt", "--out", tmp_path / "out")
    assert isinstance(result.exception, UserError)
    assert "no such file" in str(result.exception)


def test_adopt_makes_a_folder_of_existing_shards(tmp_path):
    run("synthetic", "--out", tmp_path / "made", "--tokenizer", "bytes")
    made = ("--train", tmp_path / "made/train", "--held-out", tmp_path / "made/held_out", "--tokenizer", "bytes")
    table = run_verb("adopt", *made, "--out", tmp_path / "out")
    splits = PreparedData.open(tmp_path / "out").manifest.splits
    assert splits == PreparedData.open(tmp_path / "made").manifest.splits
    assert f"{splits.train.n_tokens:,}" in table.stdout
    printed = run_verb("adopt", *made, "--out", tmp_path / "again", "--json").stdout
    assert json.loads(printed) == json.loads((tmp_path / "again/manifest.json").read_text())


def test_adopt_names_what_is_missing_from_the_command(tmp_path):
    result = run_verb("adopt", "--train", "x", "--out", tmp_path / "out", "--tokenizer", "bytes")
    assert result.exit_code == 2
    assert "--held-out" in result.stderr


def test_verify_reads_a_folder_and_names_what_is_damaged(tmp_path):
    run("synthetic", "--out", tmp_path / "out", "--tokenizer", "bytes")
    checked = run_verb("verify", tmp_path / "out")
    assert checked.exit_code == 0
    assert f"{PreparedData.open(tmp_path / 'out').train.n_tokens:,}" in checked.stdout
    content = bytearray((tmp_path / "out/held_out.bin").read_bytes())
    content[7] ^= 1
    (tmp_path / "out/held_out.bin").write_bytes(content)
    assert "held_out.bin: its checksum differs" in str(run_verb("verify", tmp_path / "out").exception)


@pytest.mark.parametrize("verb", ["prepare", "adopt", "verify", "list"])
def test_help_lists_the_verb_and_shows_an_example(verb):
    assert verb in run_verb("--help").stdout
    assert f"widthwise data {verb}" in run_verb(verb, "--help").stdout


@pytest.mark.parametrize("module", ["torch", "numpy", "tokenizers", "rich.table"])
def test_importing_the_command_imports_nothing_heavy(module):
    code = f"import sys, widthwise.cli.data; print({module!r} in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"
