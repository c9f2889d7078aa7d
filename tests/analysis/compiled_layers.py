"""Models whose layers are compiled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from widthwise.model.decoder import Decoder


def assert_compiled_layers_show_the_same(
    model: Decoder, tokens: Tensor, summary: Callable[[Decoder, Tensor], Any]
) -> None:
    """An analysis finds what it found before the layers were compiled, and compiles nothing again."""
    expected, graphs = summary(model, tokens), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        before, n_graphs = model(tokens), len(graphs)
        assert summary(model, tokens) == expected
        assert torch.equal(model(tokens), before)
    assert n_graphs == len(graphs) > 0
