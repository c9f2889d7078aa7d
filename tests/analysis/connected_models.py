"""Small models with hyper-connections, x-shaped, and a look at what their sublayers read and write."""

from typing import Any

import torch
from model_cases import decoder
from torch import Tensor

from widthwise.config_io import parse
from widthwise.model.decoder import Decoder, build
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import merge

WIDTHS = [12, 8, 4, 12]
"""Blocks of 4 that the sites write: 3, 3, 2, 2, 1, 1, 3, 2; the first reads 2 and the last writes 2."""


def connected_model(trained: bool = True, **changes: Any) -> Decoder:
    """In float64. trained: weights that start at 0 or 1 are moved, so that coefficients are of no special form."""
    data = {
        "vocab_size": 31,
        "d_model": 8,
        "n_layers": len(WIDTHS),
        "shape": {"kind": "explicit", "widths": WIDTHS},
        "attention": {"head_dim": 4},
        "residual": {"kind": "hyper_connections", "slot_width": 4, "n_slots": 5},
        "init": {"std": 0.3},
    }
    resolved = parse(ModelTemplate, merge(data, changes), "model").resolve(7)
    return (decoder(resolved) if trained else build(resolved, seed=2, dtype=torch.float64)).eval()


def tokens(n_windows: int, length: int = 7) -> Tensor:
    return torch.randint(31, (n_windows, length), generator=torch.Generator().manual_seed(1))


def sublayers(model: Decoder) -> list[torch.nn.Module]:
    return [sublayer for layer in model.layers for sublayer in (layer.attention, layer.ffn)]


class Traffic:
    """What every sublayer read and wrote in the last pass."""

    def __init__(self, model: Decoder):
        self.read: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}
        for index, sublayer in enumerate(sublayers(model)):
            sublayer.register_forward_hook(self._hook(index))

    def _hook(self, index: int):
        def hook(module, args, output):
            self.read[index] = args[0].detach()
            self.written[index] = (output[0] if isinstance(output, tuple) else output).detach()

        return hook
