import os
import pickle
import subprocess
import sys

import pytest

from widthwise import run_dir
from widthwise.config_io import UserError
from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir, RunDiverged

SIZES = {"d_model": 8, "widths": [8, 8], "average_width": 8.0, "params": {"total": 600}, "kv_bytes_per_token": 64}
RESULT = RunResult.model_validate(
    {"cost": {**SIZES, "flops_per_token": {"forward": 1200, "training": 3600}}, "val_loss": 1.5}
)


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

    @pytest.mark.parametrize(
        ("file", "content", "remedy"),
        [
            ("comparison.json", "{}", "it is a comparison, whose runs are {}/runs/NAME"),
            ("sweep.json", "{}", "it is a sweep, whose runs are {}/runs/NAME"),
            ("runs/x-seed1/config.yaml", "a: 1", "it holds several runs, which are {}/runs/NAME"),
            ("config.json", '{"model_type": "llama"}', "it is a Hugging Face folder: `widthwise import {} RUN` makes"),
        ],
    )
    def test_another_folder_is_told_what_it_is(self, file, content, remedy, tmp_path):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
        with pytest.raises(UserError) as refused:
            RunDir(tmp_path).config_yaml()
        assert f"is not a run directory (no config.yaml); {remedy.format(tmp_path)}" in str(refused.value)

    @pytest.mark.parametrize("name", ["environment", "result"])
    def test_a_file_that_holds_no_mapping_is_a_user_error(self, name, tmp_path):
        (tmp_path / f"{name}.json").write_text("[]")
        with pytest.raises(UserError, match=rf"{name}\.json: holds list, not a mapping"):
            getattr(RunDir(tmp_path), name)()

    def test_result_is_none_until_written(self, tmp_path):
        run = RunDir(tmp_path)
        run.begin("a: 1\n", {})
        assert run.result() is None
        run.write_result(RESULT)
        assert run.result() == RESULT


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
            assert (tmp_path / "holder").read_text() == str(os.getpid())

    def test_an_exception_inside_releases(self, tmp_path):
        with pytest.raises(KeyError), RunDir(tmp_path).locked():
            raise KeyError
        with RunDir(tmp_path).locked():
            pass

    def test_a_run_that_is_a_file_is_a_user_error(self, tmp_path):
        (tmp_path / "run").write_text("")
        with pytest.raises(UserError, match="run"), RunDir(tmp_path / "run").locked():
            pass


def test_a_divergence_comes_whole_from_another_process():
    found = pickle.loads(pickle.dumps(RunDiverged("runs/a: stopped at step 7", 7)))
    assert (str(found), found.step) == ("runs/a: stopped at step 7", 7)
