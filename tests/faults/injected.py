"""What a process of a launch does, and what goes wrong in it. Everything here runs in forked processes (ranks.py)."""

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from widthwise.recipe.recipe import Recipe
from widthwise.runs.train import train_or_resume

Fault = Callable[[], None]
"""Makes something go wrong later, in the process that calls it."""


def fault(work: Callable[..., None]) -> Callable[..., Fault]:
    """Makes of `work` a function of its arguments that gives the fault; pickle finds `work` under the name `_WORK`."""
    work.__name__ = work.__qualname__ = f"_{work.__name__}"
    globals()[work.__name__] = work
    return partial(partial, work)


def rank() -> int:
    return int(os.environ["RANK"])


def train_run(recipe: Recipe, path: Path, *faults: Fault) -> None:
    """Trains, or goes on with, the run in `path`, with faults."""
    for fault in faults:
        fault()
    train_or_resume(recipe, path)


def run_command(arguments: tuple[str, ...], *faults: Fault) -> None:
    """`widthwise ARGUMENTS`, with faults."""
    from widthwise.__main__ import main

    for fault in faults:
        fault()
    sys.argv[:] = ["widthwise", *arguments]
    main()


def run_agent(
    node: int, n_nodes: int, n_local: int, port: int, max_restarts: int, arguments: tuple[str, ...], *faults: Fault
) -> None:
    """What torchrun does on one machine, with workers that are forked: `widthwise ARGUMENTS` in each."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.setsid()  # a group of its own, with the workers
    config = LaunchConfig(
        min_nodes=n_nodes,
        max_nodes=n_nodes,
        nproc_per_node=n_local,
        run_id="faults",
        rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"is_host": str(node == 0)},
        local_addr="127.0.0.1",
        max_restarts=max_restarts,
        start_method="fork",
        signals_to_handle="SIGTERM,SIGINT,SIGUSR1",
    )
    try:
        elastic_launch(config, _run_worker)(arguments, *faults)
    except (ChildFailedError, SignalException):
        sys.exit(1)


def _run_worker(arguments: tuple[str, ...], *faults: Fault) -> None:
    try:
        run_command(arguments, *faults)
    except SystemExit as left:
        if left.code:  # of a function that ended well the agent waits for a value
            raise


@fault
def on_restart(wanted: int, fault: Fault) -> None:
    """When torchrun has started the processes again so many times."""
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == wanted:
        fault()


@fault
def on_rank(wanted: int, fault: Fault) -> None:
    if rank() == wanted:
        fault()


def before_each(owner: Any, name: str, event: Callable[..., object]) -> None:
    """Calls `event` before each call of that function of a module or class, with its arguments."""
    function = getattr(owner, name)

    def interrupted(*arguments: Any) -> Any:
        event(*arguments)
        return function(*arguments)

    setattr(owner, name, interrupted)


@fault
def at_step(step: int, event: Fault) -> None:
    """Before the process makes that step."""
    from widthwise.training.train_state import TrainState

    before_each(TrainState, "train_step", lambda state, number, *_: event() if number == step else None)


@fault
def at_start(event: Fault) -> None:
    """Before the command is read."""
    from widthwise.__main__ import handle_signals, leave

    handle_signals(leave)
    event()


@fault
def before_joining(name: str, event: Fault) -> None:
    """Before the process calls that function of `training.distributed`."""
    from widthwise.training import distributed

    before_each(distributed, name, lambda *_: event())


@fault
def before_data(event: Fault) -> None:
    """Before the process opens the data, which the first one does while the others wait."""
    from widthwise.data import config

    before_each(config, "open_data", lambda *_: event())


@fault
def send(number: int, times: int = 1) -> None:
    """A signal to this process."""
    for _ in range(times):
        os.kill(os.getpid(), number)
        time.sleep(0.01)  # two at once are one


@fault
def send_to_agent(number: int) -> None:
    """A signal to torchrun's process, once."""
    os.kill(os.getppid(), number)


@fault
def send_to_group(number: int, times: int) -> None:
    """Signals to torchrun's process and its workers, a moment after each other while these go on."""

    def send_all() -> None:
        for _ in range(times):
            os.killpg(0, number)
            time.sleep(0.1)

    threading.Thread(target=send_all, daemon=True).start()


def hang() -> None:
    time.sleep(600)


def slow_start() -> None:
    time.sleep(6)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@fault
def killed_after(n_steps: int, seconds: float) -> None:
    """A SIGKILL so many seconds after this process has begun with so many steps; of none, after it has started."""
    from widthwise.training.train_state import TrainState

    n_begun, killer = itertools.count(1), threading.Timer(seconds, die)
    killer.daemon = True
    before_each(TrainState, "train_step", lambda *_: killer.start() if next(n_begun) == n_steps else None)
    if n_steps == 0:
        killer.start()


@fault
def full_disk(step: int) -> None:
    """The tensors of that step's checkpoint do not fit on this process's disk."""
    from widthwise.training import checkpoint_folder

    def fail(tensors: Any, path: Path) -> None:
        if f"{step:08d}" in str(path):
            raise OSError(28, "No space left on device")

    before_each(checkpoint_folder, "save_file", fail)


def slow_disk() -> None:
    """Writing the tensors of a checkpoint takes as long as several steps."""
    from widthwise.training import checkpoint_folder

    before_each(checkpoint_folder, "save_file", lambda *_: time.sleep(0.3))
