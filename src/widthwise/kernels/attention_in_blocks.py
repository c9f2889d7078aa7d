"""Attention in blocks, as operators that torch.compile treats as opaque nodes of its graph.

For the CPU, and for capped scores on any device, because torch's fused function has no cap.

A block contains some queries of some heads, and the keys up to the last of these queries, so that few masked scores
are computed. Query heads that share a key-value head are rows of the same product, so keys and values are not repeated.
The backward pass recomputes the weights of a block: saving them would take a tenth less time, but T / 2 numbers per
head and token.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from widthwise.kernels.dispatch import compute_dtype, without_autocast

SCORE_BYTES = {"cpu": 2**21}
"""Largest size of a block's scores by device; 2^28 for other devices. On the CPU, a quarter of this size would fit into
a core's cache, but the calls for the additional blocks take longer than the cache saves."""


def rows_at_once(device_type: str, n_keys: int) -> int:
    """Return the number of rows of a key-value head in a block. The rows are the queries of all heads of its group.

    In a short text, more rows would compute too many masked scores; in a long text, fewer rows would make too many
    blocks.
    """
    if device_type != "cpu":
        return 1024
    return 64 if n_keys <= 256 else 128


class Scoring(NamedTuple):
    """The scores of queries and keys, scale * q k^T, and their limits."""

    scale: float
    window: int | None = None
    """Largest number of tokens that a token sees, including itself; None: all tokens before it."""
    cap: float | None = None
    """Bound of the scores, see `soft_capped`; None: no bound."""


class Block(NamedTuple):
    """A batch of products of queries and keys."""

    part: int
    """Index in the list of `Blocks.rows` of the tensor with its queries."""
    heads: slice
    """Key-value heads, out of the B * n_kv_heads of the batch; sequence b begins at b * n_kv_heads."""
    keys: slice
    """Keys, out of S: from the first to the last that any of its queries sees."""
    n_seen: int
    """Number of its keys before the first of its queries."""


