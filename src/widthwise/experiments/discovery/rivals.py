"""What a shape that was found is compared with: the uniform model, the papers' shapes, controls of the same budget."""

from typing import Any

import numpy as np

from widthwise.experiments.discovery.task import Task
from widthwise.records.discovery import DISCOVERED, Curve, Found
from widthwise.shape.curve import along

N_PERMUTED = 2
N_TRIES = 100
"""Orders that are drawn before another one is taken not to exist."""


def rivals(found: Found, task: Task) -> dict[str, dict[str, Any]]:
    """Variant -> its changes to the recipe of the uniform model, which is the first.

    `even` has what was found on average in all layers: whether it is the profile that helps, or how much attention has
    in relation to the feed-forward; where that relation is the uniform model's, so would be `even`, which is left out.
    `reversed` has the last layer first, `permuted_1` and `permuted_2` have the layers in drawn orders: whether that
    matters. They have the layers that were found, so that nothing else differs, up to what meets the budget: the first
    layer reads and the last one writes no more than d_model, so that orders differ in cost.
    """
    curve = found.curve
    solved = {"match": task.match, "rounding": "balanced"}
    curves = {
        DISCOVERED: curve,
        **({"even": curve.even()} if curve.trades_kinds else {}),
        "reversed": curve.reversed(),
        **_permuted(curve, found.n_layers or task.template.n_layers, task.base.train.seed),
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


def _permuted(curve: Curve, n_layers: int, seed: int) -> dict[str, Curve]:
    """The layers of a curve in drawn orders, all different from each other, from that of the curve and its reverse, as
    far as so few layers have so many."""
    lists = {name: along(points, n_layers) for name, points in curve.to_data().items() if points}
    layers = list(zip(*lists.values(), strict=True))
    known, found, generator = [layers, layers[::-1]], list[Curve](), np.random.default_rng(seed)
    for _ in range(N_TRIES):
        drawn = [layers[place] for place in generator.permutation(n_layers)]
        if drawn not in known and len(found) < N_PERMUTED:
            known.append(drawn)
            found.append(Curve(**{name: list(map(float, sizes)) for name, sizes in zip(lists, zip(*drawn))}))
    return {f"permuted_{number}": each for number, each in enumerate(found, start=1)}
