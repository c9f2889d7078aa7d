import errno
import json
import os
import subprocess
import sys

import pytest

from widthwise import run_dir
from widthwise.config_io import UserError
from widthwise.run_dir import RunDir, read_json, write_atomic

RECORDS = [{"step": step, "event": "train", "loss": 1 / step} for step in (1, 2, 3)]


def fail_with(code):
    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    return fail


class TestWriteAtomic:
    def test_writes_text_and_bytes_and_makes_folders(self, tmp_path):
        write_atomic(tmp_path / "a" / "b" / "text", "é\n")
        write_atomic(tmp_path / "bytes", b"\x00\xff")
        assert (tmp_path / "a" / "b" / "text").read_bytes() == "é\n".encode()
        assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_failure_leaves_the_old_file_and_nothing_else(self, tmp_path, monkeypatch, call, code):
        path = tmp_path / "file"
        write_atomic(path, "old")
        monkeypatch.setattr(os, call, fail_with(code))
        with pytest.raises(UserError, match=str(path)):
            write_atomic(path, "new")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["file"]

    def test_an_interruption_leaves_the_old_file_and_nothing_else(self, tmp_path, monkeypatch):
        def interrupt(*arguments):
            raise KeyboardInterrupt

        path = tmp_path / "file"
        write_atomic(path, "old")
        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_atomic(path, "new")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_kill_before_the_rename_leaves_the_old_file(self, tmp_path):
        path = tmp_path / "file"
        write_atomic(path, "old")
        code = (
            "import os, pathlib, sys; from widthwise.run_dir import write_atomic\n"
            "os.replace = lambda *a: os._exit(9)\n"
            "write_atomic(pathlib.Path(sys.argv[1]), 'new')"
        )
        assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
        assert path.read_text() == "old"

    def test_a_parent_that_is_a_file_is_a_user_error(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="file"):
            write_atomic(tmp_path / "file" / "inside", "x")
        with pytest.raises(UserError, match=str(tmp_path)):
            write_atomic(tmp_path, "x")

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


def test_read_json_names_the_file(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    for name in ("bad.json", "none.json"):
        with pytest.raises(UserError, match=name):
            read_json(tmp_path / name)


class TestRun:
    def test_begins_once_and_accepts_the_same_recipe_again(self, tmp_path):
        run = RunDir(tmp_path / "run")
        assert not run.exists
        run.begin("a: 1\nb: 2\n", {"torch": "x"})
        run.begin("b: 2\na: 1 # the same\n", {"torch": "y"})
        assert run.exists
        assert run.config_yaml() == "a: 1\nb: 2\n"
        assert run.environment() == {"torch": "x"}

    def test_refuses_a_folder_of_another_recipe_and_leaves_it(self, tmp_path):
        run = RunDir(tmp_path)
        run.begin("a: 1\n", {})
        with pytest.raises(UserError, match="another recipe"):
            run.begin("a: 2\n", {})
        assert run.config_yaml() == "a: 1\n"

    def test_a_failed_begin_is_no_run(self, tmp_path, monkeypatch):
        real = run_dir.write_atomic

        def fail_at_the_recipe(path, content):
            if path.name == "config.yaml":
                raise UserError("disk full")
            real(path, content)

        monkeypatch.setattr(run_dir, "write_atomic", fail_at_the_recipe)
        with pytest.raises(UserError):
            RunDir(tmp_path).begin("a: 1\n", {})
        assert not RunDir(tmp_path).exists

    def test_what_is_no_run_is_a_user_error(self, tmp_path):
        with pytest.raises(UserError, match="not a run directory"):
            RunDir(tmp_path / "none").config_yaml()
        (tmp_path / "config.yaml").write_text("a: [")
        with pytest.raises(UserError):
            RunDir(tmp_path).begin("a: 1", {})

    def test_result_is_none_until_written(self, tmp_path):
        run = RunDir(tmp_path)
        assert run.result() is None
        run.write_result({"loss": 1.5})
        assert run.result() == {"loss": 1.5}


class TestMetrics:
    def test_records_read_back(self, tmp_path):
        run = RunDir(tmp_path)
        assert run.metrics() == []
        run.append_metrics(RECORDS[:1])
        run.append_metrics(RECORDS[1:])
        assert run.metrics() == RECORDS

    @pytest.mark.parametrize("n_bytes_lost", range(1, 40))
    def test_a_torn_last_line_is_left_out_and_rewinding_mends_the_file(self, tmp_path, n_bytes_lost):
        run = RunDir(tmp_path)
        run.append_metrics(RECORDS)
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(path.read_bytes()[:-n_bytes_lost])
        assert run.metrics() == RECORDS[:2]
        run.rewind_metrics(2)
        run.append_metrics(RECORDS[2:])
        assert run.metrics() == RECORDS

    @pytest.mark.parametrize("step", range(5))
    def test_rewinding_drops_what_came_after_the_step(self, tmp_path, step):
        run = RunDir(tmp_path)
        run.append_metrics(RECORDS)
        run.rewind_metrics(step)
        assert run.metrics() == RECORDS[:step]

    def test_rewinding_before_the_first_record(self, tmp_path):
        RunDir(tmp_path).rewind_metrics(0)
        assert RunDir(tmp_path).metrics() == []

    def test_a_broken_line_in_the_middle_is_a_user_error(self, tmp_path):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n')
        with pytest.raises(UserError, match=r"metrics\.jsonl"):
            RunDir(tmp_path).metrics()

    def test_a_full_disk_is_a_user_error(self, tmp_path):
        (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(UserError, match=r"metrics\.jsonl"):
            RunDir(tmp_path).append_metrics(RECORDS)


HOLD = """
import sys
from widthwise.run_dir import RunDir
with RunDir(sys.argv[1]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


class TestLock:
    def holder(self, path):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    def test_another_process_is_refused_and_named(self, tmp_path):
        process = self.holder(tmp_path)
        with pytest.raises(UserError, match=f"in use by process {process.pid}"), RunDir(tmp_path).locked():
            pass
        process.communicate("")
        with RunDir(tmp_path).locked():
            pass

    def test_a_killed_process_holds_nothing(self, tmp_path):
        process = self.holder(tmp_path)
        process.kill()
        process.wait()
        with RunDir(tmp_path).locked():
            assert (tmp_path / "lock").read_text() == str(os.getpid())

    def test_an_exception_inside_releases(self, tmp_path):
        with pytest.raises(KeyError), RunDir(tmp_path).locked():
            raise KeyError
        with RunDir(tmp_path).locked():
            pass

    def test_a_run_that_is_a_file_is_a_user_error(self, tmp_path):
        (tmp_path / "run").write_text("")
        with pytest.raises(UserError, match="run"), RunDir(tmp_path / "run").locked():
            pass


def test_json_of_a_result_is_plain(tmp_path):
    RunDir(tmp_path).write_result({"a": [1, 2.5, None]})
    assert json.loads((tmp_path / "result.json").read_text()) == {"a": [1, 2.5, None]}
