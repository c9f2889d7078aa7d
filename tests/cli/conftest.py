"""A tiny recipe, a run of it, and the command line called in this process."""

import json
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_runs import TINY

from widthwise.__main__ import SIGNALS, main

RECIPE = {
    "model": {"vocab_size": 257, "d_model": 32, "n_layers": 6, "attention": {"head_dim": 8}},
    **TINY,
    "train": {"steps": 3, "batch_size": 4, "precision": "fp32", "validation_tokens": 240},
}
WIDE = {
    "extends": "base.yaml",
    "model": {"d_model": 48, "n_layers": 7, "attention": {"head_dim": 12}},
    "train": {"steps": 5},
}
"""What a run of the recipe can become."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """base.yaml in the folder of the test."""
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with base.yaml, wide.yaml, and finished runs that kept the checkpoints 2 and 3: small, of seed 0, and
    other, of seed 4."""
    from widthwise.recipe.recipe import load_recipe
    from widthwise.runs.train import train

    folder = tmp_path_factory.mktemp("trained")
    for name, data in (("base", RECIPE), ("wide", WIDE)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(data))
    for name, seed in (("small", 0), ("other", 4)):
        recipe = load_recipe(folder / "base.yaml", ["train.checkpoint_every=1", f"train.seed={seed}"])
        train(recipe, folder / name)
    return folder


@pytest.fixture
def small(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The first run in a working folder of the test, with the other and both recipes."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return "small"


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
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["widthwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    yield call
    for number, handler in handlers.items():  # the command line sets its own
        signal.signal(number, handler)


@pytest.fixture
def succeeds(widthwise: Callable[..., tuple[int, str, str]]) -> Callable[..., list[str]]:
    """The command line where it must succeed: arguments -> standard output, standard error."""

    def call(*arguments: object) -> list[str]:
        code, *printed = widthwise(*arguments)
        assert code == 0, printed[-1]
        return printed

    return call


@pytest.fixture
def answer(succeeds: Callable[..., list[str]]) -> Callable[..., Any]:
    """The command line where it must succeed, with --json: arguments -> what it prints, as plain data."""
    return lambda *arguments: json.loads(succeeds(*arguments, "--json")[0])


@pytest.fixture
def refused(widthwise: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """The command line where it must refuse: arguments -> its one line of error; before it stands what was done."""

    def call(*arguments: object) -> str:
        code, out, error = widthwise(*arguments)
        assert (code, out) == (2, ""), (arguments, error)
        *before, last = error.splitlines()
        assert not [line for line in before if line.startswith(("error: ", "Traceback"))], error
        assert last.startswith("error: "), error
        assert len(last) < 6000
        return last.removeprefix("error: ")

    return call