class Blocks:
    """The blocks of one call of attention, and conversions to and from the layout in which a block is a batch.

    See `attention.reference_attention` for the arguments.
    """

    def __init__(self, queries: Tensor, keys: Tensor, documents: Tensor | None, window: int | None = None):
        self.n_texts, n_heads, self.n_queries, _ = queries.shape
        self.n_kv_heads, self.n_keys = keys.shape[1:3]
        self.group_size = n_heads // self.n_kv_heads
        self.n_rows = max(1, min(self.n_queries, rows_at_once(queries.device.type, self.n_keys) // self.group_size))
        self.window = window
        self.max_scores = SCORE_BYTES.get(queries.device.type, 2**28) // queries.dtype.itemsize
        # Added to the scores of queries and keys of the same tokens.
        self.causal = queries.new_full((self.n_rows, self.n_rows), float("-inf")).triu_(1)
        self.tokens = torch.arange(self.n_rows, device=queries.device)
        self.documents = self.first_keys = None
        if documents is not None:
            self.documents = documents.repeat_interleave(self.n_kv_heads, dim=0)
            self.first_keys = _first_tokens(documents).repeat_interleave(self.n_kv_heads, dim=0)

    def __iter__(self) -> Iterator[Block]:
        n_heads = self.n_texts * self.n_kv_heads
        for part, start in enumerate(range(self.n_keys - self.n_queries, self.n_keys, self.n_rows)):
            stop = min(start + self.n_rows, self.n_keys)
            n_at_once = max(1, self.max_scores // ((stop - start) * self.group_size * stop))
            for heads in (slice(i, i + n_at_once) for i in range(0, n_heads, n_at_once)):
                first = 0 if self.first_keys is None else int(self.first_keys[heads, start:stop].min())
                if self.window is not None:
                    first = max(first, start - self.window + 1)
                yield Block(part, heads, slice(first, stop), n_seen=start - first)

    def rows(self, x: Tensor) -> list[Tensor]:
        """Split (B, n_heads, T, size) along T into (B n_kv_heads, rows, size), a row per token and head of a group."""
        parts = x.unflatten(1, (self.n_kv_heads, -1)).transpose(2, 3).split(self.n_rows, dim=2)
        n_heads = self.n_texts * self.n_kv_heads
        return [part.reshape(n_heads, part.shape[2] * self.group_size, x.shape[-1]) for part in parts]

    def joined(self, rows: list[Tensor]) -> Tensor:
        """Invert `rows`: return (B, n_heads, T, size), in memory (B, T, n_heads, size)."""
        sizes = self.n_kv_heads, self.group_size, rows[0].shape[-1]
        tokens = rows[0].new_empty(self.n_texts, self.n_queries, *sizes)
        for target, part in zip(tokens.split(self.n_rows, dim=1), rows, strict=True):
            target.transpose(1, 2).copy_(part.view(self.n_texts, self.n_kv_heads, -1, *sizes[1:]))
        return tokens.flatten(2, 3).transpose(1, 2)

    def weights(self, block: Block, scores: Tensor) -> Tensor:
        """Return the softmax of scores over the keys that each query sees. All other scores are masked in place."""
        by_token = scores.unflatten(1, (-1, self.group_size))
        n_tokens = by_token.shape[1]
        by_token[..., block.n_seen :] += self.causal[:n_tokens, None, :n_tokens]
        if self.window is not None and block.n_seen + n_tokens > self.window:
            # The window moves by one key per token, so only the first n_tokens keys can be before a window.
            age = block.n_seen + self.tokens[:n_tokens, None] - self.tokens[:n_tokens]
            by_token[..., :n_tokens].masked_fill_((age >= self.window)[:, None], float("-inf"))
        if self.documents is not None:
            documents = self.documents[block.heads, block.keys]
            is_other_document = documents[:, block.n_seen :, None] != documents[:, None]
            by_token.masked_fill_(is_other_document[:, :, None], float("-inf"))
        return torch.softmax(scores, dim=-1)


def _scores(queries: Tensor, keys: Tensor, cap: float | None) -> Tensor:
    """Return the capped q k^T, (heads, rows, keys), of queries (heads, rows, head_dim) and keys of a block."""
    scores = torch.bmm(queries, keys.transpose(1, 2))
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)


def _first_tokens(documents: Tensor) -> Tensor:
    """Return integers (B, S), the position of the first token of each token's document."""
    ordered, order = documents.sort(dim=1, stable=True)
    positions = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    is_first = torch.ones_like(documents, dtype=torch.bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = torch.where(is_first, positions, 0).cummax(dim=1).values  # of documents, in sorted order
    return torch.empty_like(order).scatter_(1, order, order.gather(1, starts))


@torch.library.custom_op("widthwise::attention", mutates_args=())
def forward(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    documents: Tensor | None,
    window: int | None,
    score_cap: float | None,
) -> Tensor:
    """Compute `attention.reference_attention`. Queries, keys and values have one dtype."""
    with without_autocast(queries):
        blocks = Blocks(queries, keys, documents, window)
        rows = blocks.rows(queries * scale)
        k, v = (x.flatten(0, 1) for x in (keys, values))
        attended = [part.new_empty(*part.shape[:2], v.shape[-1]) for part in rows]
        for block in blocks:
            part, heads, key_slice, _ = block
            weights = blocks.weights(block, _scores(rows[part][heads], k[heads, key_slice], score_cap))
            torch.bmm(weights, v[heads, key_slice], out=attended[part][heads])
        return blocks.joined(attended)


@forward.register_fake
def _(queries, keys, values, scale, documents, window, score_cap):
    return _empty_output(queries, values.shape[-1])


def _empty_output(queries: Tensor, size: int) -> Tensor:
    """Return an empty (B, n_heads, T, size), in memory (B, T, n_heads, size)."""
    n_texts, n_heads, n_queries, _ = queries.shape
    return queries.new_empty(n_texts, n_queries, n_heads, size).transpose(1, 2)


@torch.library.custom_op("widthwise::attention_backward", mutates_args=())
def backward(
    grad: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    documents: Tensor | None,
    window: int | None,
    score_cap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    with without_autocast(queries):
        blocks = Blocks(queries, keys, documents, window)
        rows, output_grads = (blocks.rows(x) for x in (queries * scale, grad))
        k, v = (x.flatten(0, 1) for x in (keys, values))
        wide = torch.promote_types(queries.dtype, torch.float32)  # for sums over blocks
        grad_k, grad_v = (torch.zeros_like(x, dtype=wide, memory_format=torch.contiguous_format) for x in (k, v))
        grad_rows = [torch.empty_like(part) for part in rows]
        for block in blocks:
            part, heads, key_slice, _ = block
            # Every product would copy an operand that is not contiguous.
            block_k, block_v = (x[heads, key_slice].contiguous() for x in (k, v))
            block_rows, block_grad = (x[part][heads] for x in (rows, output_grads))
            scores = _scores(block_rows, block_k, score_cap)
            slope = None if score_cap is None else 1 - (scores / score_cap).square()
            weights = blocks.weights(block, scores)
            grad_weights = torch.bmm(block_grad, block_v.transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            if slope is not None:
                grad_scores.mul_(slope)
            torch.bmm(grad_scores, block_k, out=grad_rows[part][heads])
            grad_k[heads, key_slice] += torch.bmm(grad_scores.transpose(1, 2), block_rows)
            grad_v[heads, key_slice] += torch.bmm(weights.transpose(1, 2), block_grad)
        grad_k, grad_v = (x.to(queries.dtype).unflatten(0, keys.shape[:2]) for x in (grad_k, grad_v))
        return blocks.joined(grad_rows).mul_(scale), grad_k, grad_v


@backward.register_fake
def _(grad, queries, keys, values, scale, documents, window, score_cap):
    grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (keys, values))
    return _empty_output(queries, queries.shape[-1]), grad_k, grad_v


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    """Save tensors for the backward pass. inputs, output: of `forward`."""
    queries, keys, values, scale, documents, window, score_cap = inputs
    ctx.save_for_backward(queries, keys, values, documents)
    ctx.constants = scale, window, score_cap


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return a gradient for each input of `forward`."""
    queries, keys, values, documents = ctx.saved_tensors  # activation checkpointing refuses a second access
    scale, window, score_cap = ctx.constants
    return *backward(grad, queries, keys, values, scale, documents, window, score_cap), None, None, None, None


forward.register_autograd(_backward, setup_context=_setup_context)


def attention_in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring, documents: Tensor | None = None
) -> Tensor:
    """Compute `attention.reference_attention`. Saves queries, keys and values for backward. No second derivative."""
    dtype = attention_dtype(queries)
    queries, keys, values = (x.to(dtype) for x in (queries, keys, values))
    return forward(queries, keys, values, scoring.scale, documents, scoring.window, scoring.cap)


def attention_dtype(queries: Tensor) -> torch.dtype:
    """Return the dtype of scaled_dot_product_attention: `compute_dtype`, except that autocast does not convert fp64."""
    return queries.dtype if queries.dtype == torch.float64 else compute_dtype(queries)
