"""Trackers do not disturb a run, and get each record once: tested with fakes, then with the files of real trackers."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from boxes import refusal
from ranks import SOURCES
from tiny_runs import Listener, outcome, tiny_recipe, unfinished_copy

from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train
from widthwise.training import observer as observer_module
from widthwise.training.launch import Interrupted
from widthwise.training.observer import TRACKERS, Tracker, Values, tracked, values_of


class Listing(Tracker):
    logged: list = []  # noqa: RUF012

    def log(self, step: int, values: Values) -> None:
        self.logged.append((step, dict(values)))

    def close(self) -> None:
        self.logged.append(("closed", self.run.has_result))


class Failing(Listing):
    def log(self, step: int, values: Values) -> None:
        print("on standard output")
        if step >= 5:
            raise OSError("no\nspace")

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def logged(monkeypatch):
    for name in ("listing", "failing"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    trackers = {**TRACKERS, "listing": Listing, "failing": Failing, "no_such_module": Listing}
    monkeypatch.setattr(observer_module, "TRACKERS", trackers)
    monkeypatch.setattr(Listing, "logged", [])
    return Listing.logged


def test_a_tracker_that_fails_is_named_once_and_changes_nothing(logged, finished, tmp_path, capsys):
    listener, run = Listener(), tmp_path / "run"
    with tracked(listener, ["failing", "listing"]) as observer:
        train(tiny_recipe(), run, observer)
    assert outcome(run) == outcome(finished)
    assert listener.messages == [f"{run}: --track failing failed; the run continues without it (no space)"]
    assert capsys.readouterr().out == ""
    assert logged == [*((record["step"], values_of(record)) for record in RunDir(run).metrics()), ("closed", True)]


def test_names_and_missing_extras_are_refused_before_anything_begins():
    for name, message in (
        ("nothing", "track: got 'nothing'; allowed: failing, listing, no_such_module, tensorboard, wandb"),
        ("no_such_module", "no_such_module is not installed; run: pip install 'widthwise[no_such_module]'"),
    ):
        assert message in refusal(tracked(None, [name]).__enter__)


def test_numbers_are_named_by_their_path_and_nulls_left_out():
    record = {"step": 3, "event": "norms", "grad_norms": [0.5, None], "val": {"a": {"loss": 2}}, "reason": "why"}
    assert values_of(record) == {"norms/grad_norms/1": 0.5, "norms/val/a/loss": 2, "norms/reason": "why"}


class FakeWandb(ModuleType):
    """Loses the rows of a run that does not finish."""

    Settings = dict

    def __init__(self):
        super().__init__("wandb")
        self.rows, self.ids = [], set()

    def init(self, id: str, **options):
        self.ids.add(id)
        buffer: list = []
        return SimpleNamespace(
            define_metric=lambda *names, **options: None,
            log=buffer.append,
            finish=lambda exit_code: self.rows.extend(buffer),
        )


def test_after_kills_wandb_has_every_record_once_in_one_run(finished, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", wandb := FakeWandb())
    run = RunDir(unfinished_copy(finished, tmp_path / "run", 3))
    records = run.metrics()
    run.metrics_file.path.unlink()
    for i in range(0, len(records), 2):  # killed after two more records, and after two more stopped
        observer = tracked(None, ["wandb"]).__enter__()
        observer.opened(run.path)
        for record in records[i : i + 2]:
            run.metrics_file.append([record])
            observer.record(record)
        if i % 4:
            observer._close()
    with tracked(None, ["wandb"]) as observer:
        observer.opened(run.path)
    assert wandb.rows == [{**values_of(record), "step": record["step"]} for record in records]
    assert len(wandb.ids) == 1


Points = list[tuple[int, str, Any]]
"""(step, name, value) of all logged values, sorted."""


def from_tensorboard(run: Path) -> Points:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tensors = pytest.importorskip("tensorboard.util.tensor_util")
    events = accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    found = []
    for tag in events.Tags()["tensors"]:
        name = tag.removesuffix("/text_summary")
        for event in events.Tensors(tag):
            value = tensors.make_ndarray(event.tensor_proto).reshape(-1)[0]
            found.append((event.step, name, value.decode() if isinstance(value, bytes) else float(value)))
    return sorted(point for point in found if point[1] != "recipe")


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the entries of an offline file: 7 bytes of header, then a LevelDB log (blocks of 32 KiB, split entries)."""
    assert content[:4] == b":W&B"
    offset, entry = 7, b""
    while offset + 7 <= len(content):
        left = 2**15 - offset % 2**15
        n_bytes, part = struct.unpack_from("<HB", content, offset + 4)
        if left < 7 or part == 0:
            offset += left
            continue
        entry += content[offset + 7 : offset + 7 + n_bytes]
        offset += 7 + n_bytes
        if part in (1, 4):  # whole, or the last part
            yield entry
            entry = b""


