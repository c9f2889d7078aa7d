"""Compiling layer by layer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from widthwise.model.decoder import Decoder

GRAPHS_PER_LAYER = 6
"""Training, validation, and the smaller last batch of a validation; each with a width forced and without."""


def compile_layers(model: Decoder, backend: str | Callable = "inductor") -> None:
    """Compile each layer in place, including layers of further heads; equal layers share a graph.

    All layers run the same code, and Dynamo by default gives up on code after 8 graphs and runs it uncompiled: too few
    for a model in which all layers have different widths. With fullgraph, giving up or breaking a graph is an error.
    """
    import torch._dynamo  # takes as long as torch itself

    # Of a further head only its layer: one that is divided among processes gathers its weights outside of graphs.
    layers = [layer for _, layer in model.named_layers()]
    n_graphs = GRAPHS_PER_LAYER * len(layers)
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, n_graphs)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, n_graphs)
    for layer in layers:
        # Widths are constants of a layer; as symbols they would cost kernels tuned to their sizes.
        layer.compile(backend=backend, fullgraph=True, dynamic=False)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Within it, compiled layers run as they are written, so that tokens of other shapes ask for no further graphs."""
    compiled = {module: module._compiled_call_impl for module in model.modules() if is_compiled(module)}
    for module in compiled:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


def is_compiled(layer: nn.Module) -> bool:
    """Return whether `compile_layers` compiled it."""
    return layer._compiled_call_impl is not None
