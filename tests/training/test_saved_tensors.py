"""Tensors that lie in one file, or by rows in several."""

import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.training.saved_tensors import SavedTensors, file_names, write_one_by_one, write_tensors

Tensors = dict[str, Tensor]


def tensors() -> Tensors:
    """One of 7 rows; one of 2, so that some of 5 files have none of it; bf16; and one without rows."""
    return {
        "matrix": torch.arange(21.0).view(7, 3),
        "pair": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
        "cube": torch.arange(24.0, dtype=torch.float64).view(4, 3, 2),
        "step": torch.tensor(5.0),
    }


def parts_of(whole: Tensors, n_shards: int) -> list[Tensors]:
    """By torch's own division into chunks."""
    parts: list[Tensors] = [{} for _ in range(n_shards)]
    for name, tensor in whole.items():
        chunks = tensor.chunk(n_shards) if tensor.shape else (tensor,) * n_shards
        for shard in range(n_shards):
            parts[shard][name] = chunks[shard] if shard < len(chunks) else tensor[:0]
    return parts


def written(folder: Path, parts: list[Tensors]) -> Path:
    for name, part in zip(file_names("model", len(parts)), parts):
        write_tensors(part, folder / name)
    return folder


@pytest.mark.parametrize("n_shards", [1, 2, 3, 5])
def test_whole_tensors_and_shapes_come_from_any_number_of_files(tmp_path: Path, n_shards: int) -> None:
    expected = tensors()
    written(tmp_path, parts_of(expected, n_shards))
    with SavedTensors.opened(tmp_path, "model", n_shards) as saved:
        assert saved.names == expected.keys()
        saved.check({name: tensor.shape for name, tensor in expected.items()})
        for name, tensor in expected.items():
            found = saved.whole(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)


@pytest.fixture(scope="module", params=[1, 2, 3, 5])
def in_files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    return written(tmp_path_factory.mktemp("files"), parts_of(tensors(), request.param)), request.param


@settings(max_examples=20)
@given(st.integers(0, 7), st.integers(0, 7))
def test_rows_are_read_from_the_files_that_hold_them(in_files: tuple[Path, int], a: int, b: int) -> None:
    folder, n_shards = in_files
    rows = slice(min(a, b), max(a, b))
    with SavedTensors.opened(folder, "model", n_shards) as saved:
        found = saved.rows("matrix", rows)
    assert found.shape == (rows.stop - rows.start, 3)
    assert torch.equal(found, tensors()["matrix"][rows])


def test_the_files_of_several_are_numbered() -> None:
    assert file_names("model", 1) == ["model.safetensors"]
    assert file_names("optimizer", 2) == [
        "optimizer-00001-of-00002.safetensors",
        "optimizer-00002-of-00002.safetensors",
    ]


def refusal(folder: Path, n_shards: int, wanted: dict[str, torch.Size]) -> str:
    with pytest.raises(UserError) as caught, SavedTensors.opened(folder, "model", n_shards) as saved:
        saved.check(wanted)
    return str(caught.value)


def shapes() -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors().items()}


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    first, _, third = parts_of(tensors(), 3)
    written(tmp_path, [first, first, third])
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors: cannot be read" in refusal(tmp_path, 3, shapes())


def test_a_file_that_holds_other_tensors_is_named(tmp_path: Path) -> None:
    first, second = parts_of(tensors(), 2)
    del second["pair"]
    written(tmp_path, [first, second])
    found = refusal(tmp_path, 2, shapes())
    assert found.endswith(
        "model-00002-of-00002.safetensors: holds other tensors than model-00001-of-00002.safetensors, such as pair"
    )


def test_a_tensor_that_is_missing_or_too_many_is_named(tmp_path: Path) -> None:
    written(tmp_path, parts_of(tensors(), 2))
    assert "other has shape None; must be (3,)" in refusal(tmp_path, 2, {**shapes(), "other": torch.Size([3])})
    wanted = {name: shape for name, shape in shapes().items() if name != "matrix"}
    assert "matrix has shape (7, 3); must be None" in refusal(tmp_path, 2, wanted)


def test_another_shape_is_named(tmp_path: Path) -> None:
    written(tmp_path, parts_of(tensors(), 2))
    assert "matrix has shape (7, 3); must be (6, 3)" in refusal(tmp_path, 2, {**shapes(), "matrix": torch.Size([6, 3])})


@pytest.mark.parametrize("rows", [(3, 4), (7, 0), (4, 2)])
def test_rows_that_are_divided_otherwise_are_refused(tmp_path: Path, rows: tuple[int, int]) -> None:
    first, second = parts_of(tensors(), 2)
    first["matrix"], second["matrix"] = torch.zeros(rows[0], 3), torch.zeros(rows[1], 3)
    written(tmp_path, [first, second])
    assert "matrix has shape" in refusal(tmp_path, 2, shapes())


def test_columns_that_differ_between_files_are_refused(tmp_path: Path) -> None:
    first, second = parts_of(tensors(), 2)
    second["matrix"] = torch.zeros(3, 5)
    written(tmp_path, [first, second])
    assert "matrix has shape (3, 5) in shard 2 of 2" in refusal(tmp_path, 2, shapes())


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_what_is_no_float_is_refused_in_any_file(tmp_path: Path, dtype: torch.dtype) -> None:
    for shard in range(2):
        parts = parts_of(tensors(), 2)
        parts[shard]["matrix"] = torch.zeros(parts[shard]["matrix"].shape).to(dtype)
        written(tmp_path, parts)
        assert "matrix is of type" in refusal(tmp_path, 2, shapes())


def test_a_type_that_differs_between_files_is_refused(tmp_path: Path) -> None:
    first, second = parts_of(tensors(), 2)
    second["matrix"] = second["matrix"].double()
    written(tmp_path, [first, second])
    assert "matrix is of type" in refusal(tmp_path, 2, shapes())


def test_a_number_that_is_a_vector_in_another_file_is_refused(tmp_path: Path) -> None:
    first, second = parts_of(tensors(), 2)
    second["step"] = torch.zeros(1)
    written(tmp_path, [first, second])
    assert "step has shape" in refusal(tmp_path, 2, shapes())


def test_what_is_no_safetensors_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    assert "model.safetensors: cannot be read" in refusal(tmp_path, 1, shapes())


def test_tensors_that_are_not_contiguous_are_written(tmp_path: Path) -> None:
    turned = torch.arange(6.0).view(2, 3).T
    write_tensors({"turned": turned}, tmp_path / "model.safetensors")
    with SavedTensors.opened(tmp_path, "model", 1) as saved:
        assert torch.equal(saved.whole("turned"), turned)


@pytest.mark.parametrize("n_shards", [1, 3])
def test_tensors_written_one_by_one_are_those_that_were_read(tmp_path: Path, n_shards: int) -> None:
    expected = tensors()
    written(tmp_path, parts_of(expected, n_shards))
    with SavedTensors.opened(tmp_path, "model", n_shards) as saved:
        write_one_by_one(tmp_path / "merged.safetensors", saved.types(), saved.whole)
    found = load_file(tmp_path / "merged.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_files_of_weights_are_as_readable_as_others(tmp_path):
    before = os.umask(0o027)
    try:
        write_tensors({"w": torch.zeros(3)}, tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o640
