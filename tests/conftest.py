"""What every test may rely on: its own cache folder, no network, no waiting for the disk, torch as it is when imported;
and fp64, a finished run or a browser for who asks."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chromium_pipe import CHROMIUM, Page, chromium_page

from widthwise.runs import environment

# A shell starts a background job with Ctrl-C ignored, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT):
    signal.signal(_number, signal.SIG_DFL)
# Without bytecode on disk, every process that a test starts would compile the package, and every worker all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
# Tiny models are slower on several threads, and many times slower on a busy machine. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Other folders use the small models of every kind, of transformers too, and the questions.
sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("model", "evaluation", "interop")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="files, and the tests of each, in an order drawn from SEED")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage collection looks at what is imported and collected here: half a million objects, which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := config.getoption("--shuffle"):
        Random(seed).shuffle(items)
        places: dict[Path, int] = {}
        items.sort(key=lambda item: places.setdefault(item.path, len(places)))


@pytest.fixture(scope="session", autouse=True)
def _patches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A separate cache folder, hundreds of tiny checkpoints that do not wait for the disk, and the commit read once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIDTHWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(os, "fsync", lambda handle: None)  # what is synced matters after a power cut only
        patch.setattr(environment, "_git", cache(environment._git))  # two processes for each run otherwise
        yield


@pytest.fixture(autouse=True)
def _torch_is_left_as_it_was() -> Iterator[None]:
    """A test that leaves autocast entered, or gradients off, fails; else one long after it in the same worker would."""
    before = _torch_state()
    yield
    if before is not None:
        assert _torch_state() == before


def _torch_state() -> dict[str, Any] | None:
    """None where torch was not imported."""
    if (torch := sys.modules.get("torch")) is None:
        return None
    n_autocasts = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return {
        "autocasts entered": n_autocasts,
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "type": torch.get_default_dtype(),
    }


@pytest.fixture
def float64() -> Iterator[None]:
    """Everything is computed in float64, the rotary tables too."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny recipe, which tests only read."""
    from tiny_runs import tiny_recipe

    from widthwise.runs.train import train

    path = tmp_path_factory.mktemp("runs") / "run"
    train(tiny_recipe(), path)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page in a headless Chromium; goes with the mark IN_CHROMIUM."""
    with chromium_page(str(CHROMIUM), tmp_path_factory.mktemp("profile")) as page:
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        yield page
