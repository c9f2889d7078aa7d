"""The layers of a model watched by hooks, those of ours and of others alike."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from widthwise.analysis.attention_calls import AttentionCalls
from widthwise.analysis.subject import Watcher


@contextmanager
def watched_layers(
    layers: Sequence[nn.Module], watcher: Watcher, show: Callable[[int, Any], None]
) -> Iterator[AttentionCalls]:
    """In every pass of the layers, which run uncompiled meanwhile, calls show(depth, what goes into the first layer or
    comes out of layer `depth`), and shows the watcher the attention. One pass: the layers' attention is counted on.

    Where a layer returns a tuple, its first entry counts.
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
