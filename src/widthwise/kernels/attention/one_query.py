"""Attention of one query over the keys and values of a cache, on the CPU and without a backward pass.

All there is to do is to read keys and values. Torch's fused function is slow at it in 16 bits, and where heads share a
key-value head it reads that once for each. Here a block of heads that fits into a core's cache is made fp32, and the
heads of a group are rows of the same product.
"""

import torch
from torch import Tensor

from widthwise.kernels.attention.fused import compute_type
from widthwise.kernels.dispatch import without_autocast

BLOCK_BYTES = 2**20
"""What the keys of a block of heads may take in fp32."""


def attention(queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None = None) -> Tensor:
    """See `reference.attention`, for T = 1. Computed in fp32 or wider; the output in the compute type."""
    (n_texts, n_heads, _, head_dim), (n_kv_heads, n_keys) = queries.shape, keys.shape[1:3]
    dtype = compute_type(queries)
    wide = torch.promote_types(dtype, torch.float32)
    is_other = None
    if documents is not None:
        is_other = (documents != documents[:, -1:]).repeat_interleave(n_kv_heads, dim=0)[:, None]
    rows = (queries.to(wide) * scale).reshape(n_texts * n_kv_heads, -1, head_dim)
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)
    attended = rows.new_empty(*rows.shape[:2], values.shape[-1])
    n_at_once = max(1, BLOCK_BYTES // (n_keys * head_dim * wide.itemsize))
    with without_autocast(queries):
        for heads in (slice(i, i + n_at_once) for i in range(0, len(rows), n_at_once)):
            scores = torch.bmm(rows[heads], keys[heads].to(wide).transpose(1, 2))
            if is_other is not None:
                scores.masked_fill_(is_other[heads], float("-inf"))
            torch.bmm(scores.softmax(dim=-1), values[heads].to(wide), out=attended[heads])
    return attended.view(n_texts, n_heads, 1, -1).to(dtype)
