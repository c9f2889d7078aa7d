"""Any number of worker processes encodes to the folder that one process makes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from source_folders import check_same_bytes, corpus_of, make_source

from widthwise.data import encode
from widthwise.data.corpus import named_corpus
from widthwise.data.prepare import prepare
from widthwise.data.readers import open_source
from widthwise.mistakes import UserError


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of small files, whose documents make many batches."""
    monkeypatch.setattr(encode, "BATCH_BYTES", 1000)
    return str(make_source(tmp_path / "source"))


@pytest.mark.parametrize(
    ("n_workers", "options"),
    [(1, {"held_out": ["04.jsonl.gz", "00.jsonl"]}), (3, {"tokenizer": "bpe-301"}), (2, {"max_tokens": 1_500})],
)
def test_any_number_of_workers_makes_the_folder_of_one_process(source, tmp_path, n_workers, options):
    options = {"tokenizer": "bytes", "held_out": 0.3, **options}
    if isinstance(options["held_out"], list):
        options["held_out"] = [f"{source}/{name}" for name in options["held_out"]]
    stages: dict[str, tuple[int, int | None]] = {}
    data = prepare(
        source, tmp_path / "out", n_workers=n_workers, progress=lambda stage, *n: stages.update({stage: n}), **options
    )
    check_same_bytes(data.path, prepare(source, tmp_path / "one", **options).path)
    assert sorted(os.listdir(tmp_path)) == ["one", "out", "source"]
    if "max_tokens" not in options:
        n_bytes = data.manifest.corpus.n_bytes
        assert stages["tokenizing"] == (n_bytes, n_bytes)


def test_mistakes_are_the_users_and_leave_no_folder(source, tmp_path):
    with pytest.raises(UserError, match="workers: got 0"):
        prepare(source, tmp_path / "out", n_workers=0)
    prepare(source, tmp_path / "bpe", tokenizer="bpe-300")
    spec = f"{tmp_path}/bpe/tokenizer.json#a"
    texts = corpus_of("mine", ["z", "a", "y"])
    held_out = [corpus_of("held out", ["x"])]
    for n_workers in (None, 2):
        with pytest.raises(UserError, match=r"^mine/1: .*cannot encode a text that spells the end-of-text token 'a'"):
            prepare(texts, tmp_path / "out", tokenizer=spec, held_out=held_out, n_workers=n_workers)
    assert sorted(os.listdir(tmp_path)) == ["bpe", "source"]


PREPARE = """
import sys
from widthwise.mistakes import UserError
from widthwise.data.prepare import prepare

try:
    prepare(sys.argv[1], sys.argv[2], tokenizer="bpe-300", n_workers=2)
except UserError as error:
    sys.exit(str(error))
"""
"""Without the guard against being imported by workers, which scripts need not have."""


@pytest.fixture
def large_source(tmp_path) -> str:
    """A file that is encoded for seconds."""
    texts = [document.text for document in named_corpus("synthetic")]
    lines = [f'{{"text": "{text.strip()}"}}\n' for text in texts]
    (tmp_path / "large.jsonl").write_text("".join(lines * 200))
    return str(tmp_path / "large.jsonl")


def start(source: str, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PREPARE, source, str(out)], stderr=subprocess.PIPE, text=True)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the numbers of the processes that encode for this one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, command in commands.items() if b"widthwise.data.encode" in command]


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.hard
def test_workers_end_with_the_process_that_prepares(large_source, tmp_path):
    killed = start(large_source, tmp_path / "out")
    until(lambda: len(workers_of(killed)) == 2)
    workers = workers_of(killed)
    killed.kill()
    killed.communicate()
    assert not (tmp_path / "out").exists()
    until(lambda: not any(map(is_alive, workers)))
    data = prepare(large_source, tmp_path / "out", tokenizer="bpe-300")
    check_same_bytes(data.path, prepare(open_source(large_source), tmp_path / "one", tokenizer="bpe-300").path)


@pytest.mark.hard
def test_a_worker_that_dies_ends_the_preparation_with_an_error(large_source, tmp_path):
    running = start(large_source, tmp_path / "out")
    until(lambda: workers_of(running))
    os.kill(workers_of(running)[0], signal.SIGKILL)
    _, errors = running.communicate(timeout=200)
    assert running.returncode == 1
    assert "workers: one of them died; use fewer if memory is short" in errors
    assert not (tmp_path / "out").exists()
