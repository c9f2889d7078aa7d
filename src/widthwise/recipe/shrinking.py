"""The sizes of a smaller model at a budget: in proportion along a shape, or layer by layer where least is lost."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from widthwise.config_io import UserError, parse, to_data
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.need import LayerNeed
from widthwise.growth.shrink import (
    LEFT_OUT,
    LayerSizes,
    check_not_more,
    layer_size,
    layer_sizes,
    smaller_config,
    smaller_layer,
)
from widthwise.model.config import ModelConfig
from widthwise.model.cost import Cost
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.kinds import must_agree
from widthwise.model.layer import LayerConfig
from widthwise.recipe.larger import uniform_rule
from widthwise.recipe.recipe import Recipe
from widthwise.records.shrinking import Curve
from widthwise.shape.adjusting import closest_size, or_nan
from widthwise.shape.profile import sizes_of
from widthwise.shape.rounding import FAR
from widthwise.shape.schedule import SCHEDULES
from widthwise.shape.template import QUANTITIES, ModelTemplate

Sizes = Sequence[LayerSizes]
NO_OTHER = ", and a cut leaves it as it is"
TURN = 0.75
"""Depth of the narrowest layer of an x, as a fraction of n_layers; variable-width paper, arXiv:2606.18246."""
N_HALVINGS = 40
"""Steps of the bisection for the largest scale within a budget."""
SECONDS = 60
"""Time for the solver, after which the best sizes so far are taken."""
N_LEVELS = 16
"""Widths, and numbers of hidden units and experts, among which a layer chooses."""


def sizes_like(model: ModelConfig, wanted: ModelConfig, needs: Sequence[LayerNeed] = ()) -> list[LayerSizes]:
    """Return the sizes of all layers with which this model becomes as large as another one.

    Where that has fewer layers, its layers take the places, in their order, at which least is lost, and the others are
    left out. needs: of every layer, with the most needed parts first; none: nothing is lost anywhere. Raises UserError
    if the model cannot become so.
    """
    must_agree("vocab_size", model.vocab_size, wanted.vocab_size, NO_OTHER)
    check_not_more("d_model", wanted.d_model, model.d_model)
    check_not_more("n_layers", wanted.n_layers, model.n_layers)
    refusals = []
    best: dict[int, tuple[float, list[LayerSizes]]] = {0: (0.0, [])}
    """Wanted layers that have places so far -> what is lost, and all sizes so far."""
    for i, layer in enumerate(model.layers):
        reached: dict[int, tuple[float, list[LayerSizes]]] = {}
        for n_placed, (lost, sizes) in best.items():
            ways = [(n_placed, LEFT_OUT)] if i - n_placed < model.n_layers - wanted.n_layers else []
            if n_placed < wanted.n_layers:
                try:
                    size = _size_like(layer, wanted.layers[n_placed], f"layers.{n_placed}")
                    ways.append((n_placed + 1, size))
                except UserError as refusal:
                    refusals.append(refusal)
            for n, size in ways:
                way = (lost + (needs[i].lost(size) if needs else 0.0), [*sizes, size])
                reached[n] = min(reached.get(n, way), way, key=lambda each: each[0])
        best = reached
    if wanted.n_layers not in best and wanted.n_layers == model.n_layers:
        raise refusals[0]
    if wanted.n_layers not in best:
        raise UserError(
            f"n_layers: got {wanted.n_layers} where there are {model.n_layers}; whichever are left out, the others "
            f"cannot be cut to those, such as {refusals[0]}"
        )
    return best[wanted.n_layers][1]


def _size_like(layer: LayerConfig, wanted: LayerConfig, where: str) -> LayerSizes:
    """Return the sizes of another layer. Raises UserError where the layer cannot be cut to them."""
    group, wanted_group = (each.attention.n_heads // each.attention.n_kv_heads for each in (layer, wanted))
    must_agree(f"{where}.attention.head_dim", layer.attention.head_dim, wanted.attention.head_dim, NO_OTHER)
    must_agree(f"{where}.attention.kv_group_size", group, wanted_group, NO_OTHER)
    for name in ("kind", "top_k", "d_shared"):
        ours, theirs = (getattr(each.ffn, name, None) for each in (layer, wanted))
        must_agree(f"{where}.ffn.{name}", ours, theirs, NO_OTHER)
    size = layer_size(wanted)
    smaller_layer(layer, size, where)
    return size


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

    match: the quantity in which it does. The shape meets it with fractions of heads. Where whole heads miss it, all
    hidden units become a little more or fewer, by a tenth at most.
    """
    rule, n_layers, count = uniform_rule(model), len(curve.widths), QUANTITIES[match]
    section, budget = curve.section(match), count(model.inference_cost(), recipe.seq_len)

    def model_at(percent: int) -> dict[str, Any]:
        shape = section | {"depth": n_layers / rule.n_layers}
        if percent != 100:
            shape["hidden"] = [round(point * percent / 100, 4) for point in section.get("hidden", [1.0])]
        return to_data(rule) | {"n_layers": n_layers, "shape": shape}

    def miss(percent: int) -> float:
        template = parse(ModelTemplate, model_at(percent), "the model")
        return count(template.resolve(recipe.seq_len).inference_cost(), recipe.seq_len) / budget - 1

    percent = closest_size(or_nan(miss), 100, range(90, 111), FAR)
    return to_data(recipe) | {"model": model_at(percent), "growth": ()}


