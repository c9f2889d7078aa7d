"""Causal attention within documents. Source: Vaswani et al. 2017, arXiv:1706.03762."""

import torch
from torch import Tensor
from torch.backends.cuda import flash_sdp_enabled
from torch.nn.functional import pad, scaled_dot_product_attention

from widthwise.kernels.attention_in_blocks import Scoring, attention_dtype, attention_in_blocks
from widthwise.kernels.dispatch import reference_wanted, soft_capped, without_autocast

BLOCK_BYTES = 2**20
"""Largest size of the fp32 keys of a block of heads in `one_query_attention`, so that they fit into a core's cache."""


def visible(
    n_queries: int, n_keys: int, documents: Tensor | None, device: torch.device, window: int | None = None
) -> Tensor:
    """Return the mask of visible keys, bool (B or 1, 1, n_queries, n_keys). See `reference_attention` for arguments."""
    keys = torch.arange(n_keys, device=device)
    queries = keys[n_keys - n_queries :, None]
    mask = (keys <= queries)[None, None]
    if window is not None:
        mask = mask & (keys > queries - window)
    if documents is None:
        return mask
    return mask & (documents[:, None, n_keys - n_queries :, None] == documents[:, None, None, :])


def reference_attention(
    queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring, documents: Tensor | None = None
) -> Tensor:
    """Return softmax(scores) v, where a token sees itself and the tokens before it in its document.

    queries: (B, n_heads, T, head_dim), of the last T of S tokens; keys: (B, n_kv_heads, S, head_dim); values:
    (B, n_kv_heads, S, v_head_dim); n_kv_heads divides n_heads, and neighbouring query heads share a key-value head.
    documents: integers (B, S), the document of each token; None: one document. Each padding token is a separate
    document. -> (B, n_heads, T, v_head_dim).
    """
    n_heads, n_queries = queries.shape[1:3]
    group_size = n_heads // keys.shape[1]
    keys, values = (x.repeat_interleave(group_size, dim=1) for x in (keys, values))
    scores = soft_capped(scoring.scale * (queries @ keys.transpose(2, 3)), scoring.cap)
    mask = visible(n_queries, keys.shape[2], documents, queries.device, scoring.window)
    scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1) @ values


