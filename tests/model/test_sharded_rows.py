"""Rows of which a process holds its share."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from widthwise.model.shards import rows_of_shard


@given(st.integers(1, 70), st.integers(1, 9))
def test_a_shard_has_the_rows_that_torch_chunks_into_it(n_rows: int, n_shards: int) -> None:
    rows = torch.arange(n_rows)
    chunks = [*rows.chunk(n_shards), *[rows[:0]] * n_shards][:n_shards]  # torch leaves out those without rows
    found = [rows[rows_of_shard(n_rows, shard, n_shards)] for shard in range(n_shards)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, chunks, strict=True))
