"""The queue of an experiment: every task once, whoever dies, and no password anywhere."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import create_engine, make_url, text

from widthwise.config_io import UserError
from widthwise.experiments.sharing import storage as storage_module
from widthwise.experiments.sharing.queue import ClaimLost, Queue
from widthwise.experiments.sharing.storage import Heartbeat, Storage, sqlite_url

KEYS = [f"task{number}" for number in range(7)]
N_WORKERS = 4
IDENTITY = {"plan": "is one of another sweep"}

OpenQueue = Callable[..., Queue]


@pytest.fixture
def new_queue(tmp_path: Path) -> OpenQueue:
    """A worker's queue, each with a connection of its own."""

    def make(identity: dict[str, str] = IDENTITY, name: str = "s") -> Queue:
        return Queue(Storage(sqlite_url(tmp_path / "study.db"), Heartbeat(1)), name, identity)

    return make


def states(queue: Queue) -> dict[str, str]:
    return {key: entry.state for key, entry in queue.entries().items()}


def trials(queue: Queue) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=queue.name, storage=queue.storage.rdb).trials


def age(queue: Queue) -> None:
    """Makes the last sign of life of every trial an old one."""
    with queue.storage.rdb.engine.begin() as connection:
        connection.execute(text("update trial_heartbeats set heartbeat = '2001-01-01 00:00:00'"))


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_workers_that_begin_at_once_claim_every_task_once(database: str, tmp_path: Path, request, monkeypatch) -> None:
    """None of them finds a study when it begins; each claims until every task is claimed."""
    url = sqlite_url(tmp_path / "study.db") if database == "sqlite" else request.getfixturevalue("postgres")
    claimed: list[str] = []
    barrier = threading.Barrier(N_WORKERS)
    deadline = time.monotonic() + 60
    monkeypatch.setattr(storage_module, "OPENING_SECONDS", 60)  # a try takes long on a busy machine

    def work(_: int) -> None:
        barrier.wait()
        queue = Queue(Storage(url, Heartbeat()), "at once", IDENTITY)
        while len(claimed) < len(KEYS) and time.monotonic() < deadline:
            queue.fill(KEYS)
            if (claim := queue.claim()) is not None:
                claimed.append(claim.key)

    with ThreadPoolExecutor(N_WORKERS) as workers:
        assert len(list(workers.map(work, range(N_WORKERS)))) == N_WORKERS  # none raised
    assert sorted(claimed) == KEYS
    found = trials(Queue(Storage(url, Heartbeat()), "at once", IDENTITY))
    assert [trial.user_attrs["key"] for trial in found] == KEYS


def test_nobody_fails_where_several_make_the_tables_of_a_server_at_once(postgres: str, monkeypatch) -> None:
    with create_engine(postgres, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("create database empty"))
    empty = make_url(postgres).set(database="empty").render_as_string(hide_password=False)
    monkeypatch.setattr(storage_module, "OPENING_SECONDS", -1)  # no second try
    barrier = threading.Barrier(N_WORKERS)

    def open_at_once(_: int) -> Storage:
        barrier.wait()
        return Storage(empty, Heartbeat())

    with ThreadPoolExecutor(N_WORKERS) as workers:
        assert len(list(workers.map(open_at_once, range(N_WORKERS)))) == N_WORKERS


def test_tasks_are_claimed_in_their_order_and_end_as_told(new_queue: OpenQueue) -> None:
    queue = new_queue()
    queue.fill(KEYS[:4])
    first, second, third = (queue.claim() for _ in range(3))
    assert [claim.key for claim in (first, second, third)] == KEYS[:3]
    first.describe({"name": "n", "group": "", "values": {"a.b": 1}})
    first.report(1, 3.5)
    first.finish(3.25)
    second.fail("loss is nan", is_mistake=False)
    third.release()
    assert states(queue) == dict(zip(KEYS, ["finished", "failed", "waiting", "waiting"]))
    entries = queue.entries()
    assert entries[KEYS[0]].point == {"name": "n", "group": "", "values": {"a.b": 1}}
    assert entries[KEYS[1]].reason == "loss is nan"
    trial = trials(queue)[0]
    assert (trial.value, trial.intermediate_values) == (3.25, {1: 3.5})
    assert queue.claim().key == KEYS[2]