def cost_limits(model: ModelConfig, options: ShrinkOptions, seq_len: int) -> tuple[Callable[[Sizes], float], float]:
    """Return the cost of sizes, and what it may be. Raises UserError where the least sizes cost more."""
    assert options.budget is not None
    count, share = QUANTITIES[options.budget], getattr(options, options.budget)

    def cost(sizes: Sizes) -> float:
        return count(smaller_config(model, sizes).inference_cost(), seq_len)

    whole = layer_sizes(model)
    least = _scaled(whole, options, 0.0)
    if options.shape == "found":
        least = [LayerSizes(*(levels[0] for levels in _levels(layer, options))) for layer in model.layers]
        if options.parts == "all":  # one layer stays
            alone = ([LEFT_OUT] * i + [size] + [LEFT_OUT] * (len(least) - i - 1) for i, size in enumerate(least))
            least = min(alone, key=cost)
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
    cost, limit = cost_limits(model, options, seq_len)
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


def _scaled(whole: Sequence[LayerSizes], options: ShrinkOptions, scale: float) -> list[LayerSizes]:
    """Every layer at a share of its sizes: `scale` for all, or from 1 at the ends down to it at the turn of an x."""
    n_layers = len(whole)
    shares = np.full(n_layers, scale)
    if options.shape == "x":
        schedule = SCHEDULES["x"]
        shares = schedule.widths(1.0, max(scale, 1e-6), n_layers, schedule.turn_layer(n_layers, TURN))

    def rounded(n: int, share: float, multiple: int) -> int:
        return min(n, max(1, round(n * share / multiple)) * multiple)

    sizes = []
    for size, share in zip(whole, shares):
        d_model = rounded(size.d_model, share, options.multiple)
        if options.parts == "stream":
            sizes.append(size._replace(d_model=d_model))
        else:
            n_kv_heads, n_hidden = rounded(size.n_kv_heads, share, 1), rounded(size.n_hidden, share, options.multiple)
            sizes.append(size._replace(d_model=d_model, n_kv_heads=n_kv_heads, n_hidden=n_hidden))
    return sizes


def _found(
    model: ModelConfig, options: ShrinkOptions, needs: Sequence[LayerNeed], limit: float, seq_len: int
) -> list[LayerSizes]:
    """Choose the sizes of each layer so that the sum of what is lost is least: a knapsack with one choice a layer.

    Raises UserError where the solver finds none in its time.
    """
    assert options.budget is not None
    count = QUANTITIES[options.budget]

    def cost_of(layer: LayerConfig) -> float:
        return count(sum(layer.costs(model.residual, layer.d_in).values(), Cost()), seq_len)

    def costs_of(layer: LayerConfig) -> list[tuple[LayerSizes, float]]:
        sizes = [LayerSizes(*each) for each in product(*_levels(layer, options))]
        found = [(each, cost_of(smaller_layer(layer, each, "layer"))) for each in sizes]
        return sorted(found if options.parts == "stream" else [(LEFT_OUT, 0.0), *found], key=lambda each: each[1])

    costed = dict[str, list[tuple[LayerSizes, float]]]()  # most layers equal another one, and counting takes long
    choices: list[tuple[int, LayerSizes, float, float]] = []
    """Layer, its sizes, their cost, and the sum of the scores of what is cut."""
    for i, (layer, need) in enumerate(zip(model.layers, needs, strict=True)):
        if (key := repr(layer)) not in costed:
            costed[key] = costs_of(layer)
        best = np.inf
        for size, cost in costed[key]:
            if (loss := need.lost(size)) < best:  # what costs more and loses as much is never chosen
                best = loss
                choices.append((i, size, cost, loss))
    rows, sizes, costs, lost = zip(*choices)
    limit -= count(model.inference_cost(), seq_len) - sum(map(cost_of, model.layers))
    one_each = csr_matrix((np.ones(len(rows)), (rows, np.arange(len(rows)))))
    stays = np.array([size != LEFT_OUT for size in sizes], dtype=float)
    answer = milp(
        np.divide(lost, max(*lost, 1e-300)),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(np.divide([costs], limit), ub=1),
            LinearConstraint(stays[None], 1),
        ],
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-4, "time_limit": SECONDS},
    )
    if answer.x is None:  # the least sizes are among the choices, so that there is an answer
        raise UserError(f"{options.budget}: no sizes were found in {SECONDS} seconds; raise --multiple")
    return [size for size, is_taken in zip(sizes, answer.x.round()) if is_taken]


def _levels(layer: LayerConfig, options: ShrinkOptions) -> list[Sequence[int]]:
    """The sizes among which a layer chooses, for each field of `LayerSizes`; the least ones first."""
    whole = layer_size(layer)
    widths = _multiples(whole.d_model, options.multiple)
    if options.parts == "stream":
        return [widths, *([n] for n in whole[1:])]
    top_k = layer.ffn.top_k if isinstance(layer.ffn, MoEConfig) else 1
    experts = sorted({max(n, top_k) for n in _multiples(whole.n_experts, 1)})
    return [widths, range(1, whole.n_kv_heads + 1), _multiples(whole.n_hidden, options.multiple), experts]


def _multiples(n: int, multiple: int) -> list[int]:
    """At most N_LEVELS multiples up to n, the least one, and n itself."""
    step = max(1, -(-n // (N_LEVELS * multiple))) * multiple
    return sorted({*range(step, n, step), min(n, multiple), n})
