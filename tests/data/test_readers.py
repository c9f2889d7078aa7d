"""Texts are read from files of many formats, from named corpora and from data sets; errors name broken input."""

import gzip
import itertools
import json
import os
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from boxes import refusal
from hypothesis import example, given
from hypothesis import strategies as st

from widthwise.data import readers
from widthwise.data.corpus import Document
from widthwise.data.readers import _cut, read_documents
from widthwise.mistakes import UserError

TEXTS = ["first\r\n", "zwei — ", "", "\N{PILE OF POO}"]


def jsonl(texts: list[str], field: str = "text") -> bytes:
    return b"".join(json.dumps({field: text, "other": 1}).encode() + b"\n" for text in texts)


def texts_of(source, **options) -> list[str]:
    return [document.text for document in read_documents(source, **options)]


@pytest.mark.parametrize("ending", [".txt", ".md", ".PY", ".jsonl", ".json"])
@pytest.mark.parametrize("packed", ["", ".gz", ".zst", ".GZ"])
def test_text_is_one_document_and_json_lines_are_several_compressed_or_not_without_a_mark(tmp_path, ending, packed):
    texts = TEXTS if ending.startswith(".json") else ["x\r\né\ufeff"]
    content = "\ufeff".encode() + (jsonl(texts, "content") if texts is TEXTS else texts[0].encode())
    if packed:
        content = b"".join(compressed(packed[1:].lower(), part) for part in (content[:20], content[20:]))
    path = tmp_path / f"a{ending}{packed}"
    path.write_bytes(content)
    assert texts_of(path, field="content") == texts


