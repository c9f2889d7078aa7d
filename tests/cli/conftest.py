"""A tiny recipe, and the command line called in this process."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tiny_runs import TINY

from widthwise.cli.main import main

RECIPE = {
    "model": {"vocab_size": 257, "d_model": 32, "n_layers": 6, "attention": {"head_dim": 8}},
    **TINY,
    "train": {"steps": 3, "batch_size": 4, "precision": "fp32", "validation_tokens": 240},
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """base.yaml in the folder of the test."""
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture
def next_command() -> Callable[..., list[str]]:
    """What a verb prints -> the arguments of the command that it names as the next, words in capitals filled in."""

    def found(out: str, **filled: str) -> list[str]:
        (line,) = [line for line in out.splitlines() if line.startswith("next: ")]
        program, *words = shlex.split(line.removeprefix("next: "))
        assert program == "widthwise"
        return [filled.get(word, word) for word in words]

    return found


@pytest.fixture
def widthwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """The command line: arguments -> exit code, standard output, standard error."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["widthwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    yield call
    for number, handler in handlers.items():  # the command line sets its own
        signal.signal(number, handler)
