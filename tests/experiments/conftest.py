"""What the tests of sweeps share."""

from collections.abc import Iterator

import postgres_server
import pytest


@pytest.fixture(scope="package")
def postgres() -> Iterator[str]:
    """The address of a database on a real PostgreSQL server."""
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with postgres_server.running_server() as url:
        yield url
