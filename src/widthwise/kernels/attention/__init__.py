"""Causal attention within documents."""

import torch
from torch import Tensor

from widthwise.kernels.attention import fused, one_query, sdpa
from widthwise.kernels.dispatch import reference_wanted

__all__ = ["attention"]

MIN_QUERIES = 32
"""Fewer are not worth a block, nor measured."""
MIN_FORWARD_QUERIES = 256
"""The same without a backward pass."""
MIN_FORWARD_HEAD_DIM = 32
MIN_WIDE_QUERIES = 512
"""The same in fp32 and fp64 with or without one, where documents keep tokens apart."""
MIN_CACHED = 2**16
"""Numbers in the keys of a cache: fewer are not worth the calls of the form for one query."""


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    documents: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """See `reference.attention`; in blocks where that is faster, else by torch's fused function.

    mask: what `reference.visible` makes of the documents and the numbers of queries and keys, or that as numbers to be
    added to scores, where it is made already for all layers; it says nothing else.
    """
    is_differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    (n_queries, head_dim), has_documents = queries.shape[2:], documents is not None
    # Without flash, somebody wants the plain form, to count it or to differentiate it twice.
    if queries.device.type == "cpu" and sdpa.flash_is_enabled() and not reference_wanted():
        dtype = fused.compute_type(queries)
        if not is_differentiated and one_query_is_faster(queries, keys, dtype):
            return one_query.attention(queries, keys, values, scale, documents)
        if blocks_are_faster(n_queries, head_dim, dtype, is_differentiated, has_documents):
            return fused.attention(queries, keys, values, scale, documents)
    return sdpa.attention(queries, keys, values, scale, documents, mask)


def blocks_are_faster(
    n_queries: int, head_dim: int, dtype: torch.dtype, is_differentiated: bool, has_documents: bool
) -> bool:
    """Whether blocks are faster than torch's fused function on a CPU.

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
    """Whether `one_query` is faster than torch's fused function on a CPU, without a backward pass.

    In bf16 it takes 0.4 to 0.7 of the time, and 0.15 to 0.35 where 3 or 4 heads share a key-value head; in fp32 0.9 to
    1.2, and for more queries mostly longer too. Not in a compiled graph, which would have a loop of every length.
    """
    return (
        dtype == torch.bfloat16
        and queries.shape[2] == 1
        and keys.numel() >= MIN_CACHED
        and not torch.compiler.is_compiling()
    )
