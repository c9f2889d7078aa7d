"""Attention in blocks, as operators that torch.compile treats as opaque nodes of its graph.

No score of a later token is computed, but for those of a block's own tokens, and the scores of a block fit into a
core's cache. Query heads that share a key-value head are rows of the same product, so keys and values are not repeated.
The backward pass makes the weights of a block again: keeping them would save a tenth of the time and take T / 2 numbers
per head and token.
"""

import torch
from torch import Tensor

from widthwise.kernels.attention.blocks import Blocks
from widthwise.kernels.dispatch import without_autocast


@torch.library.custom_op("widthwise::attention", mutates_args=(), device_types="cpu")
def forward(queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None) -> Tensor:
    """See `reference.attention`. All of one type."""
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
    return (
        _empty_rows(queries, queries.shape[-1]),
        torch.empty_like(keys, memory_format=torch.contiguous_format),
        torch.empty_like(values, memory_format=torch.contiguous_format),
    )
