"""How attention is cut into blocks: some queries of some heads, and the keys up to the last of these queries."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

SCORE_BYTES = 2**21
"""Size of a block's scores. A quarter of it would stay in a core's cache, but makes so many more blocks that the calls
take longer than that saves."""


def rows_at_once(n_keys: int) -> int:
    """Queries of one key-value head in a block, all heads of its group counted.

    Of a short text more would compute too many scores of later tokens, of a long one fewer make too many blocks.
    """
    return 64 if n_keys <= 256 else 128


class Block(NamedTuple):
    """A batch of products of queries and keys."""

    part: int
    """Which of the parts of `Blocks.rows` holds its queries."""
    heads: slice
    """Which of the B * n_kv_heads key-value heads of the batch it has: those of text b begin at b * n_kv_heads."""
    keys: slice
    """Which of the S keys it has: from the first to the last that any of its queries sees."""
    n_seen: int
    """Leading keys that stand before all of its queries."""


class Blocks:
    """The blocks of one attention, in order, and the heads in the order in which a block is a batch of matrices.

    For the arguments see `reference.attention`.
    """

    def __init__(self, queries: Tensor, keys: Tensor, documents: Tensor | None):
        (self.n_texts, n_heads, self.n_queries, _), (self.n_kv_heads, self.n_keys) = queries.shape, keys.shape[1:3]
        self.group_size = n_heads // self.n_kv_heads
        self.n_rows = max(1, min(self.n_queries, rows_at_once(self.n_keys) // self.group_size))
        self.max_scores = SCORE_BYTES // queries.dtype.itemsize
        # Added to the scores of some queries and the keys of the same tokens.
        self.causal = queries.new_full((self.n_rows, self.n_rows), float("-inf")).triu_(1)
        self.documents = self.first_keys = None
        if documents is not None:
            self.documents = documents.repeat_interleave(self.n_kv_heads, dim=0)
            self.first_keys = _first_tokens(documents).repeat_interleave(self.n_kv_heads, dim=0)

    def __iter__(self) -> Iterator[Block]:
        n_heads, n_before = self.n_texts * self.n_kv_heads, self.n_keys - self.n_queries
        for part, start in enumerate(range(n_before, self.n_keys, self.n_rows)):
            stop = min(start + self.n_rows, self.n_keys)
            n_at_once = max(1, self.max_scores // ((stop - start) * self.group_size * stop))
            for heads in (slice(i, i + n_at_once) for i in range(0, n_heads, n_at_once)):
                first = 0 if self.first_keys is None else int(self.first_keys[heads, start:stop].min())
                yield Block(part, heads, slice(first, stop), n_seen=start - first)

    def rows(self, x: Tensor) -> list[Tensor]:
        """(B, n_heads, T, size) -> parts (B n_kv_heads, rows, size); rows are tokens, and in one a group's heads."""
        by_token = x.unflatten(1, (self.n_kv_heads, -1)).transpose(2, 3)
        n_heads, size = self.n_texts * self.n_kv_heads, x.shape[-1]
        return [part.reshape(n_heads, part.shape[2] * self.group_size, size) for part in by_token.split(self.n_rows, 2)]

    def joined(self, rows: list[Tensor]) -> Tensor:
        """What `rows` took apart, (B, n_heads, T, size), in memory (B, T, n_heads, size)."""
        sizes = self.n_kv_heads, self.group_size, rows[0].shape[-1]
        room = rows[0].new_empty(self.n_texts, self.n_queries, *sizes)
        parts = room.split(self.n_rows, dim=1)
        for part, own in zip(parts, rows, strict=True):
            part.transpose(1, 2).copy_(own.view(self.n_texts, self.n_kv_heads, -1, *sizes[1:]))
        return room.flatten(2, 3).transpose(1, 2)

    def weights(self, block: Block, queries: Tensor, keys: Tensor) -> Tensor:
        """softmax(q k^T) over the keys that a query sees: (heads, rows, keys).

        queries: (heads, rows, head_dim), keys: (heads, keys, head_dim), of the block.
        """
        scores = torch.bmm(queries, keys.transpose(1, 2))
        by_token = scores.unflatten(1, (-1, self.group_size))
        n_tokens = by_token.shape[1]
        by_token[..., block.n_seen :] += self.causal[:n_tokens, None, :n_tokens]
        if self.documents is not None:
            of_keys = self.documents[block.heads, block.keys]
            is_other = of_keys[:, block.n_seen :, None] != of_keys[:, None]
            by_token.masked_fill_(is_other[:, :, None], float("-inf"))
        return torch.softmax(scores, dim=-1)


def _first_tokens(documents: Tensor) -> Tensor:
    """integers (B, S): the first token of each token's document."""
    ordered, order = documents.sort(dim=1, stable=True)
    places = torch.arange(documents.shape[1]).expand_as(documents)
    is_first = torch.ones_like(documents, dtype=torch.bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = order.gather(1, torch.where(is_first, places, 0).cummax(dim=1).values)
    return torch.empty_like(order).scatter_(1, order, first)
