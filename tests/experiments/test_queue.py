"""The queue of an experiment: every task once, whoever dies, and no password anywhere."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from widthwise.config_io import UserError
from widthwise.experiments.sharing import queue as queue_module
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
def test_workers_that_begin_at_once_claim_every_task_once(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """None of them finds a study when it begins; each claims until every task is claimed."""
    url = sqlite_url(tmp_path / "study.db") if database == "sqlite" else request.getfixturevalue("postgres")
    claimed: list[str] = []
    errors: list[Exception] = []
    barrier = threading.Barrier(N_WORKERS)
    deadline = time.monotonic() + 60

    def work() -> None:
        barrier.wait()
        queue = Queue(Storage(url, Heartbeat()), "at once", IDENTITY)
        while len(claimed) < len(KEYS) and time.monotonic() < deadline:
            queue.fill(KEYS)
            if (claim := queue.claim()) is not None:
                claimed.append(claim.key)

    def work_or_say() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work_or_say, daemon=True) for _ in range(N_WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=90)
    assert not errors
    assert sorted(claimed) == KEYS
    found = trials(Queue(Storage(url, Heartbeat()), "at once", IDENTITY))
    assert [trial.user_attrs["key"] for trial in found] == KEYS


def test_nobody_fails_where_several_make_the_tables_of_a_server_at_once(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_nobody_claims_on_a_file_while_another_reads_and_is_about_to_write(new_queue: OpenQueue) -> None:
    """A claim is a read and a write; between them nobody else may read."""
    reader, other = new_queue(), new_queue()
    reader.fill(KEYS[:1])
    claiming = threading.Thread(target=other.claim, daemon=True)
    with reader.storage.rdb.engine.begin() as connection:
        connection.execute(text("select state from trials")).all()
        claiming.start()
        claiming.join(timeout=0.5)
        assert claiming.is_alive()
    claiming.join(timeout=60)
    assert states(reader) == {KEYS[0]: "running"}


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


def test_a_task_that_ends_without_a_loss_is_finished(new_queue: OpenQueue) -> None:
    queue = new_queue()
    queue.fill(KEYS[:1])
    queue.claim().finish(math.nan)
    assert states(queue) == {KEYS[0]: "finished"}
    assert trials(queue)[0].value == math.inf


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


def test_tasks_are_queued_by_another_where_the_maker_of_the_study_died(
    new_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, other = new_queue(), new_queue()
    maker.fill(KEYS[:2])
    other.fill(KEYS)
    assert list(states(other)) == KEYS[:2]  # the maker may be about to add them
    monkeypatch.setattr(queue_module, "FILL_SECONDS", -1.0)
    other.fill(KEYS)
    assert list(states(other)) == KEYS


def test_a_maker_that_is_slow_but_at_work_is_not_overtaken(
    new_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, other = new_queue(), new_queue()
    for second, expected in ((0, 0), (4, 1), (6, 1), (12, 3)):
        monkeypatch.setattr(queue_module, "time", SimpleNamespace(monotonic=lambda now=second: float(now)))
        if second == 4:
            maker.fill(KEYS[:1])
        other.fill(KEYS[:3])
        assert list(states(other)) == KEYS[:expected]


def test_of_two_trials_for_a_task_the_first_counts(new_queue: OpenQueue) -> None:
    """As where a worker was so slow that another queued the tasks too."""
    slow, other = new_queue(), new_queue()
    slow.fill(KEYS[:1])
    slow._add(optuna.create_trial(state=TrialState.WAITING, user_attrs={"key": KEYS[0]}))
    claim = other.claim()
    assert slow.claim() is None
    claim.finish(1.5)
    assert slow.claim() is None
    assert states(slow) == {KEYS[0]: "finished"}
    assert [trial.state for trial in trials(slow)] == [TrialState.COMPLETE, TrialState.FAIL]


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


def test_a_study_of_another_experiment_is_refused(new_queue: OpenQueue) -> None:
    new_queue()
    with pytest.raises(UserError, match=r"study s in sqlite:.*is one of another sweep"):
        new_queue({"other plan": "is one of another sweep"})
    new_queue({"other plan": "is one of another sweep"}, name="t")


def test_a_mistake_whose_second_trial_is_lost_is_still_tried_again(new_queue: OpenQueue) -> None:
    queue = new_queue()
    queue.fill(KEYS[:1])
    queue.claim().fail("disk full", is_mistake=True)
    queue.try_mistakes_again()
    queue.claim()
    age(queue)
    queue.declare_lost()
    assert states(queue) == {KEYS[0]: "waiting"}
    queue.claim().finish(1.0)
    assert states(queue) == {KEYS[0]: "finished"}


def test_a_mistake_stands_where_its_second_trial_came_to_nothing(new_queue: OpenQueue) -> None:
    """As where a worker died after it declared the trial lost, and before it queued the copy."""
    queue = new_queue()
    queue.fill(KEYS[:1])
    queue.claim().fail("disk full", is_mistake=True)
    queue.try_mistakes_again()
    queue.claim().drop()
    assert queue.entries()[KEYS[0]].reason == "disk full"
    queue.try_mistakes_again()
    assert states(queue) == {KEYS[0]: "waiting"}


def test_a_study_of_another_tool_is_refused(new_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "FILL_SECONDS", -1.0)
    storage = new_queue(name="other").storage
    optuna.create_study(storage=storage.rdb, study_name="mine").enqueue_trial({"lr": 0.1})
    with pytest.raises(
        UserError, match=r"study mine in sqlite:.*: was not made by widthwise; choose another with --study"
    ):
        new_queue(name="mine")


def test_trials_of_another_tool_are_left_alone(new_queue: OpenQueue) -> None:
    queue = new_queue()
    optuna.load_study(study_name=queue.name, storage=queue.storage.rdb).enqueue_trial({"lr": 0.1})
    queue.fill(KEYS[:1])
    assert queue.claim().key == KEYS[0]
    assert queue.claim() is None
    assert states(queue) == {KEYS[0]: "running"}


def test_a_study_that_was_deleted_is_missed(new_queue: OpenQueue) -> None:
    queue = new_queue()
    queue.fill(KEYS[:1])
    optuna.delete_study(study_name=queue.name, storage=queue.storage.rdb)
    with pytest.raises(UserError, match=r"study s in sqlite:.*: is not there any more"):
        queue.entries()


def test_what_a_sampler_chose_is_kept_when_the_worker_is_lost(new_queue: OpenQueue) -> None:
    queue = new_queue()
    queue.fill(["#0"])
    chosen = queue.claim().trial(optuna.samplers.RandomSampler(seed=1)).suggest_float("lr", 0.1, 0.9)
    age(queue)
    queue.declare_lost()
    assert queue.claim().trial(optuna.samplers.RandomSampler(seed=2)).suggest_float("lr", 0.1, 0.9) == chosen


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("sweeps", "is not the address of a database"),
        ("postgresql://u:hush@h:port/d", "is not the address of a database"),
        ("postgresql://u:hush@127.0.0.1:1/d?connect_timeout=2", r"postgresql\+psycopg://u:\*\*\*@127\.0\.0\.1:1/d: "),
        ("nothing://u:hush@h/d", "got nothing://...; SQLAlchemy knows no such"),
        ("mysql+nodriver://u:hush@h/d", r"got mysql\+nodriver://"),
        ("sqlite:////nowhere/at/all.db", "unable to open database file"),
    ],
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(
    url: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "OPENING_SECONDS", 0)
    with pytest.raises(UserError, match=named) as found:
        Storage(url, Heartbeat())
    assert "hush" not in str(found.value)


def test_a_slow_try_that_fails_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where several workers make the tables at once, on a machine so busy that one try takes longer than all may."""
    tries: list[float] = []

    def slow() -> str:
        tries.append(time.monotonic())
        if len(tries) == 1:
            time.sleep(0.6)
            raise OperationalError("create table", {}, RuntimeError("exists already"))
        return "in"

    monkeypatch.setattr(Storage, "_connected", lambda storage: None)
    assert Storage("sqlite://", Heartbeat()).patiently(slow, seconds=0.55) == "in"


def test_a_driver_that_repeats_the_password_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OperationalError("select 1", {}, RuntimeError("no password like hush here"))

    monkeypatch.setattr(Storage, "_connected", lambda storage: None)
    with pytest.raises(UserError, match=r"u:\*\*\*@h/d: no password like \*\*\* here") as found:
        Storage("postgresql://u:hush@h/d", Heartbeat()).patiently(refuse, seconds=0)
    assert "hush" not in str(found.value)


def test_what_is_written_down_of_a_storage_has_no_password_and_no_private_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Storage(sqlite_url(tmp_path / "study.db"), Heartbeat())
    assert file.recorded == "sqlite:///study.db"
    monkeypatch.setattr(Storage, "_connected", lambda storage: None)
    server = Storage("postgres://u:hush@h:5/d?password=hush&host=%2Fprivate", Heartbeat())
    assert server.recorded == server.shown == "postgresql+psycopg://u:***@h:5/d"
