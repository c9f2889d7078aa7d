"""A Decoder as the subject of an analysis."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from widthwise.analysis.subject import Watcher, watched_layers, watched_reads
from widthwise.kernels.swiglu import reference_swiglu
from widthwise.mistakes import UserError
from widthwise.model.axes import Linear
from widthwise.model.context import FeedForward, Stream
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.dynamic_module import DynamicWidth
from widthwise.model.ffn.hourglass_module import Hourglass
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.layer_module import DecoderLayer
from widthwise.model.residual.over_width_module import PadEntry

DOWN = "w_down"
"""Name of the last matrix of a feed-forward, or of each of its blocks."""
ROWS_AT_ONCE = 1024


class DecoderSubject:
    """A Decoder in evaluation mode; its MTP heads are ignored."""

    def __init__(self, model: Decoder):
        self._model = model
        self.d_model = model.config.d_model
        """Width of the head."""
        self.widths = model.config.widths
        """Width of each layer."""
        self.logits = model.logits

    def run(self, tokens: Tensor, watcher: Watcher) -> None:
        """Run the model, uncompiled and without its logits, and call the watcher. tokens: integers (B, T).

        The watcher sees the written coordinates of a plain residual, otherwise all slots.
        """

        def show(depth: int, stream: Stream) -> None:
            width = max((self.d_model, *self.widths[:depth]))
            states = self._model.config.residual.to_slots(stream, width).flatten(-2)
            if depth == 0 and type(self._model.entry) is PadEntry:
                states = states[..., :width]  # nothing has written the padding yet
            watcher.see_stream(depth, states, self._model.exit(stream))

        layers = cast(list[DecoderLayer], list(self._model.layers))
        with ExitStack() as stack:
            calls = stack.enter_context(watched_layers(layers, watcher, show))
            for index, layer in enumerate(layers):
                stack.enter_context(watched_units(layer.ffn, partial(watcher.see_activations, index)))
                stack.enter_context(watched_exits(layer, self._model.exit, partial(watcher.see_block, index)))
            self._model.stream(tokens)
            if calls.n_calls != len(layers):
                raise UserError("WIDTHWISE_KERNELS: got reference; the analysis of capped scores needs fused")


@contextmanager
def watched_units(ffn: FeedForward, see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call see(block, activations (n, d_ff)) in one pass of the feed-forward; blocks are counted once per context.

    A block is a call of a matrix named w_down, or the routed experts of a mixture, passed to `see` in pieces. In this
    context a feed-forward of dynamic width computes all its units, and masks them.
    """
    n_blocks = itertools.count()

    def see_down(module: Any, args: Any) -> None:
        see(next(n_blocks), args[0].flatten(0, -2))

    def see_router(moe: MoE, module: Any, args: Any, logits: Tensor) -> None:
        block = next(n_blocks)
        for activations in expert_activations(moe, args[0].flatten(0, -2), logits.flatten(0, -2)):
            see(block, activations)

    with ExitStack() as stack:
        for name, module in ffn.named_modules():
            if isinstance(module, MoE):
                stack.enter_context(module.w_router.register_forward_hook(partial(see_router, module)))
            elif isinstance(module, DynamicWidth):
                stack.enter_context(module.unskipped())
            elif name.rpartition(".")[2] == DOWN and isinstance(module, Linear):
                stack.enter_context(module.register_forward_pre_hook(see_down))
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
        for down in {block.w_down for block in ffn.stack}:  # blocks can share it
            stack.enter_context(down.register_forward_hook(see_down))
        stack.enter_context(ffn.register_forward_hook(leave))
        yield
