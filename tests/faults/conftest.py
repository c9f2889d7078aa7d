import pytest
import ranks


@pytest.fixture(scope="session", autouse=True)
def _server(_own_cache: None) -> None:
    ranks.start_server()
