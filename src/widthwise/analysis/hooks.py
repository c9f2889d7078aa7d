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
from widthwise.kernels.dispatch import soft_capped, widened, without_autocast
from widthwise.kernels.swiglu import reference_swiglu
from widthwise.model.axes import Linear
from widthwise.model.context import FeedForward, Site, Stream
from widthwise.model.ffn.dynamic_module import DynamicWidth
from widthwise.model.ffn.hourglass_module import Hourglass
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.layer_module import DecoderLayer

SCORES_AT_ONCE = 1 << 23
ROWS_AT_ONCE = 1024
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

        Holds at most SCORES_AT_ONCE scores in memory, but at least all scores of one query position.
        """
        n_texts, n_heads, n_queries, _ = self.queries.shape
        chunk = max(1, SCORES_AT_ONCE // (n_texts * n_heads * self.keys.shape[2]))
        weights = []
        with without_autocast(self.queries):
            for start in range(0, n_queries, chunk):
                scores = self._scores(start, min(start + chunk, n_queries))
                weights.append((scores[..., 0] - scores.logsumexp(dim=-1)).exp())
        return torch.cat(weights, dim=-1)

    def _scores(self, start: int, stop: int) -> Tensor:
        """Return the scores of queries start to stop - 1, (B, n_heads, stop - start, S); -inf at masked keys."""
        n_kv_heads, n_keys = self.keys.shape[1:3]
        queries = widened(self.queries[:, :, start:stop]).unflatten(1, (n_kv_heads, -1))
        scores = soft_capped(self.scale * (queries.flatten(2, 3) @ widened(self.keys).mT), self.score_cap)
        scores = scores.unflatten(2, queries.shape[2:4]).flatten(1, 2)
        if self.is_causal:
            rows = torch.arange(start, stop, device=scores.device)[:, None]
            scores = scores.masked_fill(torch.arange(n_keys, device=scores.device) > rows, -math.inf)
        if self.mask is None:
            return scores
        mask = self.mask.expand(*self.mask.shape[:-2], self.queries.shape[2], n_keys)[..., start:stop, :]
        return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


class AttentionCalls(TorchFunctionMode):
    """A context that calls callback(index, call) for each call of attention; compiled code is not covered.

    index: of the call in this context, from 0 on.
    """

    def __init__(self, callback: Callable[[int, AttentionCall], None]):
        super().__init__()
        self._callback = callback
        self.n_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (scaled_dot_product_attention, IN_BLOCKS):
            read_arguments = _call_in_blocks if func is IN_BLOCKS else _sdpa_call
            self._callback(self.n_calls, read_arguments(*args, **kwargs))
            self.n_calls += 1
        return func(*args, **kwargs)


def _sdpa_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """Return a call of scaled_dot_product_attention, with its parameters."""
    return AttentionCall(query, key, attn_mask, is_causal, query.shape[-1] ** -0.5 if scale is None else scale)


def _call_in_blocks(queries: Tensor, keys: Tensor, values: Tensor, *options: Any) -> AttentionCall:
    """Return a call of IN_BLOCKS, with its parameters."""
    scale, documents, window, score_cap = options
    mask = visible(queries.shape[2], keys.shape[2], documents, queries.device, window)
    return AttentionCall(queries, keys, mask, is_causal=False, scale=scale, score_cap=score_cap)


@contextmanager
def hook_reads(site: Site, callback: Callable[[Stream], None]) -> Iterator[None]:
    """Call callback(stream) before each read of an uncompiled site."""
    read = site.read

    def hooked_read(stream: Stream) -> tuple[Tensor, Any]:
        callback(stream)
        return read(stream)

    site.read = hooked_read
    try:
        yield
    finally:
        del site.read


@contextmanager
def hook_units(ffn: FeedForward, callback: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call callback(block, activations (n, d_ff)) for each block of a feed-forward. Use one context for each pass.

    block: from 0 on, in the order of computation. A block is a call of a matrix named w_down, or all routed experts of
    a mixture, whose tokens are passed in several calls. In this context a feed-forward of dynamic width computes all
    its units, and masks them.
    """
    blocks = itertools.count()

    def on_router(moe: MoE, module: Any, args: Any, logits: Tensor) -> None:
        block = next(blocks)
        for activations in expert_activations(moe, args[0].flatten(0, -2), logits.flatten(0, -2)):
            callback(block, activations)

    with ExitStack() as stack:
        for name, module in ffn.named_modules():
            if isinstance(module, MoE):
                stack.enter_context(module.w_router.register_forward_hook(partial(on_router, module)))
            elif isinstance(module, DynamicWidth):
                stack.enter_context(module.masked_execution())
            elif name.rpartition(".")[2] == "w_down" and isinstance(module, Linear):
                hook = module.register_forward_pre_hook(lambda _, args: callback(next(blocks), args[0].flatten(0, -2)))
                stack.enter_context(hook)
        yield


def expert_activations(moe: MoE, x: Tensor, logits: Tensor) -> Iterator[Tensor]:
    """Yield the units of all experts for at most ROWS_AT_ONCE tokens, (m, n_experts * d_expert).

    Units of experts that do not process a token are 0. x: (n, d_model), input of the experts; logits: (n, n_experts),
    of the router.
    """
    n_experts = moe.config.n_experts
    d_expert = moe.config.d_expert
    w_gate, w_up = (w.weight.unflatten(0, (n_experts, d_expert)) for w in (moe.w_gate, moe.w_up))
    for rows, scores in zip(x.split(ROWS_AT_ONCE), logits.split(ROWS_AT_ONCE)):
        _, chosen = moe.choose(widened(scores))  # as the mixture does, so that ties are resolved equally
        units = rows.new_zeros(len(rows), n_experts, d_expert)
        for expert in range(n_experts):
            tokens = (chosen == expert).any(dim=-1).nonzero()[:, 0]
            inputs = rows[tokens]
            activations = reference_swiglu(linear(inputs, w_gate[expert]), linear(inputs, w_up[expert]))
            units[tokens, expert] = activations.to(units.dtype)
        yield units.flatten(1)


@contextmanager
def hook_block_exits(
    layer: DecoderLayer, exit: Callable[[Stream], Tensor], callback: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Call callback(block, exit(stream)) in each pass of a layer, for each block of an hourglass except the last.

    block: from 0 on; stream: output of the layer if its feed-forward ended with that block. Other feed-forwards have no
    such blocks.
    """
    ffn = layer.ffn
    site = layer.ffn_residual
    if not isinstance(ffn, Hourglass):
        yield
        return
    streams: list[Stream] = []
    updates: list[Tensor] = []
    read = site.read

    def on_output(module: Any, args: Any, output: Any) -> None:
        stream = streams.pop()
        total = torch.zeros_like(args[0], dtype=torch.promote_types(args[0].dtype, torch.float32))
        for index, update in enumerate(updates[:-1]):
            total = total + update
            # Each write needs a separate read, because it may modify the state of its read.
            _, skip = read(stream)
            callback(index, exit(site.write(skip, total[..., : ffn.d_out])))
        updates.clear()

    with ExitStack() as stack:
        stack.enter_context(hook_reads(site, streams.append))
        for block in ffn.blocks:
            stack.enter_context(block.register_forward_hook(lambda _, args, output: updates.append(output[0])))
        stack.enter_context(ffn.register_forward_hook(on_output))
        yield
