"""Ctrl-C at any moment is one line and an exit code."""

import signal
import subprocess
import sys

import pytest

SIGNAL_AT_IMPORT = """
import runpy, signal, sys
from importlib.abc import MetaPathFinder

module, number = sys.argv[1:]

class SignalAtImport(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
            signal.raise_signal(int(number))

sys.meta_path.insert(0, SignalAtImport())
sys.argv[:] = ["widthwise", "resume", "absent"]
runpy.run_module("widthwise", run_name="__main__")
"""


@pytest.mark.parametrize(("module", "number"), [("typer", signal.SIGINT), ("torch.nn", signal.SIGTERM)])
def test_a_signal_during_an_import_is_one_line(module: str, number: int) -> None:
    command = [sys.executable, "-c", SIGNAL_AT_IMPORT, module, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (128 + number, 1)
    assert done.stderr.startswith("error: stopped by a signal")
