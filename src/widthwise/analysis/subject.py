"""The interface between a finished model, ours or of another library, and the statistics of its forward pass."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from widthwise.kernels.attention import visible
from widthwise.kernels.dispatch import soft_capped, without_autocast
from widthwise.model.context import Site, Stream

SCORES_AT_ONCE = 1 << 23
IN_BLOCKS = torch.ops.widthwise.attention.default
"""Operator of `kernels.attention_in_blocks.forward`."""


class AttentionCall(NamedTuple):
    """The arguments of one call of attention, after positions, norms and padding."""

    queries: Tensor
    """(B, n_heads, T, head_dim)"""
    keys: Tensor
    """(B, n_kv_heads, S, head_dim); groups of adjacent query heads share a head."""
    mask: Tensor | None
    """Broadcasts to (B, n_heads, T, S): bool, True where a query may attend, or numbers to add to the scores."""
    is_causal: bool
    """Query i attends to keys up to i."""
    scale: float
    score_cap: float | None = None

    def first_key_weights(self) -> Tensor:
        """Return the attention weight of key 0 for each query, (B, n_heads, T), in fp32 or wider.

        Holds at most SCORES_AT_ONCE scores, or the scores of one query of every head and text.
        """
        n_texts, n_heads, n_queries, _ = self.queries.shape
        n_at_once = max(1, SCORES_AT_ONCE // (n_texts * n_heads * self.keys.shape[2]))
        weights = []
        with without_autocast(self.queries):
            for start in range(0, n_queries, n_at_once):
                scores = self._scores(start, min(start + n_at_once, n_queries))
                weights.append((scores[..., 0] - scores.logsumexp(dim=-1)).exp())
        return torch.cat(weights, dim=-1)

    def _scores(self, start: int, stop: int) -> Tensor:
        """Return (B, n_heads, stop - start, S), of queries from `start` on; -inf at masked keys."""
        wide = torch.promote_types(self.queries.dtype, torch.float32)
        n_kv_heads, n_keys = self.keys.shape[1:3]
        queries = self.queries[:, :, start:stop].to(wide).unflatten(1, (n_kv_heads, -1))
        scores = soft_capped(self.scale * (queries.flatten(2, 3) @ self.keys.to(wide).mT), self.score_cap)
        scores = scores.unflatten(2, queries.shape[2:4]).flatten(1, 2)
        if self.is_causal:
            rows = torch.arange(start, stop, device=scores.device)[:, None]
            scores = scores.masked_fill(torch.arange(n_keys, device=scores.device) > rows, -math.inf)
        if self.mask is None:
            return scores
        mask = self.mask.expand(*self.mask.shape[:-2], self.queries.shape[2], n_keys)[..., start:stop, :]
        return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


class AttentionCalls(TorchFunctionMode):
    """Call see(number, call) for every call of attention, counted from 0, except in compiled code."""

    def __init__(self, see: Callable[[int, AttentionCall], None]):
        super().__init__()
        self._see = see
        self.n_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (scaled_dot_product_attention, IN_BLOCKS):
            self._see(self.n_calls, (_call_in_blocks if func is IN_BLOCKS else _call_of)(*args, **kwargs))
            self.n_calls += 1
        return func(*args, **kwargs)


def _call_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """Take the arguments of scaled_dot_product_attention."""
    return AttentionCall(query, key, attn_mask, is_causal, query.shape[-1] ** -0.5 if scale is None else scale)


def _call_in_blocks(queries: Tensor, keys: Tensor, values: Tensor, *options: Any) -> AttentionCall:
    """Take the arguments of IN_BLOCKS."""
    scale, documents, window, score_cap = options
    mask = visible(queries.shape[2], keys.shape[2], documents, queries.device, window)
    return AttentionCall(queries, keys, mask, is_causal=False, scale=scale, score_cap=score_cap)


class Watcher:
    """Receiver of the tensors of one forward pass. It must not modify them, or hold them after the pass."""

    def see_stream(self, depth: int, stream: Tensor, hidden: Tensor) -> None:
        """Called after each layer in order; depth 0 is the stream before the first layer.

        stream: (B, T, width), the coordinates of the residual stream written so far, including carried ones; hidden:
        (B, T, d_model), the stream after the last norm of the model.
        """

    def see_activations(self, layer: int, block: int, activations: Tensor) -> None:
        """Called once in a pass, or in pieces; layers and blocks from 0 on.

        activations: (n, d_ff), input of the down-projection of the block for the next n tokens; 0 at units that a token
        does not use.
        """

    def see_block(self, layer: int, block: int, hidden: Tensor) -> None:
        """Called for each block except the last in a feed-forward that is a stack; layers and blocks from 0 on.

        hidden: (B, T, d_model), the stream after that block and the last norm of the model.
        """

    def see_attention(self, layer: int, call: AttentionCall) -> None:
        """Called once for each layer, from 0 on."""


@contextmanager
def watched_reads(site: Site, see: Callable[[Stream], None]) -> Iterator[None]:
    """Call see(stream) before each read of an uncompiled site."""
    read = site.read

    def watched(stream: Stream) -> tuple[Tensor, Any]:
        see(stream)
        return read(stream)

    site.read = watched
    try:
        yield
    finally:
        del site.read


@contextmanager
def watched_layers(
    layers: Sequence[nn.Module], watcher: Watcher, show: Callable[[int, Any], None]
) -> Iterator[AttentionCalls]:
    """Call show(depth, stream) and watcher.see_attention in one uncompiled pass of the layers.

    Depth 0 is the input of the first layer, depth l the output of layer l, or its first entry if that is a tuple.
    """

    def enter(module: Any, args: Any, kwargs: Any) -> None:
        show(0, args[0] if args else kwargs["hidden_states"])

    def leave(depth: int, module: Any, args: Any, output: Any) -> None:
        show(depth, output[0] if isinstance(output, tuple) else output)

    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(layers[0].register_forward_pre_hook(enter, with_kwargs=True))
        for depth, layer in enumerate(layers, start=1):
            stack.enter_context(layer.register_forward_hook(partial(leave, depth)))
        yield stack.enter_context(AttentionCalls(watcher.see_attention))
