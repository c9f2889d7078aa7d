"""Search for the uniform models with hourglass feed-forwards that meet a budget and have the lowest other costs.

Costs are counted without weights, so a search is fast. It does not predict the loss.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.config_io import mistakes_at
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionTemplate
from widthwise.model.ffn.hourglass import HourglassTemplate
from widthwise.shape.kinds import UniformShape
from widthwise.shape.search_space import ANY, GRIDS, SearchSpace, Sizes, UniformTotals, totals
from widthwise.shape.template import ModelTemplate

DEEPEST = 256
"""Largest number of layers if n_layers is open."""
MOST_EXAMINED = 1_000_000


@dataclass(frozen=True)
class SearchResult:
    """The candidates: first the Pareto front, then the other shapes, both ordered by `rank_by`, then by size.

    With `SearchSpace.per`, only the best candidate of each combination.
    """

    space: SearchSpace
    budget: float
    baseline: dict[str, float]
    """Totals of the base model."""
    count: UniformTotals
    """Totals of the examined models, as functions of their sizes."""
    n_examined: int
    rejected: dict[str, int]
    """Reason for a rejection -> number of rejected shapes."""
    n_found: int
    """Number of shapes that meet the budget."""
    sizes: Sizes
    """(n,) sizes of the candidates."""
    is_pareto: np.ndarray
    """(n,) True if no other shape is as cheap in every cost and cheaper in one."""

    def __len__(self) -> int:
        return len(self.is_pareto)

    def best(self, n: int) -> list[dict[str, Any]]:
        """Return name, sizes and totals of the first n candidates as plain data, counted layer by layer.

        `miss` is the relative difference from the budget.
        """
        rows = []
        for index in range(min(n, len(self))):
            sizes = Sizes(*map(int, self.sizes.at(index)))
            config = self.count.build(sizes)
            counted = totals(config, self.count.seq_len)
            for name, value in counted.items():
                assert math.isclose(value, self.count(name, sizes), rel_tol=1e-12), (name, sizes)
            attention = config.layers[0].attention
            row = {
                "name": f"d{sizes.d_model}-h{sizes.d_hidden}-k{sizes.n_blocks}-l{sizes.n_layers}",
                "is_pareto": bool(self.is_pareto[index]),
                **sizes._asdict(),
                "n_heads": attention.n_heads,
                "n_kv_heads": attention.n_kv_heads,
                "head_dim": attention.head_dim,
                "ratio": sizes.d_hidden / sizes.d_model,
                "attention_ratio": sizes.d_attention / sizes.d_model,
                "aspect": sizes.d_model / sizes.n_layers,
                "miss": counted[self.space.match] / self.budget - 1,
                **counted,
            }
            rows.append(row)
        return rows

    def summary(self, n: int) -> dict[str, Any]:
        """Return the result as plain data, with the first n candidates."""
        return {
            "match": self.space.match,
            "budget": self.budget,
            "tolerance": self.space.tolerance or GRIDS[self.space.grid].tolerance,
            "costs": list(self.space.costs),
            "seq_len": self.count.seq_len,
            "n_examined": self.n_examined,
            "rejected": self.rejected,
            "n_found": self.n_found,
            "per": list(self.space.per),
            "n_kept": len(self),
            "n_pareto": int(self.is_pareto.sum()),
            "baseline": self.baseline,
            "candidates": self.best(n),
        }


def search(base: ModelTemplate, seq_len: int, space: SearchSpace) -> SearchResult:
    """Return the shapes of the space that meet the budget.

    Width, depth, heads and feed-forward vary; everything else is as in the base. Raises UserError, with the reasons, if
    no shape does.
    """
    if base.layers:
        raise UserError("model.layers: a search gives all layers the same sizes; leave changes to single layers out")
    with mistakes_at("model.residual"):
        base.residual.check_searchable()
    heads = space.heads(base.attention)
    quantum = math.lcm(heads.quantum, base.residual.d_model_quantum)
    baseline = totals(base.resolve(seq_len), seq_len)
    budget = baseline[space.match] if space.budget is None else space.budget
    count = UniformTotals(
        lambda sizes: candidate_template(base, heads, sizes).resolve(seq_len), quantum, heads.unit, seq_len
    )
    examined = _grid_sizes(count, budget, space, heads)
    is_valid, rejected = _valid(count, budget, space, examined)
    valid = examined.at(is_valid)
    is_pareto = pareto_front(np.stack([count(name, valid) for name in space.costs], axis=1))
    # np.lexsort sorts by its last key first.
    by_size = (valid.d_hidden, valid.d_attention, valid.d_model, valid.n_blocks, valid.n_layers)
    order = np.lexsort((*by_size, count(space.rank_by or space.costs[0], valid), ~is_pareto))
    best = order
    if space.per:  # keep the first shape of each combination, in their order
        ranked = valid.at(order)
        distances = np.abs((ranked.d_hidden / ranked.d_model)[:, None] - np.array(space.ratio))
        keys = {"n_blocks": ranked.n_blocks, "n_layers": ranked.n_layers, "ratio": distances.argmin(axis=1)}
        combinations = np.stack([keys[name] for name in space.per], axis=1)
        by_distance = np.arange(len(order))
        if "ratio" in space.per:  # the shape nearest to each target ratio comes first
            by_distance = np.argsort(distances.min(axis=1), kind="stable")
        _, first = np.unique(combinations[by_distance], axis=0, return_index=True)
        best = order[np.sort(by_distance[first])]
    sizes = valid.at(best)
    return SearchResult(space, budget, baseline, count, len(is_valid), rejected, len(order), sizes, is_pareto[best])


def candidate_template(base: ModelTemplate, heads: AttentionTemplate, sizes: Sizes) -> ModelTemplate:
    """Return the base with these sizes."""
    change = {
        "d_model": sizes.d_model,
        "n_layers": sizes.n_layers,
        "shape": UniformShape(),
        "attention": heads.model_copy(update={"ratio": None, "d_attention": sizes.d_attention}),
        "ffn": HourglassTemplate(n_blocks=sizes.n_blocks, d_hidden=sizes.d_hidden),
    }
    return base.model_copy(update=change)


def _grid_sizes(count: UniformTotals, budget: float, space: SearchSpace, heads: AttentionTemplate) -> Sizes:
    """Return the fitting d_model on the grid and its two neighbours, for each n_blocks, n_layers and ratio.

    Attention has whole heads. The hidden width uses the remaining budget, or follows the ratio if the matched total
    does not depend on it.
    """
    grid = GRIDS[space.grid]
    quantum = math.lcm(grid.d_model, count.quantum)
    depths = range(1, DEEPEST + 1) if space.n_layers is None else space.n_layers
    n_examined = 3 * len(space.n_blocks) * len(depths) * len(space.ratio)
    if n_examined > MOST_EXAMINED:
        raise UserError(f"search: {n_examined:,} shapes are too many to examine; at most {MOST_EXAMINED:,}")
    n_blocks, n_layers, ratio = (axis.ravel() for axis in np.meshgrid(space.n_blocks, depths, space.ratio))
    match = space.match
    d_model = count.d_model(match, budget, lambda d: Sizes(n_blocks, n_layers, d, ratio * d, heads.width(d)))
    if space.n_layers is None:
        is_allowed = _within(d_model / n_layers, space.aspect_limits)
        if not is_allowed.any():
            aspect = _span(space.aspect_limits)
            raise UserError(f"search: d_model / n_layers is {aspect} at no depth up to {DEEPEST}; give n_layers")
        n_blocks, n_layers, ratio, d_model = (axis[is_allowed] for axis in (n_blocks, n_layers, ratio, d_model))
    nearest = np.rint(d_model / quantum)
    d_model = np.concatenate([np.maximum(nearest + step, 1) * quantum for step in (-1, 0, 1)])
    n_blocks, n_layers, ratio = (np.tile(axis, 3) for axis in (n_blocks, n_layers, ratio))
    widths: Any = d_model
    n_units = np.maximum(np.rint(heads.width(widths) / heads.unit), 1)
    d_attention = np.broadcast_to(n_units * heads.unit, d_model.shape)  # may be one number for all widths
    d_hidden = count.d_hidden(match, budget, Sizes(n_blocks, n_layers, d_model, 0, d_attention))
    d_hidden = np.where(np.isfinite(d_hidden), d_hidden, ratio * d_model)
    d_hidden = np.maximum(np.rint(d_hidden / grid.d_hidden), 0) * grid.d_hidden
    return Sizes(*np.unique(np.stack([n_blocks, n_layers, d_model, d_hidden, d_attention]), axis=1))


def _valid(
    count: UniformTotals, budget: float, space: SearchSpace, examined: Sizes
) -> tuple[np.ndarray, dict[str, int]]:
    """Return bool (n,), True for shapes without a fault, and fault -> number of shapes that it rejects.

    A shape counts for its most important fault.
    """
    misses = np.abs(count(space.match, examined) / budget - 1)
    has_ffn = examined.d_hidden > 0
    nearest = f"{100 * misses[has_ffn].min():.2g}%" if has_ffn.any() else "more"
    tolerance = space.tolerance or GRIDS[space.grid].tolerance
    aspect = space.aspect_limits
    ratio = space.ratio_range or ANY
    faults = {
        "have no room for a feed-forward": ~has_ffn,
        f"miss the budget by more than {100 * tolerance:g}% (the nearest by {nearest})": misses > tolerance,
        f"have d_model / n_layers not {_span(aspect)}": ~_within(examined.d_model / examined.n_layers, aspect),
        f"have d_hidden / d_model not {_span(ratio)}": ~_within(examined.d_hidden / examined.d_model, ratio),
    }
    limits = {"flops": space.max_flops, "kv_bytes": space.max_kv_bytes}
    limits["n_residual_additions"] = space.max_residual_additions
    for name, limit in limits.items():
        if limit is not None:
            faults[f"have {name} above {limit:g}"] = count(name, examined) > limit
    has_fault = np.zeros_like(has_ffn)
    rejected = {}
    for fault, applies in faults.items():
        n_rejected = int((applies & ~has_fault).sum())
        if n_rejected:
            rejected[fault] = n_rejected
        has_fault |= applies
    if has_fault.all():
        reasons = ", ".join(f"{n:,} {fault}" for fault, n in rejected.items())
        raise UserError(f"search: no shape remains of {len(has_fault):,} examined: {reasons}")
    return ~has_fault, rejected


def _within(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    return (values >= limits[0]) & (values <= limits[1])


def _span(limits: tuple[float, float]) -> str:
    return f"{limits[0]:g} to {limits[1]:g}"


def pareto_front(costs: np.ndarray) -> np.ndarray:
    """Return bool (n,), True for rows that no other row dominates: as low in every cost, and lower in one.

    costs: (n, n_costs).
    """
    front = np.empty_like(costs)
    n_front = 0
    is_pareto = np.zeros(len(costs), dtype=bool)
    # In this order no row is dominated by a later one.
    for index in np.lexsort(costs.T[::-1]):
        better = front[:n_front]
        if not ((better <= costs[index]).all(axis=1) & (better < costs[index]).any(axis=1)).any():
            is_pareto[index] = True
            front[n_front] = costs[index]
            n_front += 1
    return is_pareto
