"""Preparing a folder of files with several workers of this machine.

A worker is a process `python -m widthwise.data.workers FOLDER`, which tokenizes one part after the other that no other
worker has. So the process that prepares may be any script, and ends all workers with itself.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from filelock import FileLock, Timeout

from widthwise.config_io import UserError
from widthwise.data.documents import ProgressCallback, ignore_progress
from widthwise.data.parts import begin, fill_from_parts, progress_of, shards_folder, tokenize_part
from widthwise.data.prepare import PLAN, PreparationPlan, read_plan
from widthwise.data.prepared import PreparedData, assemble, parts_folder
from widthwise.files import writing

MISTAKE = 2
"""The exit code of a worker that was ended by a UserError, whose message it writes to standard output."""
SECONDS_BETWEEN_LOOKS = 0.5


def prepare_with_workers(
    plan: PreparationPlan, out: Path | str, n_workers: int, progress: ProgressCallback = ignore_progress
) -> PreparedData:
    """Prepare as `prepare` does, byte for byte, with `n_workers` processes that read and tokenize parts.

    Finished parts are kept beside `out` until it is whole, so that the same preparation, started again, goes on where
    it was killed. Raises UserError as `prepare`, and where a worker dies.
    """
    if n_workers < 1:
        raise UserError(f"workers: got {n_workers}; expected at least 1")
    out = Path(out).resolve()
    parts = parts_folder(out)

    def fill(folder: Path) -> None:
        with writing(parts):
            if (parts / PLAN).exists() and read_plan(parts) != plan:
                shutil.rmtree(parts)
            parts.mkdir(parents=True, exist_ok=True)
        begin(plan, parts, progress)
        _tokenize(plan, parts, min(n_workers, plan.n_parts), progress)
        fill_from_parts(parts, folder, progress)

    return assemble(out, fill)


def _tokenize(plan: PreparationPlan, parts: Path, n_workers: int, progress: ProgressCallback) -> None:
    """Has workers tokenize all parts. Raises UserError as soon as one of them fails, and ends the others."""
    # -P: a file of the working folder must not take the place of a library.
    command = [sys.executable, "-P", "-m", "widthwise.data.workers", str(parts)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}  # the workers are the parallelism
    pipe, log = subprocess.PIPE, parts / "workers.log"
    with ExitStack() as stack:
        errors = stack.enter_context(open(log, "ab"))
        workers: list[subprocess.Popen[str]] = []
        for _ in range(n_workers):
            worker = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=errors, env=environment, start_new_session=True, text=True
            )
            workers.append(stack.enter_context(worker))
            stack.callback(worker.kill)  # before it is waited for
        while None in (codes := [worker.poll() for worker in workers]) and not any(codes):
            _show(plan, parts, progress)
            time.sleep(SECONDS_BETWEEN_LOOKS)
        _show(plan, parts, progress)
        for worker, code in zip(workers, codes):
            if code and code < 0:
                raise UserError("workers: one of them died; use fewer if memory is short")
            if code == MISTAKE:
                raise UserError(worker.communicate()[0])
            if code:
                last_line = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise UserError(f"workers: one of them failed ({last_line}); see {log}")


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


def work(parts: Path) -> int:
    """Tokenize the parts that no other worker has; return the exit code of this one."""
    try:
        for part in range(read_plan(parts).n_parts):
            lock = shards_folder(parts, part).with_name("lock")
            lock.parent.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(lock, timeout=0):
                    tokenize_part(parts, part)
            except Timeout:
                continue
    except UserError as error:
        sys.stdout.write(f"{error}\n")
        return MISTAKE
    return 0


def _end_with_parent() -> None:
    """Standard input is a pipe from the process that prepares, and ends with it, however that ends."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(work(Path(sys.argv[1])))
