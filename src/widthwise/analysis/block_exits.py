"""The stream inside a layer, after each block of its feed-forward."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

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
    updates: list[Tensor] = []
    read = site.read

    def remember(stream: Stream) -> tuple[Tensor, Any]:
        before.append(stream)
        return read(stream)

    def see_block(module: Any, args: Any, output: Any) -> None:
        updates.append(output[0])

    def leave(module: Any, args: Any, output: Any) -> None:
        stream, total = before.pop(), torch.zeros_like(args[0])
        for block, update in enumerate(updates[:-1]):
            total = total + update
            # Each from a read of its own, because a write may use up what its read kept.
            see(block, site.write(read(stream)[1], total[..., : ffn.d_out]))
        updates.clear()

    with ExitStack() as stack:
        site.read = remember
        stack.callback(delattr, site, "read")
        for block in ffn.blocks:
            stack.enter_context(block.register_forward_hook(see_block))
        stack.enter_context(ffn.register_forward_hook(leave))
        yield
