"""How wide tokens were in the dynamic-width layers: what every validation finds on its way, batch by batch."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widthwise.analysis.moments import Moments
from widthwise.model.choices import Choices
from widthwise.model.compiling import is_compiled
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import DynamicLayer, dynamic_layers, flops_shares
from widthwise.model.dynamic_modules import dynamic_modules, width_fractions
from widthwise.model.ffn.width_choice_module import WidthChoosing

N_BINS = 32
NEAR = 0.01
"""Fractions this close to the narrowest or to 1 count as lying there; a sigmoid never reaches its ends."""
NO_SPREAD = 1e-6
"""A standard deviation of fractions that is not above it is rounding."""


class WidthMeter:
    """Width statistics over all tokens of a text."""

    def __init__(self, model: Decoder):
        modules = dynamic_modules(model)
        self._meters = [
            _LayerMeter(layer, modules[layer.index], model.progress, is_compiled(model.layers[layer.index]))
            for layer in dynamic_layers(model.config)
        ]

    def add(self, choices: Sequence[Choices]) -> None:
        """Takes in the tokens of a forward pass. Call as the model was: in the same mode, with the same autocast."""
        for meter, fraction in zip(self._meters, width_fractions(choices)):
            meter.add(fraction.detach().flatten())

    def summary(self) -> dict[str, Any] | None:
        """The `token_widths` of a validation record; None for a model without dynamic-width layers.

        mean_fraction weighs the layers by their FLOPs. token_variance_share: of the variance of all fractions of all
        layers, the part that lies between the tokens of a layer; null where they do not vary. flops_per_token: forward,
        of the dynamic matrices: all units, what tokens asked for, that rounded up to buckets, and what was computed.
        """
        meters = self._meters
        if not meters:
            return None
        means = np.array([float(meter.fractions.mean) for meter in meters])
        within = float(np.mean([float(meter.fractions.variance) for meter in meters]))
        total = within + float(means.var())
        flops = sum(meter.layer.flops_per_unit * meter.units / meter.fractions.n for meter in meters)
        return {
            "n_tokens": meters[0].fractions.n,
            "mean_fraction": float(means @ flops_shares([meter.layer for meter in meters])),
            "token_variance_share": within / total if total > NO_SPREAD**2 else None,
            "flops_per_token": dict(zip(("full", "asked", "bucketed", "executed"), np.asarray(flops).tolist())),
            "layers": [meter.summary() for meter in meters],
        }


class _LayerMeter:
    """Sums over the tokens of one layer."""

    def __init__(self, layer: DynamicLayer, ffn: WidthChoosing, progress: Tensor, is_compiled: bool):
        self.layer, self._ffn, self._d_ff = layer, ffn, layer.d_ff
        self._progress, self._is_compiled = progress, is_compiled
        self.fractions = Moments()
        self._low, self._high = math.inf, -math.inf
        self._histogram = np.zeros(N_BINS, dtype=np.int64)
        self._n_floor, self._n_ceiling = 0, 0
        self.units = np.zeros(4)
        """Sums over tokens: all, asked, bucketed, computed."""

    def add(self, fraction: Tensor) -> None:
        """Takes in the width fractions of n tokens, (n,)."""
        values = fraction.double().cpu()
        self.fractions.add(values)
        values = values.numpy()
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        self._histogram += np.histogram(values, bins=N_BINS, range=(0.0, 1.0))[0]
        self._n_floor += int((values <= self.layer.narrowest + NEAR).sum())
        self._n_ceiling += int((values >= 1 - NEAR).sum())
        width = self.layer.config.full_width * fraction
        self.units += [
            len(values) * self._d_ff,
            float((self._d_ff * fraction).double().sum()),
            self._ffn.bucketed_units(width, self._progress),
            self._ffn.computed_units(width, self._progress, self._is_compiled),
        ]

    def summary(self) -> dict[str, Any]:
        """The entry of a layer.

        A token uses the units whose centres lie within its width, whatever its mask; dead_share is of the units that
        none uses. gain, bias and temperature are null where the layer has none.
        """
        widest = torch.tensor(self._high * self.layer.config.full_width, dtype=torch.float64)
        max_units = int(self._ffn.used_units(widest))
        return {
            "layer": self.layer.index + 1,
            "d_ff": self._d_ff,
            "mean": float(self.fractions.mean),
            "sd": math.sqrt(self.fractions.variance),
            "min": self._low,
            "max": self._high,
            "histogram": (self._histogram / self.fractions.n).tolist(),
            "floor_share": self._n_floor / self.fractions.n,
            "ceiling_share": self._n_ceiling / self.fractions.n,
            "dead_share": 1 - max_units / self._d_ff,
            "max_units": max_units,
            **self._ffn.numbers(self._progress),
        }
