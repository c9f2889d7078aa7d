"""Data are read and checked once, as long as no file of them changes, and which files a run is bound to."""

import pickle
import shutil
from pathlib import Path

import pytest
from boxes import refusal

from widthwise.config_io import to_data
from widthwise.data.config import DataCache, DataConfig, MixtureConfig, open_data
from widthwise.data.mixture import MixedData
from widthwise.data.prepare import prepare
from widthwise.data.prepared import PreparedData
from widthwise.data.shards import ENDING

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


@pytest.fixture
def data(tmp_path) -> PreparedData:
    return prepare("synthetic", tmp_path / "out", tokenizer="bytes")


def without_names(data: PreparedData, folder) -> PreparedData:
    """As a folder that was prepared before names were kept."""
    shutil.copytree(data.path, folder, ignore=shutil.ignore_patterns(f"*{ENDING}"))
    files = {name: record for name, record in data.manifest.files.items() if not name.endswith(ENDING)}
    return PreparedData(folder, data.manifest.model_copy(update={"files": files}))


def test_names_of_documents_are_no_part_of_what_a_run_is_bound_to(data, tmp_path):
    old = without_names(data, tmp_path / "old")
    assert len(old.manifest.files) == len(data.manifest.files) - 2
    assert old.identity == data.identity
    mixtures = [MixedData({"a": first, "b": data}, {"a": 1, "b": 2}) for first in (old, data)]
    assert mixtures[0].identity == mixtures[1].identity


def test_every_file_that_is_trained_on_is(data):
    found = to_data(data.identity)["files"]
    names = ["held_out.bin", "held_out.idx", "tokenizer_spec.json", "train.bin", "train.idx"]
    assert found == {name: data.manifest.files[name].sha256 for name in names}
