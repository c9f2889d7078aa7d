"""How wide tokens were in the dynamic-width layers: what every validation finds on its way, batch by batch."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widthwise.kernels.dispatch import use_fused
from widthwise.kernels.sliced_swiglu import bucketed_units
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.dynamic import DynamicWidth
from widthwise.model.ffn.interface import Choices
from widthwise.model.ffn.width_score import GainedScore
from widthwise.training.dynamic_layers import DynamicLayer, dynamic_layers, flops_shares

N_BINS = 32
NEAR = 0.01
"""Fractions this close to the narrowest or to 1 count as lying there; a sigmoid never reaches its ends."""
NO_SPREAD = 1e-6
"""A standard deviation of fractions that is not above it is rounding."""


class WidthMeter:
    """Width statistics over all tokens of a text."""

    def __init__(self, model: Decoder):
        self._progress = model.progress
        self._meters = [_LayerMeter(layer, model) for layer in dynamic_layers(model.config)]

    def add(self, choices: Sequence[Choices]) -> None:
        """Takes in the tokens of a forward pass. Call in evaluation mode, without gradients."""
        for meter in self._meters:
            meter.add(choices[meter.layer.index]["width_fraction"].flatten(), self._progress)

    def summary(self) -> dict[str, Any] | None:
        """What a "widths" record holds; None for a model without dynamic-width layers.

        mean_fraction weighs the layers by their FLOPs. token_variance_share: of the variance of all fractions of all
        layers, the part that lies between the tokens of a layer; null where they do not vary. flops_per_token: forward,
        of the dynamic matrices: all units, what tokens asked for, that rounded up to buckets, and what was computed.
        """
        meters = self._meters
        if not meters:
            return None
        means = np.array([meter.mean for meter in meters])
        within = float(np.mean([meter.variance for meter in meters]))
        total = within + float(means.var())
        flops = sum(meter.layer.flops_per_unit * meter.units / meter.n_tokens for meter in meters)
        return {
            "n_tokens": meters[0].n_tokens,
            "mean_fraction": float(means @ flops_shares([meter.layer for meter in meters])),
            "token_variance_share": within / total if total > NO_SPREAD**2 else None,
            "flops_per_token": dict(zip(("full", "asked", "bucketed", "executed"), np.asarray(flops).tolist())),
            "layers": [meter.summary() for meter in meters],
        }


class _LayerMeter:
    """Sums over the tokens of one layer."""

    def __init__(self, layer: DynamicLayer, model: Decoder):
        ffn = model.get_submodule(f"layers.{layer.index}.ffn")
        assert isinstance(ffn, DynamicWidth)
        self.layer, self._ffn, self._d_ff = layer, ffn, layer.config.d_ff
        self.n_tokens, self.mean, self._squares = 0, 0.0, 0.0
        self._low, self._high = math.inf, -math.inf
        self._histogram = np.zeros(N_BINS, dtype=np.int64)
        self._n_floor, self._n_ceiling = 0, 0
        self.units = np.zeros(4)
        """Sums over tokens: all, asked, bucketed, computed."""

    @property
    def variance(self) -> float:
        """Of the fractions of its tokens."""
        return self._squares / self.n_tokens

    def add(self, fraction: Tensor, progress: Tensor) -> None:
        """fraction: (n,)."""
        values = fraction.double().cpu().numpy()
        n, mean = len(values), float(values.mean())
        n_all = self.n_tokens + n
        # Means and squared distances merge without the cancellation of a sum of squares (Chan, Golub, LeVeque 1979).
        self._squares += float(((values - mean) ** 2).sum()) + (mean - self.mean) ** 2 * self.n_tokens * n / n_all
        self.mean += (mean - self.mean) * n / n_all
        self.n_tokens = n_all
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        self._histogram += np.histogram(values, bins=N_BINS, range=(0.0, 1.0))[0]
        self._n_floor += int((values <= self.layer.config.min_fraction + NEAR).sum())
        self._n_ceiling += int((values >= 1 - NEAR).sum())
        width = self._d_ff * fraction
        self.units += [n * self._d_ff, float(width.double().sum()), *self._computed(width, progress)]

    def _computed(self, width: Tensor, progress: Tensor) -> tuple[int, int]:
        """Units of all tokens together: rounded up to buckets, and as the layer computes them."""
        full = len(width) * self._d_ff
        if not self.layer.config.mask.has_width:
            return full, full
        margin = self._ffn.mask.edge(progress).margin
        bucketed = int(bucketed_units(width, margin, self._d_ff).sum())
        execution = self.layer.config.execution
        is_sliced = margin < math.inf and (execution == "sliced" or (execution == "auto" and use_fused(width)))
        return bucketed, bucketed if is_sliced else full

    def summary(self) -> dict[str, Any]:
        """The entry of a layer.

        A token uses the units whose centres lie within its width, whatever its mask; dead_share is of the units that
        none uses. gain, bias and temperature are null where the layer has none.
        """
        max_units = max(0, math.ceil(self._high * self._d_ff - 0.5))
        return {
            "layer": self.layer.index + 1,
            "d_ff": self._d_ff,
            "mean": self.mean,
            "sd": math.sqrt(self.variance),
            "min": self._low,
            "max": self._high,
            "histogram": (self._histogram / self.n_tokens).tolist(),
            "floor_share": self._n_floor / self.n_tokens,
            "ceiling_share": self._n_ceiling / self.n_tokens,
            "dead_share": 1 - max_units / self._d_ff,
            "max_units": max_units,
            **_parameters(self._ffn),
        }


@torch.no_grad()
def _parameters(ffn: DynamicWidth) -> dict[str, float | None]:
    """gain of the score, bias of the level, and temperature in units of a mask that is not a step."""
    log_gain = ffn.score.log_gain if isinstance(ffn.score, GainedScore) else None
    temperature = getattr(ffn.mask, "temperature", None)
    return {
        "gain": None if log_gain is None else float(log_gain().exp()),
        "bias": None if ffn.bias is None else float(ffn.bias()),
        "temperature": None if temperature is None else float(temperature()),
    }