def test_a_silent_worker_loses_its_task_to_another_and_cannot_end_it(new_queue: OpenQueue) -> None:
    silent, other = new_queue(), new_queue()
    silent.fill(KEYS[:1])
    claim = silent.claim()
    other.declare_lost()
    assert other.claim() is None  # it has just given a sign of life
    age(other)
    other.declare_lost()
    silent.declare_lost()
    taken = other.claim()
    assert taken.key == KEYS[0]
    for act in (lambda: claim.report(1, 1.0), lambda: claim.finish(1.0), claim.release):
        with pytest.raises(ClaimLost):
            act()
    taken.finish(2.0)
    assert states(other) == {KEYS[0]: "finished"}
    assert Counter(trial.state for trial in trials(other)) == {TrialState.FAIL: 1, TrialState.COMPLETE: 1}


def test_a_task_shows_signs_of_life_while_it_is_at_work(new_queue: OpenQueue) -> None:
    queue, other = new_queue(), new_queue()
    queue.fill(KEYS[:1])
    with queue.claim():
        age(other)
        deadline = time.monotonic() + 30
        while other.storage.rdb._get_stale_trial_ids(1) and time.monotonic() < deadline:
            time.sleep(0.1)
        other.declare_lost()
        assert states(other) == {KEYS[0]: "running"}


def test_mistakes_are_tried_again_by_the_next_start_and_what_diverged_is_not(new_queue: OpenQueue) -> None:
    queue = new_queue()
    queue.fill(KEYS[:2])
    queue.claim().fail("disk full", is_mistake=True)
    queue.claim().fail("loss is nan", is_mistake=False)
    for again in (new_queue(), new_queue()):
        again.try_mistakes_again()
    assert states(queue) == {KEYS[0]: "waiting", KEYS[1]: "failed"}
    queue.claim().finish(1.0)
    assert queue.claim() is None
    assert states(queue) == {KEYS[0]: "finished", KEYS[1]: "failed"}


def test_another_experiment_is_refused_and_what_a_sampler_chose_is_kept_when_the_worker_is_lost(new_queue) -> None:
    queue = new_queue()
    with pytest.raises(UserError, match=r"study s in sqlite:.*is one of another sweep"):
        new_queue({"other plan": "is one of another sweep"})
    new_queue({"other plan": "is one of another sweep"}, name="t")
    queue.fill(["#0"])
    chosen = queue.claim().trial(optuna.samplers.RandomSampler(seed=1)).suggest_float("lr", 0.1, 0.9)
    age(queue)
    queue.declare_lost()
    assert queue.claim().trial(optuna.samplers.RandomSampler(seed=2)).suggest_float("lr", 0.1, 0.9) == chosen


def test_no_message_about_a_storage_and_nothing_written_down_has_its_password(tmp_path: Path, monkeypatch) -> None:
    """Nor a private path."""
    monkeypatch.setattr(storage_module, "OPENING_SECONDS", 0)
    for url, named in (
        ("sweeps", "is not the address of a database"),
        ("postgresql://u:hush@h:port/d", "is not the address of a database"),
        ("postgresql://u:hush@127.0.0.1:1/d?connect_timeout=2", r"postgresql\+psycopg://u:\*\*\*@127\.0\.0\.1:1/d: "),
        ("nothing://u:hush@h/d", "got nothing://...; SQLAlchemy knows no such"),
        ("mysql+nodriver://u:hush@h/d", r"got mysql\+nodriver://"),
        ("sqlite:////nowhere/at/all.db", "unable to open database file"),
    ):
        with pytest.raises(UserError, match=named) as found:
            Storage(url, Heartbeat())
        assert "hush" not in str(found.value)
    file = Storage(sqlite_url(tmp_path / "study.db"), Heartbeat())
    assert file.recorded == "sqlite:///study.db"
    monkeypatch.setattr(Storage, "_connected", lambda storage: None)
    server = Storage("postgres://u:hush@h:5/d?password=hush&host=%2Fprivate", Heartbeat())
    assert server.recorded == server.shown == "postgresql+psycopg://u:***@h:5/d"