def test_parquet_gives_its_text_column(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": TEXTS, "n": [1, 2, 3, 4]}), path, row_group_size=3)
    assert texts_of(path) == TEXTS
    assert refusal(texts_of, path, field="body") == f"{path}: has no column 'body'; --field may be: text, n"
    assert refusal(texts_of, path, field="n").startswith(f"{path}: row 1: field 'n' holds int")
    broken = pyarrow.array([b"ok", b"\xff"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": broken}), path)
    assert refusal(texts_of, path) == f"{path}: row 2: field 'text' is not UTF-8 text"


def test_a_folder_is_read_recursively_in_order_of_paths_and_what_is_not_read_is_named(tmp_path):
    left = ("picture.png", "more.png", "LICENSE", "settings.json", "table.csv.gz", "b.parquet.gz")
    for name in ("b.txt", "a/z.md", "a.TXT", ".hidden/x.txt", *left):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(jsonl(["row"])))
    with pytest.warns(UserWarning, match="files that are not read, by ending: .png .2.,") as warned:
        names = [document.name for document in read_documents(tmp_path)]
    assert names == ["a.TXT", "a/z.md", "b.txt", "c.json.gz:1"]
    assert all(
        name in str(warned[0].message) for name in ("LICENSE (1)", ".json (1)", ".csv.gz (1)", ".parquet.gz (1)")
    )


@example("line\n" * 40, 10)
@given(st.text(alphabet="ab\n é", max_size=80), st.integers(1, 30))
def test_cutting_loses_nothing_and_ends_parts_at_lines(text, document_bytes):
    parts = [part.text for part in _cut(Document("d", text), document_bytes)]
    assert "".join(parts) == text
    assert all(part.endswith("\n") for part in parts[:-1])
    longest_line = max((len(line.encode()) for line in text.splitlines(keepends=True)), default=0)
    assert all(len(part.encode()) < document_bytes + longest_line or part == text for part in parts)


BROKEN = {
    "not_utf8.txt": (b"ok\nok\n\xff", "line 3: is not UTF-8 text; save it as UTF-8, or leave it out"),
    "not_json.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2: is not valid JSON"),
    "not_utf8.jsonl": (b'{"text": "a"}\n\n{"text": "\xff"}\n', "line 3: is not UTF-8"),
    "list.jsonl": (b"[1]\n", "line 1: holds list, not an object"),
    "no_field.jsonl": (b'{"body": "a"}\n', "line 1: has no field 'text'; --field may be: body"),
    "not_text.jsonl": (b'{"text": null}\n', "line 1: field 'text' holds NoneType"),
    "surrogate.jsonl": (b'{"text": "\\ud800"}\n', "line 1: field 'text' holds half a surrogate pair"),
    "empty.jsonl": (b"\n\n", "holds no documents"),
    "plain.jsonl.gz": (jsonl(TEXTS), "cannot be read"),
    "plain.jsonl.zst": (jsonl(TEXTS), "cannot be read"),
    "plain.parquet": (jsonl(TEXTS), "cannot be read"),
    "picture.png": (b"", "unknown format; expected names ending in .txt"),
}


def compressed(ending, content):
    if ending == "gz":
        return gzip.compress(content)
    return pytest.importorskip("pyarrow").compress(content, codec="zstd", asbytes=True)


@pytest.mark.parametrize("name", BROKEN)
def test_bad_input_is_refused_naming_file_and_place(tmp_path, name):
    if name.endswith((".zst", ".parquet")):
        pytest.importorskip("pyarrow")
    content, message = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    said = refusal(texts_of, tmp_path / name)
    assert said.startswith(f"{tmp_path / name}: ")
    assert message in said


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_compressed_file_is_refused_wherever_it_is_cut_off(tmp_path, ending):
    """Except between two frames, where the rest is a complete file."""
    frames = [compressed(ending, jsonl([f"{index} {text}" for text in TEXTS])) for index in range(3)]
    ends = list(itertools.accumulate(map(len, frames)))
    path = tmp_path / f"a.jsonl.{ending}"
    for n_bytes in range(1, ends[-1] + 1):
        path.write_bytes(b"".join(frames)[:n_bytes])
        if n_bytes in ends:
            assert len(texts_of(path)) == len(TEXTS) * (ends.index(n_bytes) + 1)
        else:
            with pytest.raises(UserError, match=rf"a\.jsonl\.{ending}: cannot be read"):
                texts_of(path)


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_few_bytes_that_stand_for_a_long_line_are_refused(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(readers, "MAX_TEXT_BYTES", 1000)
    text = tmp_path / f"a.txt.{ending}"
    text.write_bytes(compressed(ending, b"a" * 1000))
    assert texts_of(text) == ["a" * 1000]
    text.write_bytes(compressed(ending, b"a" * 10**7))
    assert "holds more than 1,000 bytes of text" in refusal(texts_of, text)
    path = tmp_path / f"a.jsonl.{ending}"
    path.write_bytes(compressed(ending, jsonl(["a" * 900]) + jsonl(["a" * 10**7])))
    with pytest.raises(UserError, match=r"line 2: is longer than 1,000 bytes"):
        texts_of(path)


def test_sources_without_text_are_refused_and_a_pipe_is_not_waited_for(tmp_path):
    for source, message in (
        (tmp_path / "missing", "no such file or folder; corpora by name: python-stdlib"),
        (tmp_path, "holds no file that can be read"),
        ("", "source: got ''; expected a path"),
    ):
        assert message in refusal(texts_of, source)
    os.mkfifo(tmp_path / "a.txt")
    for source in (tmp_path, tmp_path / "a.txt"):
        assert "a.txt: is not a plain file" in refusal(texts_of, source)


def test_hugging_face_dataset_is_streamed_and_its_missing_extra_is_named(monkeypatch):
    load_dataset = Mock(side_effect=lambda *_, **options: iter([{"text": text} for text in TEXTS]))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    for name, arguments, split in (
        ("hf:user/name@config:validation", ("user/name", "config"), "validation"),
        ("hf:user/name", ("user/name", None), "train"),
    ):
        assert texts_of(name) == TEXTS
        load_dataset.assert_called_with(*arguments, split=split, streaming=True)
    load_dataset.side_effect = TypeError("Couldn't cast array of type struct<a: string> to int64")
    assert refusal(texts_of, "hf:folder").startswith("hf:folder: cannot be read (Couldn't cast")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"widthwise\[hf\]"):
        texts_of("hf:user/name")
