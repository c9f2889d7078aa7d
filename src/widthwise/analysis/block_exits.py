"""The stream inside a layer, after each block of its feed-forward."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from widthwise.model.ffn.dynamic_hourglass_module import DynamicHourglass
from widthwise.model.ffn.hourglass_module import Hourglass
from widthwise.model.layer_module import DecoderLayer
from widthwise.model.residual.interface import Stream


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
