"""A PostgreSQL server of the tests' own, on a socket in a temporary folder."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

PASSWORD = "sw@ep/{secret}"
"""With letters that an address must escape."""


def missing() -> str | None:
    """Why no server can be started here; None where one can."""
    if _binary("initdb") is None or _binary("pg_ctl") is None:
        return "needs PostgreSQL: no initdb and pg_ctl on the path or in /usr/lib/postgresql/*/bin"
    if os.geteuid() == 0 and (shutil.which("runuser") is None or not _has_user("postgres")):
        return "needs a user other than root to start PostgreSQL: no runuser, or no user postgres"
    return None


def _binary(name: str) -> str | None:
    # Debian keeps them off the path.
    found = [*sorted(glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True), shutil.which(name)]
    return next(filter(None, found), None)


def _has_user(name: str) -> bool:
    return any(entry.pw_name == name for entry in pwd.getpwall())


@contextmanager
def running_server() -> Iterator[str]:
    """The address of an empty database for SQLAlchemy, with its password."""
    folder = Path(tempfile.mkdtemp(prefix="widthwise-postgres-"))  # short: a socket's path has at most 107 letters
    as_other = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_other:
        shutil.chown(folder, "postgres")
    data, secret = folder / "data", folder / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    folder.chmod(0o755)

    def run(name: str, *arguments: object) -> None:
        command = [*as_other, str(_binary(name)), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout

    try:
        run("initdb", "-D", data, "-U", "tester", "-A", "scram-sha-256", "--pwfile", secret, "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-D", data, "-l", folder / "log", "-w", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://tester:sw%40ep%2F%7Bsecret%7D@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
