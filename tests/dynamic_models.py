"""Models whose dynamic widths differ between tokens."""

from fractions import Fraction

import torch
from tiny_runs import tiny_recipe

from widthwise.model.decoder import Decoder, build

DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25, ratio: 9.0}"


def model_of(*overrides: str) -> Decoder:
    """The tiny model, with random weights in its linear scores."""
    model = build(tiny_recipe(*overrides).explicit_model, seed=1)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "v"):
                module.v.weight.normal_(generator=torch.Generator().manual_seed(3))
    return model


def exact_units(sizes: tuple[int, ...]) -> list[tuple[Fraction, int]]:
    """Rank, and place before the last growth or -1, of every unit of a layer that had these numbers of units."""
    units: list[tuple[Fraction, int]] = []
    for before, after in zip((0, *sizes), sizes):
        n = after - before
        old = [(rank, place) for place, (rank, _) in enumerate(units)]
        new = [(Fraction(2 * j + 1, 2 * n), -1) for j in range(n)]
        units = sorted(old + new, key=lambda unit: unit[0])  # stable, so old ones stay in front
    return units
