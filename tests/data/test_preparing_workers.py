"""Every test starts real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from source_folders import check_same_bytes

from widthwise.config_io import UserError
from widthwise.data.corpus import named_corpus
from widthwise.data.prepare import make_plan, prepare
from widthwise.data.readers import open_source
from widthwise.data.workers import prepare_with_workers

OPTIONS = {"tokenizer": "bytes", "held_out": 0.3}


@pytest.mark.parametrize(
    ("n_workers", "options"),
    [(1, {"held_out": "04.jsonl.gz"}), (3, {"held_out": 0.3}), (2, {"held_out": 0.3, "max_tokens": 1_500})],
)
def test_any_number_of_workers_makes_the_folder_of_one_process(source, tmp_path, n_workers, options):
    seen: dict[str, tuple[int, int | None]] = {}
    if options["held_out"] == "04.jsonl.gz":
        options = {"held_out": [f"{source}/04.jsonl.gz"]}
    plan = make_plan(source, max_parts=4, tokenizer="bytes", **options)
    data = prepare_with_workers(plan, tmp_path / "out", n_workers, lambda stage, *done: seen.update({stage: done}))
    check_same_bytes(data.path, prepare(source, tmp_path / "one", tokenizer="bytes", **options).path)
    assert sorted(os.listdir(tmp_path)) == ["one", "out", "source"]
    if options == {"held_out": 0.3}:
        assert seen["tokenizing"] == (data.manifest.corpus.n_bytes, data.manifest.corpus.n_bytes)


def test_a_mistake_in_a_file_is_the_users_and_leaves_no_folder(source, tmp_path):
    (tmp_path / "source/06b.jsonl").write_text('{"text": "fine"}\n{"text": 7}\n')
    plan = make_plan(source, max_parts=4, **OPTIONS)
    with pytest.raises(UserError, match=r"06b\.jsonl: line 2: field 'text' holds int, not text"):
        prepare_with_workers(plan, tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def test_no_workers_are_refused_before_any_work(source, tmp_path):
    with pytest.raises(UserError, match="workers: got 0"):
        prepare_with_workers(make_plan(source, **OPTIONS), tmp_path / "out", 0)
    assert os.listdir(tmp_path) == ["source"]


PREPARE = """
import sys
from widthwise.config_io import UserError
from widthwise.data import prepare as prepare_module
from widthwise.data.prepare import make_plan
from widthwise.data.workers import prepare_with_workers

prepare_module.MIN_PART_BYTES = 1
try:
    prepare_with_workers(make_plan(sys.argv[1], tokenizer="bpe-300", max_parts=4), sys.argv[2], 2)
except UserError as error:
    sys.exit(str(error))
"""
"""Without the guard against being imported by workers, which scripts need not have."""


@pytest.fixture
def slow_source(tmp_path) -> str:
    """Two files: a part that is done at once, and one that takes seconds."""
    texts = [document.text for document in named_corpus("synthetic")]
    (tmp_path / "slow").mkdir()
    for name, n_bytes in (("quick", 50_000), ("slow", 2_000_000)):
        repeats = n_bytes // sum(map(len, texts)) + 1
        lines = (json.dumps({"text": text}) + "\n" for text in texts * repeats)
        (tmp_path / f"slow/{name}.jsonl").write_text("".join(lines))
    return str(tmp_path / "slow")


def start(source: str, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PREPARE, source, str(out)], stderr=subprocess.PIPE, text=True)


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 200
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def busy_workers(parts: Path) -> list[int]:
    """The process numbers in the name of the slow part's unfinished folder."""
    names = [path.name for path in parts.glob("parts/00001/.shards.*")]
    return [int(found[1]) for name in names if (found := re.fullmatch(r"\.shards\..*-(\d+)\.[0-9a-f]{8}", name))]


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.hard
def test_a_killed_preparation_ends_its_workers_and_goes_on_with_what_is_finished(slow_source, tmp_path):
    out, parts = tmp_path / "out", tmp_path / ".out.parts"
    finished = parts / "parts/00000/shards/part.json"
    killed = start(slow_source, out)
    until(lambda: finished.exists() and busy_workers(parts))
    workers = busy_workers(parts)
    killed.kill()
    killed.communicate()
    assert not out.exists()
    until(lambda: not any(map(is_alive, workers)))
    written_at = finished.stat().st_mtime_ns
    again = start(slow_source, out)
    until(lambda: set(busy_workers(parts)) - set(workers))
    assert finished.stat().st_mtime_ns == written_at
    _, said = again.communicate(timeout=200)
    assert again.returncode == 0, said
    check_same_bytes(out, prepare(open_source(slow_source), tmp_path / "one", tokenizer="bpe-300").path)


@pytest.mark.hard
def test_a_worker_that_dies_ends_the_preparation_with_an_error(slow_source, tmp_path):
    out, parts = tmp_path / "out", tmp_path / ".out.parts"
    running = start(slow_source, out)
    until(lambda: busy_workers(parts))
    os.kill(busy_workers(parts)[0], signal.SIGKILL)
    _, said = running.communicate(timeout=200)
    assert running.returncode == 1
    assert "workers: one of them died; use fewer if memory is short" in said
    assert not out.exists()
