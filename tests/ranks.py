"""Processes that cost no start: forked from a server that has imported torch once, and told what torchrun would tell.

`Launch` starts some of them, with what torchrun tells its workers in their environment. Their standard error goes to a
file each, so that a test can say what was printed, and by whom.
"""

import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

FOLDER = Path(__file__).parent
SOURCES = (FOLDER.parent / "src", FOLDER)
PRELOADED = (
    "pytest",
    "torch._dynamo",  # which an optimizer imports
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.fsdp",
    "widthwise.cli.main",
    "widthwise.cli.progress",
    "widthwise.runs.train",
    "widthwise.training.distributed",
)

_context = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Imports torch, once, in the process from which all others are forked. It runs no model, and has no threads."""
    _context.set_forkserver_preload(list(PRELOADED))
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=os.pathsep.join(map(str, SOURCES)), OMP_NUM_THREADS="1")
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Launch:
    """Processes of one launch. At the end of its block none of them is left."""

    def __init__(self, n: int, work: Callable[..., None], *arguments: Any, errors: Path):
        """Starts `work(*arguments)` in n processes. errors: a folder for what they print."""
        start_server()
        errors.mkdir(parents=True, exist_ok=True)
        common = {
            "WORLD_SIZE": n,
            "LOCAL_WORLD_SIZE": n,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "TORCHELASTIC_RESTART_COUNT": 0,
        }
        self._errors = [errors / f"{rank}.txt" for rank in range(n)]
        self.processes = [
            _context.Process(target=_be_one, args=({**common, "RANK": rank, "LOCAL_RANK": rank}, file, work, arguments))
            for rank, file in enumerate(self._errors)
        ]
        for process in self.processes:
            process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Kills who is left with SIGKILL."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def wait_for_one(self) -> None:
        """Returns when one of them has ended; else shows where they hang."""
        if not multiprocessing.connection.wait([process.sentinel for process in self.processes], 60):
            raise AssertionError(self.stacks())

    def wait_for_others(self, rank: int) -> None:
        """Returns when all but this one have ended."""
        for each, process in enumerate(self.processes):
            if each != rank:
                process.join(60)

    def wait(self, seconds: float) -> None:
        """Returns when all have ended, or after this time."""
        until = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))

    def codes(self, within_seconds: float = 120) -> list[int | None]:
        """Waits; returns the exit codes: of who was killed -signal, of who is still at work None."""
        self.wait(within_seconds)
        return [process.exitcode for process in self.processes]

    def stacks(self) -> str:
        """Where the threads of those that have not ended are."""
        for process in self.processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR2)
        time.sleep(1)
        return self.everything()

    def said(self, rank: int) -> str:
        """What a process has printed so far."""
        return self._errors[rank].read_text() if self._errors[rank].exists() else ""

    def errors(self) -> list[tuple[int, str]]:
        """The error lines of all, with who said them."""
        lines = [(rank, line) for rank in range(len(self.processes)) for line in self.said(rank).splitlines()]
        assert not any(line.startswith("Traceback") for _, line in lines), self.everything()
        return [(rank, line.removeprefix("error: ")) for rank, line in lines if line.startswith("error: ")]

    def everything(self) -> str:
        """What all of them have printed, for a test that fails."""
        printed = [
            f"--- {rank}, exit code {process.exitcode}\n{self.said(rank)}"
            for rank, process in enumerate(self.processes)
        ]
        return "\n".join(printed)


def launched(
    n: int, work: Callable[..., None], *arguments: Any, errors: Path, codes: list[int] | None = None
) -> Launch:
    """As `Launch`, after all have ended: with these exit codes, if any are given."""
    with Launch(n, work, *arguments, errors=errors) as launch:
        found = launch.codes()
        assert None not in found, launch.stacks()
    assert codes in (None, found), launch.everything()
    return launch


def said_by_script(n: int, script: Path, *arguments: object, folder: Path) -> list[str]:
    """What each of n processes prints that run a script in a folder, which need not exist, as `python SCRIPT` would.

    Raises AssertionError with all that they print where one fails.
    """
    folder.mkdir(exist_ok=True)
    said = folder.parent / f"{folder.name}_said"
    with Launch(n, _run_script, script, list(map(str, arguments)), folder, errors=said) as launch:
        codes = launch.codes(within_seconds=400)
        assert codes == [0] * n, launch.stacks() if None in codes else launch.everything()
    return [launch.said(rank) for rank in range(n)]


def command_in(folder: Path, *arguments: str) -> None:
    """`widthwise ARGUMENTS` in that folder."""
    from widthwise.__main__ import main

    os.chdir(folder)
    sys.argv[:] = ["widthwise", *arguments]
    main()


def _run_script(script: Path, arguments: list[str], folder: Path) -> None:
    os.chdir(folder)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def _be_one(environment: dict[str, Any], file: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.update({name: str(value) for name, value in environment.items()})
    prepare(file)
    work(*arguments)


def prepare(file: Path) -> None:
    """Makes a forked process one that a test can look at: it prints into a file and does not wait for the disk."""
    import faulthandler

    import torch

    with open(file, "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # multiprocessing prints tracebacks through these, which are bound to the server's.
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, sys.stderr)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.fsync = lambda handle: None
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
