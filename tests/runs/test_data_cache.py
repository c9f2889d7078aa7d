"""Data are read and checked once, as long as no file of them changes, and which files a run is bound to."""

import pickle
from pathlib import Path

import pytest
from boxes import refusal

from widthwise.data.config import DataCache, DataConfig, MixtureConfig, open_data

SYNTHETIC = DataConfig(corpus="synthetic", tokenizer="bytes")
CHECKS = ["checking the data", "checking the tokens"]


@pytest.fixture
def stages() -> list[str]:
    return []


@pytest.fixture
def progress(stages):
    def note(stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        if stages[-1:] != [stage]:
            stages.append(stage)

    return note


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of prepared data, which may be damaged."""
    source = open_data(SYNTHETIC).path
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def damage(folder: Path) -> None:
    """Another token, and the same size."""
    (file,) = folder.glob("train*.bin")
    content = bytearray(file.read_bytes())
    content[10] ^= 1
    file.write_bytes(content)


def both(data_cache: DataCache, section, progress):
    data = data_cache.open(section, progress)
    data_cache.check(section, progress)
    return data


def test_the_second_run_reads_nothing(stages, progress):
    data_cache = DataCache()
    first = both(data_cache, SYNTHETIC, progress)
    before = list(stages)
    assert before[-2:] == CHECKS
    assert both(data_cache, SYNTHETIC, progress) is first
    assert stages == before
    del stages[:]
    both(pickle.loads(pickle.dumps(data_cache)), SYNTHETIC, progress)  # in another process
    assert not set(CHECKS) & set(stages)


def test_of_a_mixture_every_source_counts(folder, stages, progress):
    sources = {"a": {"corpus": "synthetic", "tokenizer": "bytes", "weight": 1}, "b": {"path": str(folder), "weight": 2}}
    data_cache, section = DataCache(), MixtureConfig.model_validate({"mixture": sources})
    both(data_cache, section, progress)
    before = list(stages)
    assert both(data_cache, section, progress).weights == {"a": 1, "b": 2}
    assert stages == before
    damage(folder)
    assert "checksum differs" in refusal(both, data_cache, section, progress)
