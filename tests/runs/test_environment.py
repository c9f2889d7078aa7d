"""What is kept of where a run was made, and how much of the machine others used meanwhile."""

import os
import shlex
import sys

import pytest

from widthwise.runs import environment as module
from widthwise.runs.environment import Clocks, command_line, environment, share_of_others


def test_command_shows_no_path_outside_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    paths = [f"{tmp_path}/configs/x.yaml", "/home/someone/runs/secret", "data.path=/home/someone/books"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/widthwise", "train", *paths, "--json"])
    assert environment()["command"] == "widthwise train configs/x.yaml secret data.path=books --json"
    monkeypatch.setattr(sys, "argv", [f"{tmp_path}/benchmarks/paper.py", "list"])
    assert environment()["command"] == "python benchmarks/paper.py list"


def test_command_shows_no_password(monkeypatch):
    shown = {
        "postgresql+psycopg://me:p@ss/w?rd@host:5432/sweeps": "postgresql+psycopg://me:***@host:5432/sweeps",
        "--storage=postgresql://host/d?sslpassword=hush": "--storage=postgresql://host/d?sslpassword=***",
        "postgresql://me@host/d": "postgresql://me@host/d",
        "a.b=c:d@e": "a.b=c:d@e",
    }
    monkeypatch.setattr(sys, "argv", ["widthwise", "sweep", "x.yaml", *shown])
    assert shlex.split(command_line())[3:] == list(shown.values())


def test_commit_of_a_repository_that_merely_contains_the_package_is_not_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_git", lambda *arguments: str(tmp_path))
    assert environment()["commit"] is None


def test_it_is_what_all_did_but_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(busy=1000.0, process=7.0, wall=50.0), Clocks(busy=1024.0, process=22.0, wall=60.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert share_of_others(*clocks) == pytest.approx((24 - 15) / 10 / 3)
