"""Attention in blocks on the CPU, as operators that torch.compile treats as opaque nodes of its graph.

A block is some queries of some heads, and the keys up to the last of these queries. No score of a later token is
computed, except within a block, and the scores of a block fit into a core's cache. Query heads that
share a key-value head are rows of the same product, so keys and values are not repeated. The backward pass makes the
weights of a block again: keeping them would save a tenth of the time and take T / 2 numbers per head and token.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widthwise.kernels.dispatch import compute_dtype, without_autocast

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
    """Which of the B * n_kv_heads key-value heads of the batch it has: text b begins at b * n_kv_heads."""
    keys: slice
    """Which of the S keys it has: from the first to the last that any of its queries sees."""
    n_seen: int
    """Leading keys that come before all of its queries."""


class Blocks:
    """The blocks of one attention, in order, and the heads in the order in which a block is a batch of matrices.

    For the arguments see `attention.reference_attention`.
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
        """Join what `rows` took apart: (B, n_heads, T, size), in memory (B, T, n_heads, size)."""
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


@torch.library.custom_op("widthwise::attention", mutates_args=(), device_types="cpu")
def forward(queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None) -> Tensor:
    """See `attention.reference_attention`. All of one type."""
    with without_autocast(queries):
        blocks = Blocks(queries, keys, documents)
        rows, k, v = blocks.rows(queries * scale), keys.flatten(0, 1), values.flatten(0, 1)
        attended = [part.new_empty(*part.shape[:2], v.shape[-1]) for part in rows]
        for block in blocks:
            i, heads, seen = block.part, block.heads, block.keys
            weights = blocks.weights(block, rows[i][heads], k[heads, seen])
            torch.bmm(weights, v[heads, seen], out=attended[i][heads])
        return blocks.joined(attended)


@forward.register_fake
def _(queries, keys, values, scale, documents):
    return _empty_rows(queries, values.shape[-1])


def _empty_rows(queries: Tensor, size: int) -> Tensor:
    """(B, n_heads, T, size), in memory (B, T, n_heads, size)."""
    n_texts, n_heads, n_queries, _ = queries.shape
    return queries.new_empty(n_texts, n_queries, n_heads, size).transpose(1, 2)


@torch.library.custom_op("widthwise::attention_backward", mutates_args=(), device_types="cpu")
def backward(
    grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    with without_autocast(queries):
        blocks = Blocks(queries, keys, documents)
        rows, grads, k, v = blocks.rows(queries * scale), blocks.rows(grad), keys.flatten(0, 1), values.flatten(0, 1)
        wide = torch.promote_types(queries.dtype, torch.float32)  # of what is summed over blocks
        grad_k, grad_v = (torch.zeros_like(x, dtype=wide, memory_format=torch.contiguous_format) for x in (k, v))
        grad_rows = [torch.empty_like(part) for part in rows]
        for block in blocks:
            i, heads, seen = block.part, block.heads, block.keys
            # A product copies what is not contiguous, every time.
            own_k, own_v = k[heads, seen].contiguous(), v[heads, seen].contiguous()
            own_rows, own_grad = rows[i][heads], grads[i][heads]
            weights = blocks.weights(block, own_rows, own_k)
            grad_weights = torch.bmm(own_grad, own_v.transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            torch.bmm(grad_scores, own_k, out=grad_rows[i][heads])
            grad_k[heads, seen] += torch.bmm(grad_scores.transpose(1, 2), own_rows)
            grad_v[heads, seen] += torch.bmm(weights.transpose(1, 2), own_grad)
        grad_k, grad_v = (x.to(queries.dtype).unflatten(0, keys.shape[:2]) for x in (grad_k, grad_v))
        return blocks.joined(grad_rows).mul_(scale), grad_k, grad_v


@backward.register_fake
def _(grad, queries, keys, values, scale, documents):
    of_keys, of_values = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (keys, values))
    return _empty_rows(queries, queries.shape[-1]), of_keys, of_values


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    """Saves what the backward pass needs. inputs, output: of `forward`."""
    queries, keys, values, scale, documents = inputs
    ctx.save_for_backward(queries, keys, values, documents)
    ctx.scale = scale


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """One gradient for each input of `forward`."""
    queries, keys, values, documents = ctx.saved_tensors  # once: activation checkpointing refuses a second time
    gradients = backward(grad, queries, keys, values, ctx.scale, documents)
    return *gradients, None, None


forward.register_autograd(_differentiate, setup_context=_keep)


def attention_in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None = None
) -> Tensor:
    """See `attention.reference_attention`. Autograd keeps queries, keys and values. It has no second derivative."""
    dtype = compute_type(queries)
    queries, keys, values = (x.to(dtype) for x in (queries, keys, values))
    return forward(queries, keys, values, scale, documents)


def compute_type(queries: Tensor) -> torch.dtype:
    """Return the dtype in which it runs, as for scaled_dot_product_attention: autocast leaves fp64 alone."""
    return queries.dtype if queries.dtype == torch.float64 else compute_dtype(queries)
