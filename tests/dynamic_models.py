"""Models whose dynamic widths differ between tokens."""

import torch
from tiny_runs import tiny_recipe

from widthwise.model.decoder import Decoder, build

DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25, ratio: 9.0}"
AS_WRITTEN = "model.ffn={kind: dynamic, score: {kind: const}, mask: {kind: hard}, min_fraction: 0.0, start: 0.5}"


def model_of(*overrides: str) -> Decoder:
    """The tiny model, with random weights in its linear scores."""
    model = build(tiny_recipe(*overrides).explicit_model, seed=1)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "v"):
                module.v.weight.normal_(generator=torch.Generator().manual_seed(3))
    return model
