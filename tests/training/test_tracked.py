"""Trackers do not disturb a run, and get each record once; tested with fakes."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from tiny_runs import Listener, outcome, tiny_recipe, unfinished_copy

from widthwise.mistakes import UserError
from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train
from widthwise.training import tracked as tracked_module
from widthwise.training.tracked import TRACKERS, Tracker, Values, tracked, values_of


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


class FakeWandb(ModuleType):
    """Loses the rows of a run that does not finish."""

    def __init__(self):
        super().__init__("wandb")
        self.rows: list = []
        self.ids: list[str] = []

    Settings = dict

    def init(self, id: str, **options):
        self.ids.append(id)
        buffer: list = []
        return SimpleNamespace(
            define_metric=lambda *names, **options: None,
            log=buffer.append,
            finish=lambda exit_code: self.rows.extend(buffer),
        )


@pytest.fixture(autouse=True)
def logged(monkeypatch):
    for name in ("listing", "failing"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    trackers = {**TRACKERS, "listing": Listing, "failing": Failing, "no_such_module": Listing}
    monkeypatch.setattr(tracked_module, "TRACKERS", trackers)
    monkeypatch.setattr(Listing, "logged", [])
    return Listing.logged


@pytest.fixture
def wandb(monkeypatch):
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def write_records(run, records):
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def of_records(records):
    return [(record["step"], values_of(record)) for record in records]


def test_after_kills_wandb_has_every_record_once_in_one_run(wandb, finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 3)
    records = RunDir(run).metrics()
    for i in range(0, len(records), 2):  # killed after two more records, and after two more stopped
        observer = tracked(None, ["wandb"]).__enter__()
        write_records(run, records[:i])
        observer.opened(run)
        for record in records[i : i + 2]:
            observer.record(record)
        if i % 4:
            observer._close()
    with tracked(None, ["wandb"]) as observer:
        write_records(run, records)
        observer.opened(run)
    assert wandb.rows == [{**values, "step": step} for step, values in of_records(records)]
    assert len(set(wandb.ids)) == 1


def test_a_tracker_that_fails_is_named_once_and_changes_nothing(logged, finished, tmp_path, capsys):
    listener, run = Listener(), tmp_path / "run"
    with tracked(listener, ["failing", "listing"]) as observer:
        train(tiny_recipe(), run, observer)
    assert outcome(run) == outcome(finished)
    assert listener.messages == [f"{run}: --track failing failed; the run continues without it (no space)"]
    assert capsys.readouterr().out == ""
    assert logged == [*of_records(RunDir(run).metrics()), ("closed", True)]


def test_names_and_missing_extras_are_refused_before_anything_begins():
    with pytest.raises(UserError, match=r"track: got 'nothing'; allowed: tensorboard, wandb"):
        tracked(None, ["nothing"]).__enter__()
    missing = r"no_such_module is not installed; run: pip install 'widthwise\[no_such_module\]'"
    with pytest.raises(UserError, match=missing):
        tracked(None, ["no_such_module"]).__enter__()


def test_numbers_are_named_by_their_path_and_nulls_left_out():
    record = {"step": 3, "event": "norms", "grad_norms": [0.5, None], "val": {"a": {"loss": 2}}, "reason": "why"}
    assert values_of(record) == {"norms/grad_norms/1": 0.5, "norms/val/a/loss": 2, "norms/reason": "why"}


def test_records_repeated_after_a_kill_are_sent_once(logged, finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 3)  # its records reach beyond the checkpoint, as after a kill
    with tracked(None, ["listing"]) as observer:
        resume(run, observer)
    assert [step for step, _ in logged] == [record["step"] for record in RunDir(run).metrics()] + ["closed"]
    assert logged[-1] == ("closed", True)
