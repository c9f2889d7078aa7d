"""Files are written whole or not at all, and read with errors that name them."""

import errno
import hashlib
import math
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pydantic
import pytest
from boxes import refusal

from widthwise import files
from widthwise.files import (
    FileRecord,
    PathInside,
    new_folder,
    parse_json,
    read_json,
    read_text,
    write_atomic,
    write_first,
)
from widthwise.mistakes import UserError


def written_folder(folder: Path, content: str) -> None:
    with new_folder(folder) as partial:
        (partial / "content").write_text(content)


class TestWriteAtomic:
    @pytest.mark.parametrize(
        ("call", "error", "seen"),
        [
            ("fsync", OSError(errno.ENOSPC, "No space left"), UserError),
            ("replace", OSError(errno.EIO, "Input/output error"), UserError),
            ("fsync", KeyboardInterrupt(), KeyboardInterrupt),
        ],
    )
    def test_a_failure_or_ctrl_c_leaves_the_old_file_and_nothing_else(self, tmp_path, monkeypatch, call, error, seen):
        path = tmp_path / "file"
        write_atomic(path, "old")
        monkeypatch.setattr(os, call, Mock(side_effect=error))
        with pytest.raises(seen, match=str(path) if seen is UserError else None):
            write_atomic(path, "new")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_parent_that_is_a_file_and_a_folder_are_user_errors(self, tmp_path):
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file" / "inside", tmp_path):
            assert str(path) in refusal(write_atomic, path, "x")

    def test_permissions_follow_the_umask(self, tmp_path):
        before = os.umask(0o027)
        try:
            write_atomic(tmp_path / "file", "x")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640

    def test_data_reach_the_disk_before_the_rename(self, tmp_path, monkeypatch):
        order = []
        for name in ("fsync", "replace"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, name=name, real=real: order.append(name) or real(*a))
        write_atomic(tmp_path / "file", "x")
        assert order == ["fsync", "replace", "fsync"]

    @pytest.mark.parametrize("write", [write_atomic, write_first, written_folder])
    def test_what_killed_processes_left_of_it_is_removed_and_nothing_else(self, tmp_path, write):
        gone = subprocess.Popen(["true"])
        gone.wait()
        here, elsewhere = f"{files.HOST}-{gone.pid}.0a1b2c3d", f"not-this-host-{gone.pid}.0a1b2c3d"
        left = tmp_path / f".file.{here}"
        left.mkdir() if write is written_folder else left.touch()
        others = {f".other.{here}", f".file.{elsewhere}", f".file.{files.HOST}-{os.getpid()}.0a1b2c3d", ".file.x"}
        for name in others:
            (tmp_path / name).write_text("x")
        write(tmp_path / "file", "whole")
        assert {*os.listdir(tmp_path)} == others | {"file"}


class TestNewFolder:
    def test_it_appears_whole(self, tmp_path):
        (tmp_path / "out").mkdir()  # an empty one is free
        with new_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("x")
            assert not any((tmp_path / "out").iterdir())
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert (tmp_path / "out" / "file").read_text() == "x"

    def test_or_not_at_all(self, tmp_path):
        with pytest.raises(UserError, match=r"out: cannot be written \(No space left"), new_folder(tmp_path / "out"):
            raise OSError(errno.ENOSPC, "No space left")
        with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "out"):
            1 / 0  # noqa: B018
        assert not list(tmp_path.iterdir())

    def test_what_is_there_is_left_alone(self, tmp_path):
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").write_text("mine")
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        (tmp_path / "file").write_text("mine")
        for name in ("full", "link", "file"):
            with pytest.raises(UserError, match=f"{name}: exists already"), new_folder(tmp_path / name):
                pytest.fail("began to fill it")
        assert (tmp_path / "full" / "mine").read_text() == "mine"


def test_json_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    for text in ("[" * 10**5, '{"a": ' * 10**5, "", "{", "[1,]"):
        assert refusal(parse_json, text, "here").startswith("here: is not valid JSON")
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 10)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "long").write_text("[0, 1, 2, 3]")
    os.mkfifo(tmp_path / "pipe")
    for said in ("bad.json", "none.json", "long: has 12 bytes; allowed: up to 10", "pipe: is not a plain file"):
        assert said in refusal(read_json, tmp_path / said.partition(":")[0])


def test_what_is_no_plain_file_or_stands_for_one_is_refused_and_a_mark_is_dropped(tmp_path):
    (tmp_path / "pointer").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (tmp_path / "of_the_kernel").symlink_to("/proc/self/status")  # 0 bytes by its size, and plain
    for name, message in (("of_the_kernel", "is not a plain file"), ("pointer", "is a pointer of Git LFS")):
        assert f"{name}: {message}" in refusal(read_text, tmp_path / name)
    for text in ("", "é", "version https://git-lf"):
        (tmp_path / "file").write_bytes(b"\xef\xbb\xbf" * (text == "é") + text.encode())
        assert read_text(tmp_path / "file") == text


def test_whole_numbers_beyond_all_floats_read_as_infinity():
    for value in (0, -1, 2**63, 10**299):
        assert type(parse_json(str(value), "here")) is int
        assert parse_json(str(value), "here") == value
    assert parse_json("-" + "9" * 5000, "here") == -math.inf


def test_a_path_that_leads_outside_its_folder_is_no_name():
    for name in ("", ".", "/etc/passwd", "../a", "a/../../b", "a\0b"):
        with pytest.raises(pydantic.ValidationError, match="inside the folder"):
            pydantic.TypeAdapter(PathInside).validate_python(name)


def test_the_record_of_a_file_is_its_size_and_sha256(tmp_path):
    (tmp_path / "file").write_bytes(b"\x00abc")
    assert FileRecord.of(tmp_path / "file") == FileRecord(n_bytes=4, sha256=hashlib.sha256(b"\x00abc").hexdigest())
    assert "none: cannot be read" in refusal(FileRecord.of, tmp_path / "none")


def test_of_several_writers_at_once_the_first_wins_and_all_read_it(tmp_path):
    path, barrier = tmp_path / "new" / "word", threading.Barrier(8)

    def write(number):
        barrier.wait()
        return write_first(path, f"word {number}" * 1000)

    with ThreadPoolExecutor(8) as writers:
        found = list(writers.map(write, range(8)))
    assert set(found) == {path.read_text()}
    assert [item.name for item in path.parent.iterdir()] == ["word"]
    assert write_first(path, "later") == found[0]
