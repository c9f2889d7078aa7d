from pathlib import Path

import pytest
from hypothesis import settings

from widthwise.data.corpus import named_corpus
from widthwise.data.prepare import prepare

# No time limit for an example: the tests share a machine with others and touch the disk.
settings.register_profile("data", deadline=None)
settings.load_profile("data")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus. Tests copy it before they change it."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    prepare(named_corpus("synthetic"), out, tokenizer="bytes")
    return out


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that replaces the user's cache."""
    monkeypatch.setenv("WIDTHWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
