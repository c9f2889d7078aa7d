"""Preparing a folder of files with several workers of this machine, run by datatrove (extra `prep`).

datatrove runs in a separate process, `python -m widthwise.data.workers FOLDER WORKERS`, so that its log and its
workers stay apart from the process that prepares: that one may be any script, and ends this one with all its workers.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from widthwise.config_io import UserError, require
from widthwise.data.documents import ProgressCallback, ignore_progress
from widthwise.data.parts import TokenizePart, begin, fill_from_parts, progress_of, shards_folder
from widthwise.data.prepare import PLAN, PreparationPlan, read_plan
from widthwise.data.prepared import PreparedData, assemble
from widthwise.files import writing

MISTAKE = 2
"""The exit code where a UserError ended datatrove's process, whose message that one writes to standard output."""
LONGEST_TMPDIR = 107 - len("/pymp-XXXXXXXX/listener-XXXXXXXX")
"""Bytes: Linux allows 107 in the path of a socket, and datatrove's workers have theirs there."""
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_END = 10.0


def prepare_with_workers(
    plan: PreparationPlan, out: Path | str, n_workers: int, progress: ProgressCallback = ignore_progress
) -> PreparedData:
    """Prepare as `prepare` does, byte for byte, with `n_workers` processes that read and tokenize parts.

    Finished parts are kept beside `out` until it is whole, so that the same preparation, started again, goes on where
    it was killed. Raises UserError as `prepare`, where datatrove is not installed, and where a worker dies.
    """
    if n_workers < 1:
        raise UserError(f"workers: got {n_workers}; expected at least 1")
    require("datatrove.executor.local", "prep")
    out = Path(out).resolve()
    parts = out.parent / f".{out.name}.parts"

    def fill(folder: Path) -> None:
        with writing(parts):
            if (parts / PLAN).exists() and read_plan(parts) != plan:
                shutil.rmtree(parts)
            parts.mkdir(parents=True, exist_ok=True)
        begin(plan, parts, progress)
        _tokenize(plan, parts, n_workers, progress)
        fill_from_parts(parts, folder, progress)

    prepared = assemble(out, fill)
    shutil.rmtree(parts, ignore_errors=True)
    return prepared


def _tokenize(plan: PreparationPlan, parts: Path, n_workers: int, progress: ProgressCallback) -> None:
    """Run datatrove in a separate process, `main`, which reports errors on its standard output."""
    # -P: a file of the working folder must not take the place of a library.
    command = [sys.executable, "-P", "-m", "widthwise.data.workers", str(parts), str(n_workers)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}  # the workers are the parallelism
    with (
        open(parts / "datatrove.log", "ab") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            while _is_running(process):
                _show(plan, parts, progress)
            _show(plan, parts, progress)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        said = process.stdout.read().decode().strip()  # ends now that no worker holds it any more
    if process.returncode == MISTAKE:
        raise UserError(said)
    if process.returncode:
        raise UserError(f"workers: {said or 'ended'}; what they said last is in {parts / 'datatrove.log'}")


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(SECONDS_BETWEEN_LOOKS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _show(plan: PreparationPlan, parts: Path, progress: ProgressCallback) -> None:
    """Bytes of text so far, of an estimate from the parts that are done."""
    reports = [progress_of(parts, part) for part in range(plan.n_parts)]
    n_bytes, n_tokens = sum(report.n_bytes for report in reports), sum(report.n_train_tokens for report in reports)
    done = [part for part in range(plan.n_parts) if shards_folder(parts, part).is_dir()]
    n_source_bytes = sum(plan.n_bytes_of(part) for part in done)
    total: float | None = None
    if plan.max_tokens is not None:
        total = n_bytes * plan.max_tokens / n_tokens if n_tokens else None
    elif n_source_bytes:
        in_all = sum(file.n_bytes for file in plan.files)
        total = sum(reports[part].n_bytes for part in done) / n_source_bytes * in_all
    progress("tokenizing", n_bytes, None if total is None else max(round(total), n_bytes))


def main(folder: str, n_workers: int) -> int:
    """Runs in datatrove's process the tasks that are not done; returns the exit code."""
    n_bytes = len(os.fsencode(tempfile.gettempdir()))
    if n_bytes > LONGEST_TMPDIR:
        _say(f"TMPDIR: got a path of {n_bytes} bytes; must be at most {LONGEST_TMPDIR}, for the sockets of workers")
        return MISTAKE
    n_parts = read_plan(Path(folder)).n_parts
    executor = require("datatrove.executor.local", "prep").LocalPipelineExecutor(
        [TokenizePart(folder)],
        tasks=n_parts,
        workers=min(n_workers, n_parts),
        logging_dir=str(Path(folder).resolve() / "datatrove"),
    )
    failures: list[Exception] = []

    def run() -> None:
        try:
            executor.run()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    _wait(thread)
    if thread.is_alive():
        _say("one of them died; use fewer if memory is short")
        return 1
    for error in failures:
        _say(str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        return MISTAKE if isinstance(error, UserError) else 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _wait(thread: threading.Thread) -> None:
    """Until the thread ends, or cannot: datatrove's pool waits forever for a worker that was killed."""
    multiprocess = require("multiprocess", "prep")
    seen: set[int] = set()
    while thread.is_alive():
        thread.join(SECONDS_BETWEEN_LOOKS)
        alive = {child.pid for child in multiprocess.active_children()}
        if seen - alive:
            thread.join(SECONDS_TO_END)  # where the pool ends its workers, it is about to end itself
            return
        seen |= alive


def _end_with_parent() -> None:
    """Standard input is a pipe from the process that prepares, and ends with it, however that ends."""
    os.read(0, 1)  # sys.stdin would be locked while it is read, and a fork, which closes it, would wait for the lock
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os._exit(main(sys.argv[1], int(sys.argv[2])))  # does not wait for a pool that waits for the dead
