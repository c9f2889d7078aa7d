"""Token files of Megatron-LM and names of documents: written completely, read back, refused if damaged."""

import os
import resource
import struct
import tempfile
import tracemalloc
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from boxes import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.data.shards import ShardWriter, TokenFile, name_lines, names_path, read_names
from widthwise.mistakes import UserError

UINT16, INT32 = np.dtype("<u2"), np.dtype("<i4")


def write(prefix: Path, documents: list[list[int]], dtype: np.dtype = UINT16) -> TokenFile:
    with ShardWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(np.array(document, dtype=dtype), np.array([len(document)]))
    return TokenFile(prefix)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 65499), max_size=9), max_size=20),
    st.sampled_from([UINT16, INT32]),
    st.integers(1, 30),
)
def test_documents_come_back_as_written_alone_and_in_parts_of_bounded_size(documents, dtype, n_tokens):
    everything = list(chain.from_iterable(documents))
    middle = len(everything) // 2
    with tempfile.TemporaryDirectory() as folder:
        tokens = write(Path(folder) / "x", documents, dtype)
        assert [tokens.document(index).tolist() for index in range(tokens.n_documents)] == documents
        assert tokens.tokens(0, tokens.n_tokens).tolist() == everything
        assert tokens.tokens(middle, tokens.n_tokens).tolist() == everything[middle:]
        parts = [*tokens.parts(n_tokens)]
    assert [length for _, lengths in parts for length in lengths] == [len(document) for document in documents]
    assert [token for own, _ in parts for token in own] == everything
    assert all(len(own) == lengths.sum() < n_tokens + 9 for own, lengths in parts)


def test_files_are_megatron_byte_for_byte(tmp_path):
    write(tmp_path / "x", [[1, 2, 3], [], [65499]])
    assert (tmp_path / "x.bin").read_bytes() == struct.pack("<4H", 1, 2, 3, 65499)
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 3, 4)
    expected = header + struct.pack("<3i", 3, 0, 1) + struct.pack("<3q", 0, 6, 6) + struct.pack("<4q", 0, 1, 2, 3)
    assert (tmp_path / "x.idx").read_bytes() == expected


def test_an_index_is_read_only_if_its_header_and_size_agree(tmp_path):
    write(tmp_path / "x", [[1]])
    header = (tmp_path / "x.idx").read_bytes()[:34]
    tracemalloc.start()
    for beginning, message in ((b"X" * 34, "wrong magic"), (header, "has 3221225472 bytes where its header requires")):
        with open(tmp_path / "x.idx", "wb") as file:
            file.write(beginning)
            file.truncate(3 * 2**30)  # sparse
        assert message in refusal(TokenFile, tmp_path / "x")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_documents_of_several_sequences_are_read(tmp_path):
    """Megatron-LM's `--split-sentences` writes one sequence per sentence."""
    (tmp_path / "x.bin").write_bytes(struct.pack("<6i", *range(6)))
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 3, 3)
    index = header + struct.pack("<3i", 1, 2, 3) + struct.pack("<3q", 0, 4, 12) + struct.pack("<3q", 0, 2, 3)
    (tmp_path / "x.idx").write_bytes(index)
    tokens = TokenFile(tmp_path / "x")
    assert [tokens.document(index).tolist() for index in range(2)] == [[0, 1, 2], [3, 4, 5]]


# Offsets for two documents: header 34 bytes, lengths at 34, byte offsets at 42, document indices at 58.
DAMAGED = {
    "negative_length": (34, b"\xff" * 4, "do not follow one another"),
    "pointer_out_of_range": (50, b"\xff\xff", "do not follow one another"),
    "document_out_of_range": (74, b"\x09", "boundaries are out of range"),
    "document_backwards": (66, b"\x03", "boundaries are out of range"),
    "version": (9, b"\x02", "version 2"),
    "dtype": (17, b"\x63", "dtype code 99"),
    "absurd_count": (18, b"\xff" * 8, "where its header requires"),
}
"""Offset in an index, the bytes written there, and the error."""


@pytest.mark.parametrize(("at", "value", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_index_is_refused_by_name(tmp_path, at, value, message):
    write(tmp_path / "x", [[1, 2, 3], [4]])
    path = tmp_path / "x.idx"
    content = path.read_bytes()
    path.write_bytes(content[:at] + value + content[at + len(value) :])
    said = refusal(TokenFile, tmp_path / "x")
    assert said.startswith(f"{path}: ")
    assert message in said


def test_files_of_another_size_or_missing_are_refused_by_name(tmp_path):
    assert write(tmp_path / "x", [[1, 2, 3], [4]]).tokens(1, 4).tolist() == [2, 3, 4]
    with pytest.raises(IndexError):
        TokenFile(tmp_path / "x").tokens(1, 5)
    for name, sizes in (("x.bin", (6, 10)), ("x.idx", (0, 81))):
        content = (tmp_path / name).read_bytes()
        for n_bytes in sizes:
            os.truncate(tmp_path / name, n_bytes)
            assert refusal(TokenFile, tmp_path / "x").startswith(f"{tmp_path / name}: ")
        (tmp_path / name).unlink()
        assert refusal(TokenFile, tmp_path / "x").startswith(f"{tmp_path / name}: cannot be read")
        (tmp_path / name).write_bytes(content)


def test_an_exception_while_writing_leaves_no_index(tmp_path):
    with pytest.raises(OverflowError):
        write(tmp_path / "x", [[1], [2**16]])
    assert os.listdir(tmp_path) == ["x.bin"]


@pytest.mark.parametrize("n_documents", [2000, 700], ids=["bin", "idx"])
def test_a_file_that_cannot_grow_is_refused_by_name_and_never_opened(tmp_path, request, n_documents):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        said = refusal(write, tmp_path / "x", [[0, 0, 0]] * n_documents)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    ending = request.node.callspec.id
    assert said == f"{tmp_path}/x.{ending}: cannot be written (File too large)"
    assert refusal(TokenFile, tmp_path / "x").startswith(f"{tmp_path}/x.idx: ")


@settings(max_examples=30)
@given(names=st.lists(st.text(max_size=9)))
def test_any_names_are_read_as_they_were_written(tmp_path_factory, names):
    prefix = tmp_path_factory.mktemp("names") / "train"
    names.append(b"caf\xe9\n.txt".decode(errors="surrogateescape"))  # of bytes that are no text
    names_path(prefix).write_bytes(name_lines(names[:3]) + name_lines(names[3:]))
    assert list(read_names(prefix)) == names
    assert names_path(prefix).read_bytes().count(b"\n") == len(names)


def test_anything_else_than_names_is_refused_with_its_line(tmp_path):
    for line, message in ((b"3", "holds int, not the name"), (b"\xff", "is not valid JSON")):
        names_path(tmp_path / "train").write_bytes(b'"a"\n' + line + b"\n")
        with pytest.raises(UserError, match=rf"train\.names\.jsonl: line 2: {message}"):
            list(read_names(tmp_path / "train"))
