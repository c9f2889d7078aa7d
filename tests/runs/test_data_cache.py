"""Data are read and checked once, as long as no file of them changes, and which files a run is bound to."""

import pickle
import shutil

from boxes import refusal
from file_operations import flip_a_bit

from widthwise.data.config import DataCache, DataConfig, MixtureConfig, open_data

SYNTHETIC = DataConfig(corpus="synthetic", tokenizer="bytes")
CHECKS = ["checking the data", "checking the tokens"]


class Reader:
    """Opens and checks data, and remembers the stages of the work."""

    def __init__(self):
        self.stages: list[str] = []

    def read(self, data_cache: DataCache, section):
        data = data_cache.open(section, self.note)
        data_cache.check(section, self.note)
        return data

    def note(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        if self.stages[-1:] != [stage]:
            self.stages.append(stage)


def test_the_second_run_reads_nothing():
    data_cache, reader = DataCache(), Reader()
    first = reader.read(data_cache, SYNTHETIC)
    before = list(reader.stages)
    assert before[-2:] == CHECKS
    assert reader.read(data_cache, SYNTHETIC) is first
    assert reader.stages == before
    in_another_process = Reader()
    in_another_process.read(pickle.loads(pickle.dumps(data_cache)), SYNTHETIC)
    assert not set(CHECKS) & set(in_another_process.stages)


def test_of_a_mixture_every_source_counts(tmp_path):
    folder = shutil.copytree(open_data(SYNTHETIC).path, tmp_path / "data")
    sources = {"a": {"corpus": "synthetic", "tokenizer": "bytes", "weight": 1}, "b": {"path": str(folder), "weight": 2}}
    data_cache, section = DataCache(), MixtureConfig.model_validate({"mixture": sources})
    reader = Reader()
    reader.read(data_cache, section)
    before = list(reader.stages)
    assert reader.read(data_cache, section).weights == {"a": 1, "b": 2}
    assert reader.stages == before
    (file,) = folder.glob("train*.bin")
    flip_a_bit(file)
    assert "checksum differs" in refusal(reader.read, data_cache, section)
