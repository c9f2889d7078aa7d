import shutil

import pytest

from widthwise.config_io import to_data
from widthwise.data.mixture import MixedData
from widthwise.data.names import ENDING
from widthwise.data.prepare import prepare
from widthwise.data.prepared import PreparedData
from widthwise.runs.data_identity import identity_of


@pytest.fixture
def data(tmp_path) -> PreparedData:
    return prepare("synthetic", tmp_path / "out", tokenizer="bytes")


def without_names(data: PreparedData, folder) -> PreparedData:
    """As a folder that was prepared before names were kept."""
    shutil.copytree(data.path, folder, ignore=shutil.ignore_patterns(f"*{ENDING}"))
    files = data.manifest.trained_on
    return PreparedData(folder, data.manifest.model_copy(update={"files": files}))


def test_names_of_documents_are_no_part_of_what_a_run_is_bound_to(data, tmp_path):
    old = without_names(data, tmp_path / "old")
    assert len(old.manifest.files) == len(data.manifest.files) - 2
    assert identity_of(old) == identity_of(data)
    mixtures = [MixedData({"a": first, "b": data}, {"a": 1, "b": 2}) for first in (old, data)]
    assert identity_of(mixtures[0]) == identity_of(mixtures[1])


def test_every_file_that_is_trained_on_is(data):
    found = to_data(identity_of(data))["files"]
    names = ["held_out.bin", "held_out.idx", "tokenizer_spec.json", "train.bin", "train.idx"]
    assert found == {name: data.manifest.files[name].sha256 for name in names}
