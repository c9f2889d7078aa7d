"""Encoding of documents with several processes of this machine.

A worker is a process `python -m widthwise.data.workers SPEC FILE SOCKET`, which receives batches of documents and
returns them encoded. The main process can be any script, and its workers end when it ends.
"""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue

from widthwise.data.documents import Document, Entry
from widthwise.data.encode import EncodedBatch, batches_of, encode_batch
from widthwise.data.json_tokenizer import restore_tokenizer
from widthwise.mistakes import UserError


def encode_with_workers(
    entries: Iterable[tuple[Document, Entry]], spec: str, file: Path, n_workers: int
) -> Generator[EncodedBatch]:
    """Encode documents as `encode` does, in order, with `n_workers` processes.

    spec, file: the saved tokenizer. Raises UserError as `encode`, and if a worker dies.
    """
    idle: SimpleQueue[Connection] = SimpleQueue()
    running: deque[Future[EncodedBatch]] = deque()

    def run(batch: list[tuple[Document, Entry]]) -> EncodedBatch:
        connection = idle.get()
        try:
            connection.send(batch)
            encoded = connection.recv()
        except (EOFError, OSError):
            raise UserError("workers: one of them died; use fewer if memory is short") from None
        finally:
            idle.put(connection)
        if isinstance(encoded, UserError):
            raise encoded
        return encoded

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(n_workers))
        for _ in range(n_workers):
            idle.put(_start_worker(spec, file, stack))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for batch in batches_of(entries):
            running.append(pool.submit(run, batch))
            if len(running) > 2 * n_workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _start_worker(spec: str, file: Path, stack: ExitStack) -> Connection:
    """Start a process that ends with the stack, and return the connection to it."""
    connection, of_worker = Pipe()
    # -P: a file of the working folder must not take the place of a library.
    command = [sys.executable, "-P", "-m", "widthwise.data.workers", spec, str(file), str(of_worker.fileno())]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}  # the workers are the parallelism
    with of_worker:
        worker = subprocess.Popen(command, env=environment, pass_fds=[of_worker.fileno()], start_new_session=True)
    stack.enter_context(worker)
    stack.callback(worker.kill)  # before the stack waits for it, so that no thread waits for its answer
    return connection


def work(spec: str, file: Path, connection: Connection) -> None:
    """Encode batches until the process that sends them ends."""
    tokenizer = restore_tokenizer(spec, file)
    while True:
        try:
            batch = connection.recv()
        except (EOFError, OSError):
            return
        try:
            encoded = encode_batch(batch, tokenizer)
        except UserError as error:
            encoded = error
        connection.send(encoded)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), Connection(int(sys.argv[3])))
