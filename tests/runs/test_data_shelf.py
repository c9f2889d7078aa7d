"""Data are read and checked once, as long as no file of them changes."""

import pickle
from pathlib import Path

import pytest

from widthwise.config_io import UserError
from widthwise.data.config import DataConfig, MixtureConfig, open_data
from widthwise.runs.data_shelf import DataShelf

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


def both(shelf: DataShelf, section, progress):
    data = shelf.open(section, progress)
    shelf.check(section, progress)
    return data


def test_the_second_run_reads_nothing(stages, progress):
    shelf = DataShelf()
    first = both(shelf, SYNTHETIC, progress)
    before = list(stages)
    assert before[-2:] == CHECKS
    assert both(shelf, SYNTHETIC, progress) is first
    assert stages == before


def test_another_process_checks_nothing_again(stages, progress):
    shelf = DataShelf()
    both(shelf, SYNTHETIC, progress)
    del stages[:]
    both(pickle.loads(pickle.dumps(shelf)), SYNTHETIC, progress)
    assert not set(CHECKS) & set(stages)


def test_each_shelf_checks_for_itself(folder, stages, progress):
    for _ in range(2):
        both(DataShelf(), DataConfig(path=str(folder)), progress)
    assert stages == 2 * CHECKS


def test_a_file_that_changes_between_two_runs_is_checked_again(folder, stages, progress):
    shelf, section = DataShelf(), DataConfig(path=str(folder))
    both(shelf, section, progress)
    damage(folder)
    with pytest.raises(UserError, match="checksum differs"):
        both(shelf, section, progress)


def test_what_failed_its_check_is_not_taken_for_checked(folder, progress):
    damage(folder)
    shelf, section = DataShelf(), DataConfig(path=str(folder))
    for _ in range(2):
        with pytest.raises(UserError, match="checksum differs"):
            both(shelf, section, progress)


def test_a_missing_file_is_noticed(folder, progress):
    shelf, section = DataShelf(), DataConfig(path=str(folder))
    both(shelf, section, progress)
    (file,) = folder.glob("train*.bin")
    file.unlink()
    with pytest.raises(UserError, match="train"):
        both(shelf, section, progress)


def test_of_a_mixture_every_source_counts(folder, stages, progress):
    sources = {"a": {"corpus": "synthetic", "tokenizer": "bytes", "weight": 1}, "b": {"path": str(folder), "weight": 2}}
    shelf, section = DataShelf(), MixtureConfig.model_validate({"mixture": sources})
    both(shelf, section, progress)
    before = list(stages)
    assert both(shelf, section, progress).weights == {"a": 1, "b": 2}
    assert stages == before
    damage(folder)
    with pytest.raises(UserError, match="checksum differs"):
        both(shelf, section, progress)
