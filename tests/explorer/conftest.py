"""The page of a recipe, served."""

import threading
from collections.abc import Iterator

import pytest

from widthwise.explorer.server import Answers, ExplorerServer


@pytest.fixture(scope="module")
def server() -> Iterator[ExplorerServer]:
    with ExplorerServer(Answers("x_200m", ["model.n_layers=9"])) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(timeout=30)
