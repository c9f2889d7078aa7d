"""Attention by torch's fused function, which has kernels for every device."""

import torch
from torch import Tensor
from torch.backends.cuda import flash_sdp_enabled
from torch.nn.functional import pad, scaled_dot_product_attention

from widthwise.kernels.attention.reference import visible


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    documents: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """See `reference.attention`. mask: which keys a query sees, (B or 1, 1, T, S), bool or to be added to the scores;
    None: what `reference.visible` says, made here if it is needed.
    """
    n_queries, (n_keys, head_dim), v_head_dim = queries.shape[2], keys.shape[2:], values.shape[-1]
    if mask is None and (documents is not None or 1 < n_queries < n_keys):
        mask = visible(n_queries, n_keys, documents, queries.device)
    if head_dim != v_head_dim and flash_is_enabled():
        # The flash kernels take one size only; the plain form, which takes two, would keep every weight of T x S.
        # Zeros change no score and no sum.
        queries, keys, values = (_padded(x, max(head_dim, v_head_dim)) for x in (queries, keys, values))
    attended = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None and n_queries > 1,
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return attended[..., :v_head_dim]


def flash_is_enabled() -> bool:
    """Whether torch may use its flash kernels. It may under a compiler, in whose graphs nobody can ask."""
    return torch.compiler.is_compiling() or flash_sdp_enabled()


def _padded(heads: Tensor, head_dim: int) -> Tensor:
    n_missing = head_dim - heads.shape[-1]
    return pad(heads, (0, n_missing)) if n_missing else heads