def from_wandb(run: Path) -> Points:
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found = []
    for path in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        for data in wandb_records(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                items = [(item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item]
                row = {key: json.loads(value) for key, value in items}
                found += [(row["step"], key, value) for key, value in row.items() if "/" in key]
    return sorted(found)


READERS: Mapping[str, Callable[[Path], Points]] = {"tensorboard": from_tensorboard, "wandb": from_wandb}


def recorded(run: Path) -> Points:
    """Return the values of metrics.jsonl, without nulls."""
    return sorted(
        (record["step"], name, value) for record in RunDir(run).metrics() for name, value in values_of(record).items()
    )


@pytest.fixture(params=READERS)
def name(request, tmp_path, monkeypatch) -> str:
    """A tracker that is installed, which writes below tmp_path."""
    pytest.importorskip(request.param, reason=f"the extra [{request.param}] is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return request.param


def test_a_tracker_holds_what_the_records_hold_also_after_a_stop(name, tmp_path):
    run = tmp_path / "run"

    def stop(step: int) -> None:
        if step == 6:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted), tracked(Listener(stop), [name]) as observer:
        train(tiny_recipe("train.checkpoint_every=null", "train.norms_every=5"), run, observer)
    with tracked(None, [name]) as observer:
        resume(run, observer)
    latest = time.monotonic() + 20
    while READERS[name](run) != recorded(run) and time.monotonic() < latest:
        time.sleep(0.1)  # a program's own process may still be writing
    assert READERS[name](run) == recorded(run)
    assert {event for _, event, _ in recorded(run)} > {"train/loss", "validation/loss", "norms/weight_norms/3"}
    folders = run.glob("wandb/offline-run-*")  # offline-run-TIME-IDENTIFIER, with a number if it exists already
    assert len({path.name.split("-")[3] for path in folders}) <= 1


KILLED = """
import os, signal, sys
from pathlib import Path
from ranks import SOURCES
from tiny_runs import Listener, tiny_recipe
from widthwise.runs.train import train
from widthwise.training.observer import tracked

def die(step):
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)

with tracked(Listener(die), [sys.argv[1]]) as observer:
    train(tiny_recipe(), Path("run"), observer)
"""


MEASURED = ("tokens_per_second", "step_seconds", "mfu", "memory_bytes")


@pytest.mark.hard
def test_a_tracker_holds_every_record_also_after_a_kill(name, tmp_path):
    run, environment = tmp_path / "run", {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    environment.pop("WANDB_SERVICE", None)  # wandb's process of this test would keep the run of the killed one in use
    killed = subprocess.run([sys.executable, "-c", KILLED, name], cwd=tmp_path, env=environment)
    assert killed.returncode == -signal.SIGKILL
    with tracked(None, [name]) as observer:
        resume(run, observer)
    latest = time.monotonic() + 20
    while not set(recorded(run)) <= set(READERS[name](run)) and time.monotonic() < latest:
        time.sleep(0.1)
    theirs, ours = (
        {point for point in points if not point[1].endswith(MEASURED)} for points in (READERS[name](run), recorded(run))
    )
    assert theirs == ours