def sdpa_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scoring: Scoring,
    documents: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute `reference_attention` without a cap by torch's fused function, which has kernels for every device.

    mask: (B or 1, 1, T, S), from `visible`, or as numbers to add to the scores; None: computed if needed.
    """
    n_queries = queries.shape[2]
    n_keys, head_dim = keys.shape[2:]
    v_head_dim = values.shape[-1]
    if mask is None and (documents is not None or scoring.window is not None or 1 < n_queries < n_keys):
        mask = visible(n_queries, n_keys, documents, queries.device, scoring.window)
    if head_dim != v_head_dim and flash_is_enabled():
        # Flash kernels need equal sizes, and torch's plain form saves all T x S weights. Padding with zeros changes no
        # score and no output.
        size = max(head_dim, v_head_dim)
        queries, keys, values = (
            x if x.shape[-1] == size else pad(x, (0, size - x.shape[-1])) for x in (queries, keys, values)
        )
    is_causal = mask is None and n_queries > 1
    has_groups = queries.shape[1] != keys.shape[1]
    attended = scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=is_causal, scale=scoring.scale, enable_gqa=has_groups
    )
    return attended[..., :v_head_dim]


def flash_is_enabled() -> bool:
    """Return True if torch may use its flash kernels, and under torch.compile, which cannot trace the check."""
    return torch.compiler.is_compiling() or flash_sdp_enabled()


def one_query_attention(
    queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring, documents: Tensor | None = None
) -> Tensor:
    """Compute `reference_attention` without a window for T = 1 over the keys and values of a cache.

    For the CPU without a backward pass. Reading keys and values takes most of the time. Torch's fused function reads 16
    bits slowly, and reads a shared key-value head once for each query head. This form converts a block of heads that
    fits into a core's cache to fp32, and makes the query heads of a group rows of the same product. It takes 0.4 to 0.7
    of the time of torch's function in bf16, 0.15 to 0.35 if 3 or 4 heads share a key-value head, and 0.9 to 1.2 in
    fp32. It computes in fp32 or wider and returns `attention_dtype`.
    """
    n_texts, n_heads, _, head_dim = queries.shape
    n_kv_heads, n_keys = keys.shape[1:3]
    dtype = attention_dtype(queries)
    wide = torch.promote_types(dtype, torch.float32)
    is_hidden = None
    if documents is not None:
        is_hidden = (documents != documents[:, -1:]).repeat_interleave(n_kv_heads, dim=0)[:, None]
    rows = (queries.to(wide) * scoring.scale).reshape(n_texts * n_kv_heads, -1, head_dim)
    keys, values = (x.flatten(0, 1) for x in (keys, values))
    attended = rows.new_empty(*rows.shape[:2], values.shape[-1])
    heads_per_block = max(1, BLOCK_BYTES // (n_keys * head_dim * wide.itemsize))
    with without_autocast(queries):
        for heads in (slice(i, i + heads_per_block) for i in range(0, len(rows), heads_per_block)):
            scores = soft_capped(torch.bmm(rows[heads], keys[heads].to(wide).transpose(1, 2)), scoring.cap)
            if is_hidden is not None:
                scores.masked_fill_(is_hidden[heads], float("-inf"))
            torch.bmm(scores.softmax(dim=-1), values[heads].to(wide), out=attended[heads])
    return attended.view(n_texts, n_heads, 1, -1).to(dtype)


def blocks_are_faster(
    n_queries: int, head_dim: int, dtype: torch.dtype, is_differentiated: bool, skips_keys: bool
) -> bool:
    """Return True if blocks are faster than torch's fused function on a CPU. skips_keys: by documents or a window.

    Measured on one thread by `benchmarks/attention.py`, relative to the time of the fused function. In bf16, blocks
    take 0.2 to 0.85 with the backward pass; without it 0.4 to 1.06 for 256 tokens and head_dim 32 or more. In fp32 they
    take 0.95 to 1.75, but 0.5 for 512 tokens in four documents, because they skip the other documents. With a window of
    a quarter of the keys they take 0.9 (512 keys) to 0.44 (2,048 keys), with a window of half of 512 keys 1.3.
    """
    if dtype == torch.bfloat16:
        if is_differentiated:
            return n_queries >= 32  # fewer were not measured
        return n_queries >= 256 and head_dim >= 32
    return dtype in (torch.float32, torch.float64) and skips_keys and n_queries >= 512


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scoring: Scoring,
    documents: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute `reference_attention` by the fastest form: in blocks, for one query, or by torch's fused function.

    The fused function has no cap, so it is not used for capped scores. mask: as for `sdpa_attention`, if it was already
    computed for all layers. With a window, documents and mask may be of more keys than `keys`; the last ones count.
    """
    is_differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    n_queries, head_dim = queries.shape[2:]
    if scoring.window is not None:
        n_keys = min(keys.shape[2], n_queries + scoring.window - 1)
        keys, values = (x[:, :, -n_keys:] for x in (keys, values))
        documents = None if documents is None else documents[:, -n_keys:]
        mask = None if mask is None else mask[..., -n_keys:]
        if scoring.window >= n_keys:
            scoring = scoring._replace(window=None)
    # Callers disable flash kernels to get the plain form, to count its FLOPs or to differentiate it twice.
    is_plain = reference_wanted() or not flash_is_enabled()
    is_capped = scoring.cap is not None
    if is_capped and is_plain:
        return reference_attention(queries, keys, values, scoring, documents)
    use_blocks = is_capped
    if queries.device.type == "cpu" and not is_plain:
        dtype = attention_dtype(queries)
        # Without a cap, the form for one query is faster only in bf16 and if the cache is not small. torch.compile
        # would unroll its loop again for every length.
        suits_one_query = is_capped or (dtype == torch.bfloat16 and keys.numel() >= 2**16)
        if n_queries == 1 and suits_one_query and not is_differentiated and not torch.compiler.is_compiling():
            return one_query_attention(queries, keys, values, scoring, documents)
        has_short_window = scoring.window is not None and scoring.window <= 0.25 * keys.shape[2]
        skips_keys = documents is not None or has_short_window
        use_blocks = use_blocks or blocks_are_faster(n_queries, head_dim, dtype, is_differentiated, skips_keys)
    if use_blocks:
        return attention_in_blocks(queries, keys, values, scoring, documents)
    return sdpa_attention(queries, keys, values, scoring, documents, mask)
