"""An analysis by layer: what several parts of one feed-forward say together, and where a layer stands in depth."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from widthwise.records.analysis import Activations, AnalysedModel
from widthwise.records.record import finite
from widthwise.reports.page.curves import Curve


@dataclass(frozen=True)
class DepthAxis:
    """One axis for all models: layers if they are equally deep, otherwise the fraction of the layers passed."""

    is_fraction: bool

    @classmethod
    def of(cls, models: Sequence[AnalysedModel]) -> "DepthAxis":
        return cls(len({model.n_layers for model in models}) > 1)

    @property
    def name(self) -> str:
        return "layers passed, as a share of all" if self.is_fraction else "layer"

    def curve(self, model: AnalysedModel, values: dict[int, float]) -> Curve:
        """values: layer (or depth) -> value."""
        depths = np.array(sorted(values), dtype=float)
        scale = model.n_layers if self.is_fraction else 1
        return Curve(depths / scale, np.array([values[int(depth)] for depth in depths], dtype=float))


def _total(parts: Sequence[Activations], value: Callable[[Activations], float | None]) -> float:
    return sum(finite(value(part)) for part in parts)


@dataclass(frozen=True)
class LayerUnits:
    """All hidden units of a layer's feed-forward, those of several maps taken together."""

    layer: int
    parts: Sequence[Activations]

    @property
    def d_ff(self) -> int:
        return sum(part.d_ff for part in self.parts)

    @property
    def utilisation(self) -> NDArray[np.float64]:
        """(d_ff,): share of tokens for which each unit is active, the most used first."""
        shares = [finite(share) for part in self.parts for share in part.utilisation]
        return np.sort(np.array(shares))[::-1]

    @property
    def density(self) -> float:
        """Share of the activations beyond the threshold of utilisation."""
        return float(self.utilisation.mean())

    def density_at(self, index: int) -> float:
        """Share of the activations beyond threshold number `index`."""
        return _total(self.parts, lambda part: finite(part.density[index]) * part.d_ff) / self.d_ff

    @property
    def dead_share(self) -> float:
        return _total(self.parts, lambda part: finite(part.dead_share) * part.d_ff) / self.d_ff

    @property
    def participation(self) -> float:
        """Effective numbers of units, added over the maps."""
        return _total(self.parts, lambda part: part.participation)

    @property
    def participation_share(self) -> float:
        return self.participation / self.d_ff


def layers_of(model: AnalysedModel) -> dict[int, LayerUnits]:
    """Layer -> its units; layers without a measured feed-forward are left out."""
    parts: dict[int, list[Activations]] = {}
    for each in model.activations:
        parts.setdefault(each.layer, []).append(each)
    return {layer: LayerUnits(layer, own) for layer, own in sorted(parts.items())}


def counterpart(layer: int, n_layers: int, of: AnalysedModel) -> int:
    """The layer of a model that stands where `layer` of `n_layers` does; the same number in one as deep."""
    return math.ceil(layer * of.n_layers / n_layers)


def exit_curve(model: AnalysedModel) -> Curve | None:
    """The loss where the model ends after a layer, or after a block inside one, over the FLOPs taken by then; None if
    they are unknown."""
    if model.exit_flops is None:
        return None
    exits = [(model.exit_flops[each.depth], finite(each.target_log_prob)) for each in model.logit_lens]
    if model.block_exit_flops is not None:
        for each in model.block_exits:
            exits.append((model.block_exit_flops[each.layer - 1][each.block - 1], finite(each.target_log_prob)))
    flops, log_probs = np.array(sorted(exits), dtype=float).T
    return Curve(flops, -log_probs)
