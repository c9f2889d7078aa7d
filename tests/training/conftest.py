"""One prepared corpus for all tests of training."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIDTHWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
