"""What keeps a tracker from disturbing a run, and what it is told; with one that writes into a list."""

import json

import pytest
from tiny_runs import Listener, outcome, tiny_recipe, unfinished_copy

from widthwise.config_io import UserError
from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train
from widthwise.training import tracked as tracked_module
from widthwise.training.tracked import TRACKERS, TrackedRun, Tracker, Values, tracked, values_of


class Kept(Tracker):
    module, extra, survives_kills = "json", "none", True
    told: list = []  # noqa: RUF012

    def __init__(self, run: TrackedRun):
        self.id = run.id or run.name
        self.told.append(("opened", run.id))

    def log(self, step: int, values: Values) -> None:
        self.told.append((step, dict(values)))

    def close(self, is_finished: bool) -> None:
        self.told.append(("closed", is_finished))


class Buffering(Kept):
    """Loses what it was told unless it is closed."""

    survives_kills = False

    def __init__(self, run: TrackedRun):
        super().__init__(run)
        self._buffer: list = []

    def log(self, step: int, values: Values) -> None:
        self._buffer.append((step, dict(values)))

    def close(self, is_finished: bool) -> None:
        self.told.extend(self._buffer)


class Failing(Kept):
    def log(self, step: int, values: Values) -> None:
        print("on standard output")
        if step >= 5:
            raise OSError("no\nspace")


@pytest.fixture(autouse=True)
def told(monkeypatch):
    monkeypatch.setattr(
        tracked_module, "TRACKERS", {**TRACKERS, "kept": Kept, "buffering": Buffering, "failing": Failing}
    )
    monkeypatch.setattr(Kept, "told", [])
    return Kept.told


def write_records(run, records):
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


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


@pytest.mark.parametrize("name", ["kept", "buffering"])
def test_after_kills_a_tracker_has_every_record_once(told, finished, tmp_path, name):
    run = unfinished_copy(finished, tmp_path / "run", 3)
    records = RunDir(run).metrics()
    for i in range(0, len(records), 2):  # killed after two more records, and after two more stopped
        observer = tracked(None, [name]).__enter__()
        write_records(run, records[:i])
        observer.opened(run)
        for record in records[i : i + 2]:
            observer.record(record)
        if i % 4:
            observer.close()
    with tracked(None, [name]) as observer:
        write_records(run, records)
        observer.opened(run)
    assert logged(told) == of_records(records)


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
