"""Any Decoder as a subject of the statistics."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from widthwise.analysis.subject import Subject, Watcher, watched_layers
from widthwise.kernels.swiglu import reference_swiglu
from widthwise.model.axes import Linear
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.dynamic_hourglass_module import DynamicHourglass
from widthwise.model.ffn.hourglass_module import Hourglass
from widthwise.model.ffn.interface_module import FeedForward
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.ffn.width_choice_module import WidthChoosing
from widthwise.model.layer_module import DecoderLayer
from widthwise.model.residual.interface import Stream
from widthwise.model.residual.over_width_module import PadEntry

DOWN = "w_down"
"""The name of the last matrix of a feed-forward, or of each of its blocks."""
ROWS_AT_ONCE = 1024


class DecoderSubject(Subject):
    """In evaluation mode. Its further heads are not looked at."""

    def __init__(self, model: Decoder):
        self._model = model

    @property
    def d_model(self) -> int:
        return self._model.config.d_model

    @property
    def widths(self) -> list[int]:
        return self._model.config.widths

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)

    def run(self, tokens: Tensor, watcher: Watcher) -> None:
        def show(depth: int, stream: Stream) -> None:
            watcher.see_stream(depth, self._wide(depth, stream), self._model.exit(stream))

        def show_block(layer: int, block: int, stream: Stream) -> None:
            watcher.see_block(layer, block, self._model.exit(stream))

        layers = cast(list[DecoderLayer], list(self._model.layers))
        with ExitStack() as stack:
            stack.enter_context(watched_layers(layers, watcher, show))
            for index, layer in enumerate(layers):
                stack.enter_context(watched_units(layer.ffn, partial(watcher.see_activations, index)))
                stack.enter_context(watched_exits(layer, partial(show_block, index)))
            self._model.stream(tokens)

    def _wide(self, depth: int, stream: Stream) -> Tensor:
        """(B, T, width): of the plain residual as many coordinates as a layer has written by then, else all slots."""
        config = self._model.config
        width = max((config.d_model, *config.widths[:depth]))
        states = config.residual.to_slots(stream, width).flatten(-2)
        # Before the first layer the padding is nothing that was written.
        return states[..., :width] if depth == 0 and type(self._model.entry) is PadEntry else states


@contextmanager
def watched_units(ffn: FeedForward, see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Calls see(block, activations (n, d_ff)) in a pass of the feed-forward; in a second one, blocks would count on.

    A block is a call of a matrix named w_down, or the routed experts of a mixture, which `see` is given in pieces. A
    feed-forward that chooses its width computes all its units meanwhile, and masks them.
    """
    n_blocks = itertools.count()

    def see_down(module: Any, args: Any) -> None:
        see(next(n_blocks), args[0].flatten(0, -2))

    def see_router(moe: MoE, module: Any, args: Any, logits: Tensor) -> None:
        block = next(n_blocks)
        for activations in expert_activations(moe, args[0].flatten(0, -2), logits.flatten(0, -2)):
            see(block, activations)

    with ExitStack() as stack:
        if isinstance(ffn, DynamicHourglass):
            see = stack.enter_context(_times_masks(ffn, see))
        for name, module in ffn.named_modules():
            if isinstance(module, MoE):
                stack.enter_context(module.w_router.register_forward_hook(partial(see_router, module)))
            elif isinstance(module, WidthChoosing):
                stack.enter_context(module.unskipped())
            elif name.rpartition(".")[2] == DOWN and isinstance(module, Linear):
                stack.enter_context(module.register_forward_pre_hook(see_down))
        yield


def expert_activations(moe: MoE, x: Tensor, logits: Tensor) -> Iterator[Tensor]:
    """x: (n, d_model), what the experts read, and logits: (n, n_experts) of the router -> in pieces (m, n_experts *
    d_expert), the units of all experts, 0 where a token is not sent to the expert.
    """
    n_experts, d_expert = moe.config.n_experts, moe.config.d_expert
    w_gate, w_up = (w.weight.unflatten(0, (n_experts, d_expert)) for w in (moe.w_gate, moe.w_up))
    for rows, scores in zip(x.split(ROWS_AT_ONCE), logits.split(ROWS_AT_ONCE)):
        # In the type in which the mixture chooses, or ties would fall elsewhere.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        chosen = scores.topk(moe.config.top_k, dim=-1).indices
        units = rows.new_zeros(len(rows), n_experts, d_expert)
        for expert in range(n_experts):
            token = (chosen == expert).any(dim=-1).nonzero()[:, 0]
            own = rows[token]
            units[token, expert] = reference_swiglu(linear(own, w_gate[expert]), linear(own, w_up[expert])).to(
                units.dtype
            )
        yield units.flatten(1)


@contextmanager
def _times_masks(ffn: DynamicHourglass, see: Callable[[int, Tensor], None]) -> Iterator[Callable[[int, Tensor], None]]:
    """A `see` for all units of the blocks, which calls `see` with those 0 that a token leaves out."""
    units: list[tuple[int, Tensor]] = []

    def leave(module: Any, args: Any, output: Any) -> None:
        masks = ffn.block_masks(output[1]["width_fraction"], args[1].progress).flatten(0, 1)
        for block, activations in units:
            see(block, activations * masks[:, block, None])
        units.clear()

    with ffn.register_forward_hook(leave):
        yield lambda block, activations: units.append((block, activations))


@contextmanager
def watched_exits(layer: DecoderLayer, see: Callable[[int, Stream], None]) -> Iterator[None]:
    """Calls see(block, stream) in a pass of the layer, for each block of an hourglass but the last, from 0 on.

    stream: what the layer would return if its feed-forward ended with that block.
    """
    ffn, site = layer.ffn, layer.ffn_residual
    if not isinstance(ffn, Hourglass):
        yield
        return
    before: list[Stream] = []
    outputs: list[Tensor] = []
    read = site.read

    def remember(stream: Stream) -> tuple[Tensor, Any]:
        before.append(stream)
        return read(stream)

    def see_down(module: Any, args: Any, output: Tensor) -> None:
        outputs.append(output)

    def leave(module: Any, args: Any, output: Any) -> None:
        x, context = args
        masks = torch.ones(len(ffn.stack), device=x.device)
        if isinstance(ffn, DynamicHourglass):
            masks = ffn.block_masks(output[1]["width_fraction"], context.progress)
        stream, total = before.pop(), torch.zeros_like(x)
        for place, block in enumerate(ffn.stack[:-1]):
            total = total + masks[..., place, None] * block.norm.after(outputs[place])
            # Each from a read of its own, because a write may use up what its read kept.
            see(place, site.write(read(stream)[1], total[..., : ffn.d_out]))
        outputs.clear()

    with ExitStack() as stack:
        site.read = remember
        stack.callback(delattr, site, "read")
        if isinstance(ffn, DynamicHourglass):
            stack.enter_context(ffn.unskipped())
        for down in {block.w_down for block in ffn.stack}:  # blocks can share it
            stack.enter_context(down.register_forward_hook(see_down))
        stack.enter_context(ffn.register_forward_hook(leave))
        yield
