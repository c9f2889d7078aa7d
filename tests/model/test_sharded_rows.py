"""Rows of which a process holds its share."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from widthwise.model.shards import held, held_rows, is_shared, put, rows_of_shard, whole, with_rows


@given(st.integers(1, 70), st.integers(1, 9))
def test_a_shard_has_the_rows_that_torch_chunks_into_it(n_rows: int, n_shards: int) -> None:
    rows = torch.arange(n_rows)
    chunks = [*rows.chunk(n_shards), *[rows[:0]] * n_shards][:n_shards]  # torch leaves out those without rows
    found = [rows[rows_of_shard(n_rows, shard, n_shards)] for shard in range(n_shards)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, chunks, strict=True))


def test_a_plain_tensor_is_whole() -> None:
    tensor, values = torch.zeros(5, 3), torch.arange(15.0).view(5, 3)
    assert not is_shared(tensor)
    assert held(tensor) is tensor
    assert whole(tensor) is tensor
    assert held_rows(tensor) == slice(0, 5)
    assert with_rows(tensor, values) is values
    put(tensor, values)
    assert torch.equal(tensor, values)
