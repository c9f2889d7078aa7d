import json
import shlex
import sys

import torch

from widthwise.runs import environment as module
from widthwise.runs.environment import REPRODUCED_WITH, command_line, environment


def test_environment_is_plain_data_with_what_reproduces_a_run():
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert set(REPRODUCED_WITH) - {"n_processes", "n_shards"} <= set(found)  # a run adds these
    assert found["torch"] == torch.__version__


def test_command_shows_no_path_outside_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "train",
        f"{tmp_path}/configs/x.yaml",
        "/home/someone/runs/secret",
        "data.path=/home/someone/books",
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/widthwise", *arguments])
    assert environment()["command"] == "widthwise train configs/x.yaml secret data.path=books --json"


def test_command_shows_no_password(monkeypatch):
    addresses = ["postgresql+psycopg://me:p@ss/w?rd@host:5432/sweeps", "--storage=postgresql://host/d?sslpassword=hush"]
    monkeypatch.setattr(
        sys, "argv", ["widthwise", "sweep", "x.yaml", *addresses, "postgresql://me@host/d", "a.b=c:d@e"]
    )
    shown = shlex.split(command_line())[3:]
    assert shown == [
        "postgresql+psycopg://me:***@host:5432/sweeps",
        "--storage=postgresql://host/d?sslpassword=***",
        "postgresql://me@host/d",
        "a.b=c:d@e",
    ]


def test_command_can_be_pasted_into_a_shell(monkeypatch):
    arguments = ["train", "x.yaml", "model.shape={kind: x}", "--out", "my runs"]
    monkeypatch.setattr(sys, "argv", ["widthwise", *arguments])
    assert shlex.split(command_line()) == ["widthwise", *arguments]


def test_commit_of_a_repository_that_merely_contains_the_package_is_not_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_git", lambda *arguments: str(tmp_path))
    assert environment()["commit"] is None
