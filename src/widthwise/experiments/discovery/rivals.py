"""What a shape that was found is compared with: the uniform model, the papers' shapes, controls of the same budget."""

from typing import Any

import numpy as np

from widthwise.experiments.discovery.method import Task
from widthwise.records.discovery import DISCOVERED, Curve, Found

N_RANDOM = 2


def rivals(found: Found, task: Task) -> dict[str, dict[str, Any]]:
    """Variant -> its changes to the recipe of the uniform model, which is the first.

    `even` has what was found on average in all layers: whether it is the profile that helps, or how much attention has
    in relation to the feed-forward; where that relation is the uniform model's, so would be `even`, which is left out.
    `reversed` has the last layer first: whether the order of layers matters. The sizes of `random_1` and `random_2` lie
    between the least and the largest that were found, anywhere along the depth. All these have as many layers as what
    was found.
    """
    generator, curve = np.random.default_rng(task.base.train.seed), found.curve
    solved = {"match": task.match, "rounding": "balanced"}
    curves = {
        DISCOVERED: curve,
        **({"even": curve.even()} if curve.trades_kinds else {}),
        "reversed": curve.reversed(),
        **{f"random_{number}": _random(curve, generator) for number in range(1, 1 + N_RANDOM)},
    }
    return {
        "uniform": {},
        **{kind: {"model": {"shape": {"kind": kind, **solved}}} for kind in ("x", "diamond")},
        **{name: change_to(each, found.n_layers, task) for name, each in curves.items()},
    }


def change_to(curve: Curve, n_layers: int | None, task: Task) -> dict[str, Any]:
    """The changes that make the recipe of the uniform model one of this curve. n_layers: None for as many as it has."""
    points = {name: [round(point, 4) for point in found] for name, found in curve.to_data().items() if found}
    shape = {"kind": "curve", "match": task.match, "rounding": "balanced", **points}
    if n_layers is None:
        return {"model": {"shape": shape}}
    depth = round(n_layers / task.template.n_layers, 4)
    return {"model": {"n_layers": n_layers, "shape": {**shape, "depth": depth}}}


def _random(curve: Curve, generator: np.random.Generator) -> Curve:
    """Sizes drawn log-uniformly between the least and the largest of each kind."""
    drawn = {}
    for name, sizes in curve.sizes().items():
        low, high = np.log([min(sizes), max(sizes)])
        drawn[name] = np.exp(generator.uniform(low, high, len(sizes))).tolist()
    return Curve.of_sizes(drawn)
