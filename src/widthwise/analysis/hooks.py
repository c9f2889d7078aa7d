"""Hooks into a forward pass: calls of attention, reads of residual sites, units and blocks of feed-forwards."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from widthwise.kernels.attention import visible
from widthwise.kernels.dispatch import soft_capped, without_autocast
from widthwise.kernels.swiglu import reference_swiglu
from widthwise.model.axes import Linear
from widthwise.model.context import FeedForward, Site, Stream
from widthwise.model.ffn.dynamic_module import DynamicWidth
from widthwise.model.ffn.hourglass_module import Hourglass
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.layer_module import DecoderLayer

SCORES_AT_ONCE = 1 << 23
IN_BLOCKS = torch.ops.widthwise.attention.default
"""Operator of `kernels.attention_in_blocks.forward`."""
DOWN = "w_down"
"""Name of the last matrix of a feed-forward, or of each of its blocks."""
ROWS_AT_ONCE = 1024


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
def watched_units(ffn: FeedForward, see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call see(block, activations (n, d_ff)) in one pass of the feed-forward; blocks are counted once per context.

    A block is a call of a matrix named w_down, or the routed experts of a mixture, passed to `see` in pieces. In this
    context a feed-forward of dynamic width computes all its units, and masks them.
    """
    n_blocks = itertools.count()

    def see_router(moe: MoE, module: Any, args: Any, logits: Tensor) -> None:
        block = next(n_blocks)
        for activations in expert_activations(moe, args[0].flatten(0, -2), logits.flatten(0, -2)):
            see(block, activations)

    with ExitStack() as stack:
        for name, module in ffn.named_modules():
            if isinstance(module, MoE):
                stack.enter_context(module.w_router.register_forward_hook(partial(see_router, module)))
            elif isinstance(module, DynamicWidth):
                stack.enter_context(module.masked_execution())
            elif name.rpartition(".")[2] == DOWN and isinstance(module, Linear):
                hook = module.register_forward_pre_hook(lambda _, args: see(next(n_blocks), args[0].flatten(0, -2)))
                stack.enter_context(hook)
        yield


def expert_activations(moe: MoE, x: Tensor, logits: Tensor) -> Iterator[Tensor]:
    """Yield the units of all experts in pieces (m, n_experts * d_expert), 0 where a token is not sent to the expert.

    x: (n, d_model), input of the experts; logits: (n, n_experts) of the router.
    """
    n_experts = moe.config.n_experts
    d_expert = moe.config.d_expert
    w_gate, w_up = (w.weight.unflatten(0, (n_experts, d_expert)) for w in (moe.w_gate, moe.w_up))
    for rows, scores in zip(x.split(ROWS_AT_ONCE), logits.split(ROWS_AT_ONCE)):
        # In the type in which the mixture chooses, so that ties are resolved equally.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        chosen = scores.topk(moe.config.top_k, dim=-1).indices
        units = rows.new_zeros(len(rows), n_experts, d_expert)
        for expert in range(n_experts):
            token = (chosen == expert).any(dim=-1).nonzero()[:, 0]
            inputs = rows[token]
            activations = reference_swiglu(linear(inputs, w_gate[expert]), linear(inputs, w_up[expert]))
            units[token, expert] = activations.to(units.dtype)
        yield units.flatten(1)


@contextmanager
def watched_exits(
    layer: DecoderLayer, exit: Callable[[Stream], Tensor], see: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Call see(block, exit(stream)) in a pass of the layer, for each block of an hourglass except the last, from 0 on.

    stream: output of the layer if its feed-forward ended with that block.
    """
    ffn = layer.ffn
    site = layer.ffn_residual
    if not isinstance(ffn, Hourglass):
        yield
        return
    before: list[Stream] = []
    outputs: list[Tensor] = []
    read = site.read

    def see_down(module: Any, args: Any, output: Tensor) -> None:
        outputs.append(output)

    def leave(module: Any, args: Any, output: Any) -> None:
        stream = before.pop()
        total = torch.zeros_like(args[0], dtype=torch.promote_types(args[0].dtype, torch.float32))
        for place, block in enumerate(ffn.stack[:-1]):
            total = total + block.norm.after(outputs[place])
            # Each write needs a separate read, because it may modify the state of its read.
            see(place, exit(site.write(read(stream)[1], total[..., : ffn.d_out])))
        outputs.clear()

    with ExitStack() as stack:
        stack.enter_context(watched_reads(site, before.append))
        for block in ffn.stack:
            stack.enter_context(block.w_down.register_forward_hook(see_down))
        stack.enter_context(ffn.register_forward_hook(leave))
        yield
