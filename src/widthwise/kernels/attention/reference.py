"""Causal attention in plain torch, every weight in memory. Source: Vaswani et al. 2017, arXiv:1706.03762."""

import torch
from torch import Tensor


def visible(n_queries: int, n_keys: int, documents: Tensor | None, device: torch.device) -> Tensor:
    """Which keys a query sees: bool (B or 1, 1, n_queries, n_keys). For the arguments see `attention`."""
    keys = torch.arange(n_keys, device=device)
    causal = (keys <= keys[n_keys - n_queries :, None])[None, None]
    if documents is None:
        return causal
    return causal & (documents[:, None, n_keys - n_queries :, None] == documents[:, None, None, :])


def attention(queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None = None) -> Tensor:
    """softmax(scale * q k^T) v, where a token sees itself and what stands before it in its document.

    queries: (B, n_heads, T, head_dim), of the last T of S tokens; keys: (B, n_kv_heads, S, head_dim); values:
    (B, n_kv_heads, S, v_head_dim); n_kv_heads divides n_heads, and neighbouring query heads share a key-value head.
    documents: integers (B, S), the document of each token; None: one document. A token of padding is a document of
    its own. -> (B, n_heads, T, v_head_dim).
    """
    n_heads, n_queries = queries.shape[1:3]
    group_size, n_keys = n_heads // keys.shape[1], keys.shape[2]
    keys, values = (x.repeat_interleave(group_size, dim=1) for x in (keys, values))
    scores = scale * (queries @ keys.transpose(2, 3))
    scores = scores.masked_fill(~visible(n_queries, n_keys, documents, queries.device), float("-inf"))
    return scores.softmax(dim=-1) @ values
