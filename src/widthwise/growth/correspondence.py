"""The layers of a grown model and those of the old one that they come from."""

import re
from dataclasses import dataclass, field

from widthwise.config_io import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.layer import LayerConfig


@dataclass(frozen=True)
class Correspondence:
    """The old layer or block that each new one comes from; None for an added one."""

    layers: tuple[int | None, ...]
    """(new n_layers,)"""
    blocks: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """New layer -> (n_blocks,) for the residual blocks of its feed-forward. Layers not listed get added blocks last."""

    @classmethod
    def same(cls, model: ModelConfig) -> "Correspondence":
        """Keep all layers and add none."""
        return cls(tuple(range(model.n_layers)))

    def pairs(self) -> list[tuple[int, int]]:
        """List the (old, new) positions of the kept layers."""
        return [(old, new) for new, old in enumerate(self.layers) if old is not None]

    def nearest(self, new_layer: int) -> tuple[int, int]:
        """Return the (old, new) positions of the kept layer nearest to an added one, the earlier of two."""
        return min(self.pairs(), key=lambda pair: (abs(pair[1] - new_layer), pair[1] > new_layer))

    def blocks_of(self, new_layer: int | None, old: FFNConfig, new: FFNConfig) -> tuple[int | None, ...]:
        """Return the old block of each new block of a feed-forward. new_layer: None for the layer of the MTP heads."""
        n_old, n_new = old.n_residual_additions, new.n_residual_additions
        given = None if new_layer is None else self.blocks.get(new_layer)
        return given or (*range(n_old), *[None] * (n_new - n_old))

    def old_name(self, name: str) -> str | None:
        """Return the parameter's name with the old layer number; None if its layer is added."""
        found = re.fullmatch(r"layers\.(\d+)\.(.*)", name)
        if found is None:
            return name
        old_layer = self.layers[int(found[1])]
        return None if old_layer is None else f"layers.{old_layer}.{found[2]}"


def align(old: ModelConfig, new: ModelConfig, layers: tuple[int | None, ...] | None = None) -> Correspondence:
    """Check `layers`; or if None, find the alignment in which layers lose nothing, widen least, and lie most evenly.

    Raises UserError if `layers` is invalid, or if no alignment makes every layer at least as wide as it was.
    """
    layers = _aligned(old, new) if layers is None else layers
    kept = [layer for layer in layers if layer is not None]
    if len(layers) != new.n_layers or kept != list(range(old.n_layers)):
        given = ", ".join("null" if layer is None else str(layer) for layer in layers)
        raise UserError(
            f"layers: got [{given}]; must name, for each of {new.n_layers} layers, the one of the "
            f"{old.n_layers} it comes from, all in order, or null for one that is added"
        )
    return Correspondence(layers)


Placing = tuple[int, float, float, tuple[int, ...]]
"""Layers that would lose heads or hidden units, sum of the widenings in coordinates, unevenness of the spacing, and the
new position of each old layer so far."""


def _aligned(old: ModelConfig, new: ModelConfig) -> tuple[int | None, ...]:
    n_old, n_new = old.n_layers, new.n_layers
    if n_new < n_old:
        raise UserError(f"n_layers: got {n_new} where there were {n_old}; growth takes nothing away")
    # Dynamic programme. best[i]: the cheapest placing of the first i old layers among the new layers seen so far.
    # i runs downwards, so that best[i - 1] does not use the new layer j yet.
    best: list[Placing | None] = [(0, 0.0, 0.0, ()), *[None] * n_old]
    for j in range(n_new):
        for i in range(min(j + 1, n_old), 0, -1):
            before, a, b = best[i - 1], old.layers[i - 1], new.layers[j]
            if before is None or not _can_become(a, b):
                continue
            unevenness = abs((j + 0.5) / n_new - (i - 0.5) / n_old)
            widening = b.d_model - a.d_model
            found = (before[0] + _loses(a, b), before[1] + widening, before[2] + unevenness, (*before[3], j))
            here = best[i]
            if here is None or found[:3] < here[:3]:
                best[i] = found
    placed = best[n_old]
    if placed is None:
        raise UserError(
            f"d_model: layers of widths {old.widths} cannot become layers of widths {new.widths} in this order, each "
            "at least as wide as it was"
        )
    places = {place: i for i, place in enumerate(placed[3])}
    return tuple(places.get(j) for j in range(n_new))


def _can_become(old: LayerConfig, new: LayerConfig) -> bool:
    return new.d_model >= old.d_model and new.d_in >= old.d_in and new.d_out >= old.d_out


def _loses(old: LayerConfig, new: LayerConfig) -> bool:
    """Return True if a layer would have fewer heads or hidden units, which growth refuses: another one is kept."""
    before, after = ((each.attention.n_heads, sum(each.ffn.hidden_widths)) for each in (old, new))
    return before[0] > after[0] or (type(old.ffn) is type(new.ffn) and before[1] > after[1])
