"""What a shape that was found is compared with: the uniform model, the papers' shapes, controls of the same budget."""

from typing import Any

import numpy as np

from widthwise.records.discovery import DISCOVERED, Curve
from widthwise.shape.kinds import Match

N_RANDOM = 2


def rivals(curve: Curve, match: Match, seed: int) -> dict[str, dict[str, Any]]:
    """Variant -> its changes to the recipe of the uniform model, which is the first.

    `even` has what was found on average in all layers: whether it is the profile that helps, or how much attention has
    in relation to the feed-forward. `reversed` has the last layer first: whether the order of layers matters. The sizes
    of `random` ones are spread as much as those that were found, but lie anywhere along the depth. Where only one kind
    of size was searched, `even` would be the uniform model, and is left out.
    """
    generator = np.random.default_rng(seed)
    solved = {"match": match, "rounding": "balanced"}
    shapes = {
        "x": {"kind": "x", **solved},
        "diamond": {"kind": "diamond", **solved},
        DISCOVERED: curve_shape(curve, match),
        **({"even": curve_shape(curve.even(), match)} if curve.n_kinds > 1 else {}),
        "reversed": curve_shape(curve.reversed(), match),
        **{f"random_{number}": curve_shape(_random(curve, generator), match) for number in range(1, 1 + N_RANDOM)},
    }
    return {"uniform": {}, **{name: {"model": {"shape": shape}} for name, shape in shapes.items()}}


def curve_shape(curve: Curve, match: Match) -> dict[str, Any]:
    """The `model.shape` section of a curve."""
    points = {name: [round(point, 4) for point in found] for name, found in curve.to_data().items() if found}
    return {"kind": "curve", "match": match, "rounding": "balanced", **points}


def _random(curve: Curve, generator: np.random.Generator) -> Curve:
    """Points drawn log-uniformly between the least and the largest of each of its lists."""
    found = {}
    for name, points in curve.to_data().items():
        if points:
            low, high = np.log([min(points), max(points)])
            found[name] = np.exp(generator.uniform(low, high, len(points))).tolist()
    return Curve(**found)
