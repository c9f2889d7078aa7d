"""Sizes of a smaller model at a budget: in proportion along a shape, or layer by layer with the smallest loss."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from widthwise.config_io import parse, to_data
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.need import LayerNeed
from widthwise.growth.shrink import (
    REMOVED,
    LayerSizes,
    check_not_more,
    layer_size,
    layer_sizes,
    smaller_config,
    smaller_layer,
)
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.cost import Cost
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.kinds import must_agree
from widthwise.model.layer import LayerConfig
from widthwise.recipe.larger import uniform_rule
from widthwise.recipe.recipe import Recipe
from widthwise.records.resizing import Curve
from widthwise.shape.adjusting import closest_size
from widthwise.shape.rounding import FAR
from widthwise.shape.schedule import SCHEDULES
from widthwise.shape.template import QUANTITIES, ModelTemplate

Sizes = Sequence[LayerSizes]
NO_OTHER = ", which a cut cannot change"
TURN = 0.75
"""Depth of the narrowest layer of an x, as a fraction of n_layers. Source: variable-width paper, arXiv:2606.18246."""
N_HALVINGS = 40
"""Steps of the bisection for the largest scale within a budget."""
SECONDS = 60
"""Time limit of the solver, which then returns the best sizes so far."""
N_LEVELS = 16
"""Largest number of choices for the width, hidden units and experts of a layer."""


def sizes_like(model: ModelConfig, wanted: ModelConfig, needs: Sequence[LayerNeed] = ()) -> list[LayerSizes]:
    """Return the sizes of all layers with which this model becomes as large as the wanted one.

    If the wanted model has fewer layers, they are assigned in order to layers of this model so that the total loss is
    smallest, and the other layers are removed. needs: of every layer, most needed parts first; empty: all losses are 0.
    Raises UserError if the model cannot be cut to these sizes.
    """
    must_agree("vocab_size", model.vocab_size, wanted.vocab_size, NO_OTHER)
    check_not_more("d_model", wanted.d_model, model.d_model)
    check_not_more("n_layers", wanted.n_layers, model.n_layers)
    refusals = []
    best: dict[int, tuple[float, list[LayerSizes]]] = {0: (0.0, [])}
    """Number of assigned layers -> loss and sizes of the layers so far."""
    for i, layer in enumerate(model.layers):
        reached: dict[int, tuple[float, list[LayerSizes]]] = {}
        for n_placed, (lost, sizes) in best.items():
            options = [(n_placed, REMOVED)] if i - n_placed < model.n_layers - wanted.n_layers else []
            if n_placed < wanted.n_layers:
                try:
                    size = _layer_size_like(layer, wanted.layers[n_placed], f"layers.{n_placed}")
                    options.append((n_placed + 1, size))
                except UserError as refusal:
                    refusals.append(refusal)
            for n, size in options:
                candidate = (lost + (needs[i].lost(size) if needs else 0.0), [*sizes, size])
                if n not in reached or candidate[0] < reached[n][0]:
                    reached[n] = candidate
        best = reached
    if wanted.n_layers not in best and wanted.n_layers == model.n_layers:
        raise refusals[0]
    if wanted.n_layers not in best:
        raise UserError(
            f"n_layers: got {wanted.n_layers} where there are {model.n_layers}; no choice of {wanted.n_layers} layers "
            f"can be cut to the wanted sizes, such as {refusals[0]}"
        )
    return best[wanted.n_layers][1]


def _layer_size_like(layer: LayerConfig, wanted: LayerConfig, where: str) -> LayerSizes:
    """Return the sizes of the wanted layer. Raise UserError if the layer cannot be cut to them."""
    group, wanted_group = (part.n_heads // part.n_kv_heads for part in (layer.attention, wanted.attention))
    must_agree(f"{where}.attention.head_dim", layer.attention.head_dim, wanted.attention.head_dim, NO_OTHER)
    must_agree(f"{where}.attention.kv_group_size", group, wanted_group, NO_OTHER)
    for name in ("kind", "top_k", "d_shared"):
        old, new = (getattr(ffn, name, None) for ffn in (layer.ffn, wanted.ffn))
        must_agree(f"{where}.ffn.{name}", old, new, NO_OTHER)
    size = layer_size(wanted)
    smaller_layer(layer, size, where)
    return size


def curve_of_cut(model: ModelConfig, smaller: ModelConfig) -> Curve:
    """Return the sizes of a smaller model relative to the uniform model from which it was cut.

    Raises UserError with the reason if a curve cannot represent them.
    """
    uniform_rule(model)
    whole = model.layers[0]
    widths = list[float]()
    attention = list[float]()
    hidden = list[float]()
    for where, layer in smaller.named_layers():
        cut, uncut = (to_data(config.ffn) for config in (layer, whole))
        for key, value in uncut.items():
            if cut[key] != value and key not in layer.ffn.hidden_axes:
                raise UserError(f"{where}.ffn.{key}: a curve has no points for it")
        width = layer.d_model / whole.d_model
        n_channels, n_whole = (part.attention.n_heads * part.attention.head_dim for part in (layer, whole))
        widths.append(width)
        attention.append(n_channels / n_whole / width)
        hidden.append(sum(layer.ffn.hidden_widths) / sum(whole.ffn.hidden_widths) / width)
    return Curve(kind="curve", widths=widths, attention=attention, hidden=hidden)


def recipe_of_cut(recipe: Recipe, model: ModelConfig, curve: Curve, match: str) -> dict[str, Any]:
    """Return a recipe, as data, whose model has sizes on a curve and costs as much as a uniform model.

    match: the equal quantity. The shape meets it with fractions of heads. If whole heads miss it, all hidden units are
    scaled by up to a tenth.
    """
    rule = uniform_rule(model)
    n_layers = len(curve.widths)
    count = QUANTITIES[match]
    section = curve.section(match)
    budget = count(model.inference_cost(), recipe.seq_len)

    def model_at(percent: int) -> dict[str, Any]:
        shape = section | {"depth": n_layers / rule.n_layers}
        if percent != 100:
            shape["hidden"] = [round(point * percent / 100, 4) for point in section.get("hidden", [1.0])]
        return to_data(rule) | {"n_layers": n_layers, "shape": shape}

    def miss(percent: int) -> float:
        template = parse(ModelTemplate, model_at(percent), "the model")
        return count(template.resolve(recipe.seq_len).inference_cost(), recipe.seq_len) / budget - 1

    percent = closest_size(miss, 100, range(90, 111), FAR)
    return to_data(recipe) | {"model": model_at(percent), "growth": ()}


def cost_limits(model: ModelConfig, options: ShrinkOptions, seq_len: int) -> tuple[Callable[[Sizes], float], float]:
    """Return a function from sizes to their cost, and the limit of the cost.

    Raises UserError if even the smallest sizes cost more.
    """
    assert options.budget is not None
    count = QUANTITIES[options.budget]
    share = getattr(options, options.budget)

    def cost(sizes: Sizes) -> float:
        return count(smaller_config(model, sizes).inference_cost(), seq_len)

    whole = layer_sizes(model)
    least = _scaled(whole, options, 0.0)
    if options.shape == "found":
        least = [LayerSizes(*(levels[0] for levels in _levels(layer, options))) for layer in model.layers]
        single_layers = ([REMOVED] * i + [size] + [REMOVED] * (len(least) - i - 1) for i, size in enumerate(least))
        least = min(single_layers, key=cost)  # the model keeps at least one layer
    if cost(least) > share * cost(whole):
        raise UserError(
            f"{options.budget}: got {share:g}; must be no less than {cost(least) / cost(whole):.3f} with shape "
            f"{options.shape}"
        )
    return cost, share * cost(whole)


def sizes_at_budget(
    model: ModelConfig, options: ShrinkOptions, seq_len: int, needs: Sequence[LayerNeed] = ()
) -> list[LayerSizes]:
    """Return the sizes of all layers within the budget.

    needs: of every layer, most needed parts first; for shape `found`. Raises UserError if no sizes meet the budget.
    """
    cost, limit = cost_limits(model, options, seq_len)
    whole = layer_sizes(model)
    if options.shape == "found":
        return _sizes_of_least_loss(model, options, needs, limit, seq_len)
    if cost(whole) <= limit:
        return whole
    low = 0.0
    high = 1.0
    for _ in range(N_HALVINGS):  # the largest scale within the budget
        middle = (low + high) / 2
        low, high = (middle, high) if cost(_scaled(whole, options, middle)) <= limit else (low, middle)
    return _scaled(whole, options, low)


def _scaled(whole: Sequence[LayerSizes], options: ShrinkOptions, scale: float) -> list[LayerSizes]:
    """Return all sizes times `scale`, or times an x from 1 at the ends to `scale` at its turn."""
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
        n_kv_heads = rounded(size.n_kv_heads, share, 1)
        n_hidden = rounded(size.n_hidden, share, options.multiple)
        sizes.append(size._replace(d_model=d_model, n_kv_heads=n_kv_heads, n_hidden=n_hidden))
    return sizes


def _sizes_of_least_loss(
    model: ModelConfig, options: ShrinkOptions, needs: Sequence[LayerNeed], limit: float, seq_len: int
) -> list[LayerSizes]:
    """Return the sizes of each layer with the smallest total loss: a knapsack problem with one choice per layer.

    Raises UserError if the solver finds none within its time limit.
    """
    assert options.budget is not None
    count = QUANTITIES[options.budget]

    def cost_of(layer: LayerConfig) -> float:
        return count(sum(layer.costs(model.residual, layer.d_in).values(), Cost()), seq_len)

    costs_by_layer = dict[str, list[tuple[LayerSizes, float]]]()  # many layers are equal, and counting is slow
    choices: list[tuple[int, LayerSizes, float, float]] = []
    """Layer, its sizes, their cost, and the sum of the scores of removed parts."""
    for i, (layer, need) in enumerate(zip(model.layers, needs, strict=True)):
        key = repr(layer)
        if key not in costs_by_layer:
            sizes = [LayerSizes(*levels) for levels in product(*_levels(layer, options))]
            candidates = [(REMOVED, 0.0), *((size, cost_of(smaller_layer(layer, size, "layer"))) for size in sizes)]
            costs_by_layer[key] = sorted(candidates, key=lambda candidate: candidate[1])
        best = np.inf
        for size, cost in costs_by_layer[key]:
            loss = need.lost(size)
            if loss < best:  # skip sizes that cost more without a smaller loss
                best = loss
                choices.append((i, size, cost, loss))
    rows, sizes, costs, lost = zip(*choices)
    limit -= count(model.inference_cost(), seq_len) - sum(map(cost_of, model.layers))
    one_per_layer = csr_matrix((np.ones(len(rows)), (rows, np.arange(len(rows)))))
    solution = milp(
        np.divide(lost, max(*lost, 1e-300)),
        constraints=[
            LinearConstraint(one_per_layer, 1, 1),
            LinearConstraint(np.divide([costs], limit), ub=1),
            LinearConstraint(np.array([size != REMOVED for size in sizes], dtype=float)[None], 1),
        ],
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-4, "time_limit": SECONDS},
    )
    if solution.x is None:  # only for lack of time, because the smallest sizes are among the choices
        raise UserError(f"{options.budget}: no sizes were found in {SECONDS} seconds; raise --multiple")
    return [size for size, is_taken in zip(sizes, solution.x.round()) if is_taken]


def _levels(layer: LayerConfig, options: ShrinkOptions) -> list[Sequence[int]]:
    """Return the choices for each field of `LayerSizes` of a layer, smallest first."""
    whole = layer_size(layer)
    widths = _multiples(whole.d_model, options.multiple)
    top_k = layer.ffn.top_k if isinstance(layer.ffn, MoEConfig) else 1
    experts = sorted({max(n, top_k) for n in _multiples(whole.n_experts, 1)})
    return [widths, range(1, whole.n_kv_heads + 1), _multiples(whole.n_hidden, options.multiple), experts]


def _multiples(n: int, multiple: int) -> list[int]:
    """Return at most N_LEVELS multiples up to n, the smallest multiple, and n."""
    step = max(1, -(-n // (N_LEVELS * multiple))) * multiple
    return sorted({*range(step, n, step), min(n, multiple), n})
