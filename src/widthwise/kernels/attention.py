"""Causal attention within documents. Source: Vaswani et al. 2017, arXiv:1706.03762."""

import torch
from torch import Tensor
from torch.backends.cuda import flash_sdp_enabled
from torch.nn.functional import pad, scaled_dot_product_attention

from widthwise.kernels.attention_in_blocks import attention_in_blocks, compute_type
from widthwise.kernels.dispatch import reference_wanted, without_autocast

MIN_QUERIES = 32
"""Fewer are not worth a block, nor measured."""
MIN_FORWARD_QUERIES = 256
"""The same without a backward pass."""
MIN_FORWARD_HEAD_DIM = 32
MIN_WIDE_QUERIES = 512
"""The same in fp32 and fp64 with or without one, where documents keep tokens apart."""
MIN_CACHED = 2**16
"""Numbers in the keys of a cache: fewer are not worth the calls of the form for one query."""
BLOCK_BYTES = 2**20
"""Most bytes of the keys of a block of heads in fp32."""


def visible(n_queries: int, n_keys: int, documents: Tensor | None, device: torch.device) -> Tensor:
    """The keys that a query sees: bool (B or 1, 1, n_queries, n_keys). For the arguments see `reference_attention`."""
    keys = torch.arange(n_keys, device=device)
    causal = (keys <= keys[n_keys - n_queries :, None])[None, None]
    if documents is None:
        return causal
    return causal & (documents[:, None, n_keys - n_queries :, None] == documents[:, None, None, :])


def reference_attention(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None = None
) -> Tensor:
    """softmax(scale * q k^T) v, where a token sees itself and the tokens before it in its document.

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


def sdpa_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    documents: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """See `reference_attention`; by torch's fused function, which has kernels for every device.

    mask: which keys a query sees, (B or 1, 1, T, S), bool or to be added to the scores; None: what `visible` says, made
    here if it is needed.
    """
    n_queries, (n_keys, head_dim), v_head_dim = queries.shape[2], keys.shape[2:], values.shape[-1]
    if mask is None and (documents is not None or 1 < n_queries < n_keys):
        mask = visible(n_queries, n_keys, documents, queries.device)
    if head_dim != v_head_dim and flash_is_enabled():
        # The flash kernels take one size only; the plain form, which takes two, would keep every weight of T x S.
        # Zeros change no score and no sum.
        size = max(head_dim, v_head_dim)
        queries, keys, values = (
            x if x.shape[-1] == size else pad(x, (0, size - x.shape[-1])) for x in (queries, keys, values)
        )
    is_causal, has_groups = mask is None and n_queries > 1, queries.shape[1] != keys.shape[1]
    attended = scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=has_groups
    )
    return attended[..., :v_head_dim]


def flash_is_enabled() -> bool:
    """Return whether torch may use its flash kernels. True under a compiler, whose graphs cannot ask."""
    return torch.compiler.is_compiling() or flash_sdp_enabled()


def one_query_attention(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, documents: Tensor | None = None
) -> Tensor:
    """See `reference_attention`, for T = 1 over the keys and values of a cache, on the CPU and without a backward pass.

    All there is to do is to read keys and values. Torch's fused function is slow at it in 16 bits, and where heads
    share a key-value head it reads that once for each. Here a block of heads that fits into a core's cache is made
    fp32, and the heads of a group are rows of the same product. Computed in fp32 or wider; the output in the compute
    type.
    """
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


def blocks_are_faster(
    n_queries: int, head_dim: int, dtype: torch.dtype, is_differentiated: bool, has_documents: bool
) -> bool:
    """Return whether blocks are faster than torch's fused function on a CPU.

    `benchmarks/attention.py` measures it, on one thread. In bf16 they take 0.2 to 0.85 of the time with the backward
    pass, and without it 0.4 to 1.06 of it from 256 tokens and heads of 32 on. In fp32 they take 0.95 to 1.75 of it, but
    0.5 where each of 512 tokens sees one of four documents, because they leave out the others.
    """
    if dtype == torch.bfloat16:
        if is_differentiated:
            return n_queries >= MIN_QUERIES
        return n_queries >= MIN_FORWARD_QUERIES and head_dim >= MIN_FORWARD_HEAD_DIM
    return dtype in (torch.float32, torch.float64) and has_documents and n_queries >= MIN_WIDE_QUERIES


def one_query_is_faster(queries: Tensor, keys: Tensor, dtype: torch.dtype) -> bool:
    """Return whether `one_query_attention` is faster than torch's fused function on a CPU, without a backward pass.

    In bf16 it takes 0.4 to 0.7 of the time, and 0.15 to 0.35 where 3 or 4 heads share a key-value head; in fp32 0.9 to
    1.2, and for more queries mostly longer too. Not in a compiled graph, which would have a loop of every length.
    """
    reads_a_cache = queries.shape[2] == 1 and keys.numel() >= MIN_CACHED
    return dtype == torch.bfloat16 and reads_a_cache and not torch.compiler.is_compiling()


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    documents: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """See `reference_attention`; in blocks where that is faster, else by torch's fused function.

    mask: what `visible` makes of the documents and the numbers of queries and keys, or that as numbers to be added to
    scores, where it is made already for all layers; it says nothing else.
    """
    is_differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    (n_queries, head_dim), has_documents = queries.shape[2:], documents is not None
    # Without flash, somebody wants the plain form, to count it or to differentiate it twice.
    if queries.device.type == "cpu" and flash_is_enabled() and not reference_wanted():
        dtype = compute_type(queries)
        if not is_differentiated and one_query_is_faster(queries, keys, dtype):
            return one_query_attention(queries, keys, values, scale, documents)
        if blocks_are_faster(n_queries, head_dim, dtype, is_differentiated, has_documents):
            return attention_in_blocks(queries, keys, values, scale, documents)
    return sdpa_attention(queries, keys, values, scale, documents, mask)
