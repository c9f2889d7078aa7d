"""The database through which the workers of an experiment coordinate."""

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from widthwise.config_io import UserError
from widthwise.data.extras import require
from widthwise.experiments.sharing.trials import put_back

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from sqlalchemy import URL, Engine

T = TypeVar("T")

OPENING_SECONDS = 5
"""How long to retry opening the database after a first failure."""
OUTAGE_SECONDS = 120
"""How long a database may be unreachable while workers are running."""
TABLES_LOCK = 0x7769647468
"""The advisory lock under which a PostgreSQL database gets its tables: "width" in ASCII, which nobody else uses."""


@dataclass(frozen=True)
class Heartbeat:
    """Heartbeat of a worker."""

    interval_seconds: int = 60

    @property
    def grace_seconds(self) -> int:
        """A worker silent for longer counts as dead."""
        return 3 * self.interval_seconds


class StorageAway(UserError):
    """A database that cannot be reached or used, or that has lost its study."""


def sqlite_url(path: Path) -> str:
    """The address of an SQLite file."""
    sqlalchemy: Any = require("sqlalchemy", "sweep")
    return sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string()


class Storage:
    """A database with studies. Errors name it without its password."""

    def __init__(self, url: str, heartbeat: Heartbeat):
        """Connects, and creates Optuna's tables if there are none. Raises UserError on failure."""
        optuna: Any = require("optuna", "sweep")
        optuna.logging.set_verbosity(logging.WARNING)
        self._url = _read_url(url)
        self.heartbeat = heartbeat
        self.rdb = self._connected()

    @property
    def shown(self) -> str:
        """The address without password and options (options may contain another password)."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    @property
    def recorded(self) -> str:
        """The same for files that others read; for an SQLite file only its name."""
        if not self._is_file:
            return self.shown
        return self._url.set(query={}, database=Path(self._url.database or "").name).render_as_string()

    @property
    def _is_file(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    def patiently(self, act: Callable[[], T], seconds: float = OUTAGE_SECONDS) -> T:
        """The result of `act`, retried while the database is unreachable. Raises StorageAway if it stays so.

        `act` may then take effect twice.
        """
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        deadline: float | None = None
        while True:
            try:
                return act()
            except (StorageInternalError, SQLAlchemyError) as error:
                # From the first failure: on a busy machine one try may take longer than that.
                deadline = time.monotonic() + seconds if deadline is None else deadline
                if time.monotonic() >= deadline:
                    raise StorageAway(f"--storage: {self.shown}: {self._cause(error)}") from None
            time.sleep(0.5)

    def _connected(self) -> "RDBStorage":
        from optuna.exceptions import ExperimentalWarning
        from optuna.storages import RDBStorage

        # Braces would be taken for the template that Optuna allows.
        text = self._url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
        options = {"connect_args": {"timeout": OUTAGE_SECONDS}} if self._is_file else {"pool_pre_ping": True}

        def connect() -> "RDBStorage":
            with self._alone(), warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                return RDBStorage(
                    text,
                    engine_kwargs=options,
                    heartbeat_interval=self.heartbeat.interval_seconds,
                    grace_period=self.heartbeat.grace_seconds,
                    heartbeat_stale_trial_callback=put_back,
                )

        try:
            storage = self.patiently(connect, OPENING_SECONDS)
        except ImportError as error:
            raise UserError(f"--storage: {self.shown}: {error.__cause__ or error}; install its driver") from None
        except RuntimeError as error:  # tables of another version of Optuna
            raise UserError(f"--storage: {self.shown}: {error}") from None
        if self._is_file:
            _serialise(storage.engine)
        return storage

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps others out of a PostgreSQL server's database while Optuna makes its tables.

        If two processes create a table at the same moment, one fails, although it asked for "if not exists". The
        lock ends with the transaction, and so with the process.
        """
        if self._url.get_backend_name() != "postgresql":
            yield
            return
        import sqlalchemy

        engine = sqlalchemy.create_engine(self._url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(TABLES_LOCK)))
            yield

    def _cause(self, error: BaseException) -> str:
        """The driver's message, which may repeat the address it was given."""
        while error.__cause__ is not None:
            error = error.__cause__
        text, password = str(getattr(error, "orig", None) or error), self._url.password
        return text.replace(str(password), "***") if password else text


def _read_url(text: str) -> "URL":
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # whose messages may repeat it
        raise UserError(
            "--storage: is not the address of a database; expected sqlite:///FILE or "
            "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg":
        require("psycopg", "postgres")
    try:
        url.get_dialect()
    except NoSuchModuleError:
        raise UserError(f"--storage: got {url.drivername}://...; SQLAlchemy knows no such database") from None
    return url


def _serialise(engine: "Engine") -> None:
    """Makes every transaction on a SQLite file wait for its turn before it reads.

    SQLite has no row locks: without this two processes can read that a trial waits, and both claim it. The recipe is
    SQLAlchemy's (dialects/sqlite, "serializable isolation").
    """
    from sqlalchemy import event

    event.listen(engine, "connect", lambda connection, record: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    engine.dispose()
