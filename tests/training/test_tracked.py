"""What keeps a tracker from disturbing a run, and what it is told: with one that writes into a list, and with those
for real, offline, each read back by its own reader.
"""

import json
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import Listener, outcome, tiny_recipe, unfinished_copy

from widthwise.config_io import UserError
from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train
from widthwise.training import tracked as tracked_module
from widthwise.training.launch import Interrupted
from widthwise.training.tracked import TRACKERS, TrackedRun, Tracker, Values, tracked, values_of


class Kept(Tracker):
    module, extra = "json", "none"
    told: list = []  # noqa: RUF012

    def __init__(self, run: TrackedRun):
        self.id = run.id or run.name
        self.told.append(("opened", run.id))

    def log(self, step: int, values: Values) -> None:
        self.told.append((step, dict(values)))

    def close(self, is_finished: bool) -> None:
        self.told.append(("closed", is_finished))


class Failing(Kept):
    def log(self, step: int, values: Values) -> None:
        print("on standard output")
        if step >= 5:
            raise OSError("no\nspace")


@pytest.fixture(autouse=True)
def told(monkeypatch):
    monkeypatch.setattr(tracked_module, "TRACKERS", {**TRACKERS, "kept": Kept, "failing": Failing})
    monkeypatch.setattr(Kept, "told", [])
    return Kept.told


def logged(told):
    return [each for each in told if isinstance(each[0], int)]


def of_records(records):
    return [(record["step"], values_of(record)) for record in records]


def test_records_repeated_after_a_kill_are_sent_once(told, finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 3)
    with tracked(None, ["kept"]) as observer:
        observer.opened(run)  # its records reach beyond the checkpoint, as after a kill
    before = logged(told)
    with tracked(None, ["kept"]) as observer:
        resume(run, observer)
    assert [step for step, _ in logged(told)] == [step for step, _ in of_records(RunDir(run).metrics())]
    assert before == of_records(RunDir(finished).metrics())
    assert [each for each in told if each[0] in ("opened", "closed")] == [
        ("opened", None),
        ("closed", False),
        ("opened", "run"),
        ("closed", True),
    ]


def test_a_run_that_stopped_before_its_first_record_is_found_again(told, finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 3)
    (run / "metrics.jsonl").write_text("")
    for _ in range(2):
        with tracked(None, ["kept"]) as observer:
            observer.opened(run)
    assert [each for each in told if each[0] == "opened"] == [("opened", None), ("opened", "run")]


def test_a_tracker_that_fails_is_named_once_and_changes_nothing(told, finished, tmp_path, capsys):
    listener, run = Listener(), tmp_path / "run"
    with tracked(listener, ["failing", "kept"]) as observer:
        train(tiny_recipe(), run, observer)
    assert outcome(run) == outcome(finished)
    assert listener.messages == [f"{run}: --track failing failed; the run continues without it (no space)"]
    assert capsys.readouterr().out == ""
    assert logged(told) == of_records(RunDir(run).metrics())


def test_a_folder_that_was_moved_away_is_not_made_anew(told, finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 6)
    with tracked(None, ["kept"]) as observer:
        observer.opened(run)
        run.rename(tmp_path / "moved")
        observer.record({"step": 50, "event": "train", "loss": 1.0})
    assert not run.exists()


def test_names_and_missing_extras_are_refused_before_anything_begins(monkeypatch):
    with pytest.raises(UserError, match=r"track: got 'nothing'; allowed: tensorboard, wandb"):
        tracked(None, ["nothing"]).__enter__()
    monkeypatch.setattr(Kept, "module", "no_such_module")
    with pytest.raises(UserError, match=r"no_such_module is not installed; run: pip install 'widthwise\[none\]'"):
        tracked(None, ["kept"]).__enter__()


def test_numbers_are_named_by_their_path_and_nulls_left_out():
    record = {"step": 3, "event": "norms", "grad_norms": [0.5, None], "val": {"a": {"loss": 2}}, "reason": "why"}
    assert values_of(record) == {"norms/grad_norms/1": 0.5, "norms/val/a/loss": 2, "norms/reason": "why"}


Points = list[tuple[int, str, Any]]
"""(step, name, value) of everything a tracker holds, sorted."""


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
    """The entries of an offline file: a LevelDB log (blocks of 32 KiB, entries in parts) behind a header of 7 bytes."""
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
    """What metrics.jsonl holds, without nulls."""
    return sorted(
        (record["step"], name, value) for record in RunDir(run).metrics() for name, value in values_of(record).items()
    )


@pytest.fixture(params=READERS)
def installed(request, tmp_path, monkeypatch) -> str:
    """A tracker that is installed, which writes below tmp_path."""
    pytest.importorskip(TRACKERS[request.param].module, reason=f"the extra [{request.param}] is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return request.param


def test_a_tracker_holds_what_the_records_hold_also_after_a_stop(installed, tmp_path):
    run = tmp_path / "run"

    def stop(step: int) -> None:
        if step == 6:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted), tracked(Listener(stop), [installed]) as observer:
        train(tiny_recipe("train.checkpoint_every=null", "train.norms_every=5"), run, observer)
    with tracked(None, [installed]) as observer:
        resume(run, observer)
    assert READERS[installed](run) == recorded(run)
    assert {event for _, event, _ in recorded(run)} > {"train/loss", "validation/loss", "norms/weight_norms/3"}
