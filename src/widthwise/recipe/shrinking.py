"""The sizes of a smaller model at a budget: in proportion along a shape, or layer by layer where least is lost."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from widthwise.config_io import UserError, to_data
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.need import LayerNeed
from widthwise.growth.shrink import LayerSizes, layer_sizes, smaller_config, smaller_layer
from widthwise.model.config import ModelConfig
from widthwise.model.cost import Cost
from widthwise.model.kinds import all_must_agree, must_agree
from widthwise.model.layer import LayerConfig
from widthwise.recipe.larger import uniform_rule
from widthwise.recipe.recipe import Recipe
from widthwise.records.discovery import Curve
from widthwise.shape.profile import sizes_of
from widthwise.shape.schedule import SCHEDULES

Sizes = Sequence[LayerSizes]
NO_OTHER = ", and a cut leaves it as it is"
Counting = Callable[[Cost, int], float]
"""Takes a cost and the tokens of a sequence."""
TURN = 0.75
"""Depth of the narrowest layer of an x, as a fraction of n_layers; variable-width paper, arXiv:2606.18246."""
N_HALVINGS = 40
"""Steps of the bisection for the largest scale within a budget."""
SECONDS = 60
"""Time for the solver, after which the best sizes so far are taken."""
N_LEVELS = 16
"""Widths, and numbers of hidden units, among which a layer chooses."""


COUNTS: dict[str, Counting] = {
    "params": lambda cost, seq_len: cost.params,
    "flops": lambda cost, seq_len: cost.forward_flops(seq_len),
    "kv_bytes": lambda cost, seq_len: cost.kv_bytes(),
}


def sizes_like(model: ModelConfig, wanted: ModelConfig) -> list[LayerSizes]:
    """Return the sizes of the layers of another model, to which this one can be cut. Raises UserError if it cannot."""
    all_must_agree(("vocab_size", "d_model"), model, wanted)
    for i, (ours, theirs) in enumerate(zip(model.layers, wanted.layers)):
        group, wanted_group = (each.attention.n_heads / each.attention.n_kv_heads for each in (ours, theirs))
        must_agree(f"layers.{i}.attention.head_dim", ours.attention.head_dim, theirs.attention.head_dim, NO_OTHER)
        must_agree(f"layers.{i}.attention.kv_group_size", group, wanted_group, NO_OTHER)
    sizes = layer_sizes(wanted)
    smaller_config(model, sizes)
    return sizes


def curve_of_cut(model: ModelConfig, smaller: ModelConfig) -> Curve:
    """Return the sizes of a smaller model relative to the uniform one that it was cut from.

    Raises UserError with the reason where a curve does not hold them.
    """
    uniform_rule(model)
    whole = model.layers[0]
    for where, layer in smaller.named_layers():
        own, other = (to_data(each.ffn) for each in (layer, whole))
        if changed := [key for key in other if own[key] != other[key] and key not in layer.ffn.hidden_axes]:
            raise UserError(f"{where}.ffn.{changed[0]}: a curve has no points of it")
    return Curve.of([*map(sizes_of, smaller.layers)], sizes_of(whole))


def recipe_of_cut(recipe: Recipe, model: ModelConfig, curve: Curve, match: str) -> dict[str, Any]:
    """Return a recipe, as data, whose model has sizes on a curve and costs as much as a uniform model.

    match: the quantity in which it does.
    """
    rule, n_layers = uniform_rule(model), len(curve.widths)
    shape = curve.section(match) | {"depth": n_layers / rule.n_layers}
    return to_data(recipe) | {"model": to_data(rule) | {"n_layers": n_layers, "shape": shape}, "growth": ()}


def check_budget(model: ModelConfig, options: ShrinkOptions, seq_len: int) -> None:
    """Raise UserError for a budget that no sizes meet."""
    _limits(model, options, seq_len)


def _limits(model: ModelConfig, options: ShrinkOptions, seq_len: int) -> tuple[Callable[[Sizes], float], float]:
    """Return the cost of sizes, and what it may be. Raises UserError where the least sizes cost more."""
    assert options.budget is not None
    count, share = COUNTS[options.budget], getattr(options, options.budget)

    def cost(sizes: Sizes) -> float:
        return count(smaller_config(model, sizes).inference_cost(), seq_len)

    whole = layer_sizes(model)
    least = [_least(each, options) for each in whole] if options.shape == "found" else _scaled(whole, options, 0.0)
    if cost(least) > share * cost(whole):
        raise UserError(
            f"{options.budget}: got {share:g}; with shape {options.shape} and parts {options.parts} no less than "
            f"{cost(least) / cost(whole):.3f} can be reached"
        )
    return cost, share * cost(whole)


def sizes_at_budget(
    model: ModelConfig, options: ShrinkOptions, seq_len: int, needs: Sequence[LayerNeed] = ()
) -> list[LayerSizes]:
    """Return the sizes of all layers within the budget.

    needs: of every layer, with the most needed parts first; for shape `found`. Raises UserError where no sizes meet it.
    """
    cost, limit = _limits(model, options, seq_len)
    whole = layer_sizes(model)
    if options.shape == "found":
        return _found(model, options, needs, limit, seq_len)
    if cost(whole) <= limit:
        return whole
    low, high = 0.0, 1.0
    for _ in range(N_HALVINGS):  # the largest scale within the budget
        middle = (low + high) / 2
        low, high = (middle, high) if cost(_scaled(whole, options, middle)) <= limit else (low, middle)
    return _scaled(whole, options, low)


def _least(size: LayerSizes, options: ShrinkOptions) -> LayerSizes:
    d_model, n_hidden = (min(options.multiple, n) for n in (size.d_model, size.n_hidden))
    return LayerSizes(d_model, 1, n_hidden) if options.parts == "all" else size._replace(d_model=d_model)


def _scaled(whole: Sequence[LayerSizes], options: ShrinkOptions, scale: float) -> list[LayerSizes]:
    """Every layer at a share of its sizes: `scale` for all, or from 1 at the ends down to it at the turn of an x."""
    n_layers = len(whole)
    shares = np.full(n_layers, scale)
    if options.shape == "x":
        schedule = SCHEDULES["x"]
        shares = schedule.widths(1.0, max(scale, 1e-6), n_layers, schedule.turn_layer(n_layers, TURN))

    def rounded(n: int, share: float, multiple: int) -> int:
        return min(n, max(1, round(n * share / multiple)) * multiple)

    found = []
    for size, share in zip(whole, shares):
        d_model = rounded(size.d_model, share, options.multiple)
        if options.parts == "stream":
            found.append(size._replace(d_model=d_model))
        else:
            n_hidden = rounded(size.n_hidden, share, options.multiple)
            found.append(LayerSizes(d_model, rounded(size.n_kv_heads, share, 1), n_hidden))
    return found


class _Choice(NamedTuple):
    """Sizes of one layer."""

    sizes: LayerSizes
    cost: float
    """In what the budget counts."""
    lost: float
    """Sum of the scores of what is cut."""


def _found(
    model: ModelConfig, options: ShrinkOptions, needs: Sequence[LayerNeed], limit: float, seq_len: int
) -> list[LayerSizes]:
    """Choose the sizes of each layer so that the sum of what is lost is least: a knapsack with one choice a layer.

    Raises UserError where the solver finds none in its time.
    """
    assert options.budget is not None
    count = COUNTS[options.budget]

    def cost_of(layer: LayerConfig) -> float:
        return count(sum(layer.costs(model.residual, layer.d_in).values(), Cost()), seq_len)

    def costs_of(layer: LayerConfig, whole: LayerSizes) -> list[tuple[LayerSizes, float]]:
        levels = (_levels(whole.d_model, options), range(1, whole.n_kv_heads + 1), _levels(whole.n_hidden, options))
        if options.parts == "stream":
            levels = (levels[0], [whole.n_kv_heads], [whole.n_hidden])
        sizes = [LayerSizes(*each) for each in product(*levels)]
        return [(each, cost_of(smaller_layer(layer, each, "layer"))) for each in sizes]

    choices, rows, before, costed = [], [], None, []
    for i, (layer, whole, need) in enumerate(zip(model.layers, layer_sizes(model), needs, strict=True)):
        if layer != before:  # most layers equal the one before them, and counting takes long
            before, costed = layer, sorted(costs_of(layer, whole), key=lambda each: each[1])
        best = np.inf
        for sizes, cost in costed:
            if (lost := need.lost(sizes)) < best:  # what costs more and loses as much is never chosen
                best = lost
                choices.append(_Choice(sizes, cost, lost))
                rows.append(i)
    limit -= count(model.inference_cost(), seq_len) - sum(map(cost_of, model.layers))
    one_each = csr_matrix((np.ones(len(rows)), (rows, np.arange(len(rows)))))
    costs, lost = (np.array([getattr(choice, name) for choice in choices]) for name in ("cost", "lost"))
    answer = milp(
        lost / max(lost.max(), 1e-300),
        constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(costs[None] / limit, ub=1)],
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-4, "time_limit": SECONDS},
    )
    if answer.x is None:  # the least sizes are among the choices, so that there is an answer
        raise UserError(f"{options.budget}: no sizes were found in {SECONDS} seconds; raise --multiple")
    return [choice.sizes for choice, is_taken in zip(choices, answer.x.round()) if is_taken]


def _levels(n: int, options: ShrinkOptions) -> list[int]:
    """At most N_LEVELS multiples up to n, and n itself."""
    step = max(1, -(-n // (N_LEVELS * options.multiple))) * options.multiple
    return sorted({*range(step, n, step), min(n, options.multiple), n})
