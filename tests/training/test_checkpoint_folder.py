"""Tensors in one file, or by rows in several; which checkpoints of a run are kept, also after a kill."""

import os
import stat
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
import torch
from tiny_runs import Listener, outcome, step_config, tiny_recipe
from torch import Tensor

from widthwise.mistakes import UserError
from widthwise.runs.train import resume, train
from widthwise.training.checkpoint_folder import (
    SavedTensors,
    checkpoint_paths,
    file_names,
    kept_steps,
    step_of,
    write_tensors,
)

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
def test_tensors_and_their_rows_come_from_any_number_of_files(tmp_path: Path, n_shards: int) -> None:
    expected = tensors()
    written(tmp_path, parts_of(expected, n_shards))
    with SavedTensors.opened(tmp_path, "model", n_shards) as saved:
        assert saved.names == expected.keys()
        saved.check(shapes())
        found = {name: saved.whole(name) for name in expected}
        for first, last in combinations_with_replacement(range(8), 2):
            rows = saved.rows("matrix", slice(first, last))
            assert rows.shape == (last - first, 3)
            assert torch.equal(rows, expected["matrix"][first:last])
    assert all(found[name].dtype == tensor.dtype for name, tensor in expected.items())
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def refusal(folder: Path, n_shards: int, wanted: dict[str, torch.Size]) -> str:
    with pytest.raises(UserError) as caught, SavedTensors.opened(folder, "model", n_shards) as saved:
        saved.check(wanted)
    return str(caught.value)


def shapes() -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors().items()}


def test_files_that_are_missing_torn_or_of_other_tensors_are_named(tmp_path: Path) -> None:
    first, second = parts_of(tensors(), 2)
    written(tmp_path, [first, {name: tensor for name, tensor in second.items() if name != "pair"}])
    one, other = file_names("model", 2)
    assert refusal(tmp_path, 2, shapes()).endswith(f"{other}: holds other tensors than {one}, such as pair")
    (tmp_path / other).write_bytes(b"no header")
    assert f"{other}: cannot be read" in refusal(tmp_path, 2, shapes())
    (tmp_path / other).unlink()
    assert f"{other}: cannot be read" in refusal(tmp_path, 2, shapes())


MATRIX = torch.zeros(4, 3)
UNEQUAL = [
    ({"matrix": torch.zeros(3, 3)}, {"matrix": MATRIX}, "matrix has shape"),
    ({"matrix": torch.zeros(7, 3)}, {"matrix": torch.zeros(0, 3)}, "matrix has shape"),
    ({}, {"matrix": torch.zeros(2, 3)}, "matrix has shape"),
    ({}, {"matrix": torch.zeros(3, 5)}, "matrix has shape (3, 5) in shard 2 of 2"),
    ({}, {"step": torch.zeros(1)}, "step has shape"),
    ({}, {"matrix": torch.zeros(3, 3).double()}, "matrix is of type"),
    ({"matrix": MATRIX.long()}, {}, "matrix is of type"),
    ({}, {"matrix": torch.zeros(3, 3).to(torch.uint8)}, "matrix is of type"),
    ({}, {"matrix": torch.zeros(3, 3).bool()}, "matrix is of type"),
]
"""What stands in the first and the second file instead of a matrix of 4 and 3 rows, and what is said."""


def test_rows_columns_and_types_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for first, second, said in UNEQUAL:
        parts = parts_of(tensors(), 2)
        written(tmp_path, [{**parts[0], **first}, {**parts[1], **second}])
        assert said in refusal(tmp_path, 2, shapes())


def test_what_is_written_need_not_be_contiguous_and_is_as_readable_as_other_files(tmp_path: Path) -> None:
    turned, before = torch.arange(6.0).view(2, 3).T, os.umask(0o027)
    try:
        write_tensors({"turned": turned}, tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    with SavedTensors.opened(tmp_path, "model", 1) as saved:
        assert torch.equal(saved.whole("turned"), turned)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o640


def steps_of(path: Path) -> list[int]:
    return sorted(map(step_of, checkpoint_paths(path / "checkpoints")))


def test_a_checkpoint_stays_if_any_rule_keeps_it() -> None:
    for last, every, kept in ((1, None, {9}), (2, None, {9, 8}), (1, 3, {9, 6, 3}), (2, 4, {9, 8, 4})):
        config = step_config(keep_last=last, keep_every=every, checkpoint_every=1)
        assert kept_steps([9, 8, 6, 4, 3], config) == kept


class Killed(BaseException):
    """Ends a run as a kill would."""


@pytest.mark.parametrize("in_background", ["false", "true"])
def test_a_killed_run_keeps_what_one_that_was_not_does(tmp_path: Path, in_background: str) -> None:
    rules = ("train.keep_last=1", "train.keep_every=4", f"train.checkpoint_in_background={in_background}")
    recipe = tiny_recipe("train.steps=11", *rules)
    train(recipe, tmp_path / "whole")
    assert steps_of(tmp_path / "whole") == [4, 8, 11]
    for step in (5, 11):

        def kill(now: int, last: int = step) -> None:
            if now == last:
                raise Killed

        run = tmp_path / str(step)
        with pytest.raises(Killed):
            train(recipe, run, Listener(kill))
        resume(run)
        assert outcome(run) == outcome(tmp_path / "whole")
        assert steps_of(run) == [4, 8, 11]


def test_rules_that_could_never_keep_anything_are_refused() -> None:
    for options, message in (
        (["train.checkpoint_every=2", "train.keep_every=5"], "keep_every: got 5; must be a multiple of .* = 2$"),
        (["train.checkpoint_every=null", "train.keep_every=5"], "keep_every: got 5; must be a multiple of .* = None$"),
        (["train.keep_best=true"], "train.keep_best: unknown key; was removed; keep_every keeps checkpoints;"),
    ):
        with pytest.raises(UserError, match=message):
            tiny_recipe(*options)
