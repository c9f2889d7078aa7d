"""The rows of a sharded tensor that each process holds."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from widthwise.model.shards import rows_of_shard


@given(st.integers(1, 70), st.integers(1, 9))
def test_shards_are_the_chunks_of_torch(n_rows: int, n_shards: int) -> None:
    rows = torch.arange(n_rows)
    chunks = [*rows.chunk(n_shards), *[rows[:0]] * n_shards][:n_shards]  # torch leaves out empty chunks
    shards = [rows[rows_of_shard(n_rows, shard, n_shards)] for shard in range(n_shards)]
    assert all(torch.equal(shard, chunk) for shard, chunk in zip(shards, chunks, strict=True))
