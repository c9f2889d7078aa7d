"""Evaluation mode with repeatable random draws, and compilation of layers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from widthwise.model.decoder import Decoder

SEED = 0
"""Seed of random draws in evaluation."""
GRAPHS_PER_LAYER = 6
"""Training, validation and the smaller last batch of a validation, each with and without `width_fraction`."""


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Disable gradients and seed random draws. The generators then continue as if nothing had run."""
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Put the model into evaluation mode without gradients, and yield its device.

    Random draws are the same every time, and the generators of training continue as if nothing had run.
    """
    device = next(model.parameters()).device
    was_training = model.training
    with repeatable(device):
        model.eval()
        try:
            yield device
        finally:
            model.train(was_training)


def compile_layers(model: Decoder, backend: str | Callable = "inductor") -> None:
    """Compile each layer in place, including layers of MTP heads. Equal layers share a graph.

    All layers run the same code. By default Dynamo runs code uncompiled after 8 graphs, which are too few for a model
    whose layers have different widths. With fullgraph, too many graphs or a graph break are errors.
    """
    import torch._dynamo  # takes as long as torch itself

    # Compile only the layer of an MTP head, because a sharded head gathers its weights outside of graphs.
    layers = [layer for _, layer in model.named_layers()]
    n_graphs = GRAPHS_PER_LAYER * len(layers)
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, n_graphs)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, n_graphs)
    for layer in layers:
        # Constant sizes give tuned kernels; symbolic sizes do not.
        layer.compile(backend=backend, fullgraph=True, dynamic=False)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run compiled layers uncompiled within the block, so that batches of other shapes need no further graphs."""
    compiled = {module: module._compiled_call_impl for module in model.modules() if is_compiled(module)}
    for module in compiled:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


def unwrapped(model: Decoder) -> Decoder:
    """Return the decoder inside of `torch.compile(model)`, which renames its parameters; any other model unchanged."""
    return getattr(model, "_orig_mod", model)


def is_compiled(layer: nn.Module) -> bool:
    """Return whether `compile_layers` compiled it."""
    return layer._compiled_call_impl is not None
