"""Numbers by row and quantity: measured by experiments, and counted at the paper's size, where nothing is trained."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from papers import POINTS
from widthwise.config_io import Config
from widthwise.evaluation.estimate import seed_interval
from widthwise.experiments.fitting import fit_groups
from widthwise.experiments.scaling_points import Axes, gather
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe
from widthwise.records.analysis import Activations, AnalysedModel
from widthwise.records.estimate import Estimate
from widthwise.records.quantities import MODEL_COSTS
from widthwise.records.record import Number, finite
from widthwise.records.scaling import LawName, ScalingLaws
from widthwise.runs.rank_memory import ShardedModel

DIFFERENCE = "difference"
DIFFERENCES = {DIFFERENCE: "val_loss", "difference_train_loss": "train_loss"}
"""Difference -> the loss that it is of: each with its like."""
NEEDS = "needs_"
"""Beginning of the quantity "x that a group needs for the loss of the baseline's largest model, over what that has"."""
OTHER_UNITS = {"training_flops": "pflops_days"}
"""Quantity -> the same in other units: ratios are equal."""


@dataclass(frozen=True)
class Measurements:
    """The numbers of a record."""

    values: Mapping[str, Mapping[str, Estimate | None]]
    """Name in the record -> quantity -> its mean over seeds; None or absent if it was not measured."""
    n_seeds: int | None
    params: Sequence[float] = ()
    """Parameters of the models; empty where they are not known."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Row of the item -> its name in the record, if it differs."""

    def value(self, row: str, quantity: str) -> Estimate | None:
        return self.values.get(self.rows.get(row, row), {}).get(quantity)

    def difference(self, row: str, baseline: str, quantity: str) -> Estimate | None:
        """Return a quantity minus the baseline's; of a loss or its difference, that difference.

        The recorded difference if it is to the same baseline, so that one difference has one interval; otherwise paired
        by seed. None if they were not measured, or with other seeds.
        """
        recorded = next((key for key, loss in DIFFERENCES.items() if loss == quantity), quantity)
        if recorded.startswith(DIFFERENCE) and self.value(baseline, recorded) is None:
            if (found := self.value(row, recorded)) is not None:
                return found
            quantity = DIFFERENCES.get(recorded, quantity)
        own, other = self.value(row, quantity), self.value(baseline, quantity)
        if own is None or other is None or not own.per_seed or len(own.per_seed) != len(other.per_seed):
            return None
        return seed_interval([finite(a) - finite(b) for a, b in zip(own.per_seed, other.per_seed)])


def over_seeds(per_seed: Sequence[float]) -> Estimate | None:
    """Return the mean over seeds; None unless all have a number."""
    return seed_interval(per_seed) if len(per_seed) and np.isfinite(per_seed).all() else None


def of_runs(numbers: Mapping[str, Mapping[str, float]]) -> Measurements:
    """Return means over the seeds that all variants have, so that differences are paired.

    numbers: run, called `VARIANT-seedN` -> quantity -> number; NaN for none.
    """
    by_variant: dict[str, dict[str, Mapping[str, float]]] = {}
    for run, own in numbers.items():
        name, _, seed = run.rpartition("/")[2].rpartition("-seed")
        by_variant.setdefault(name, {})[seed] = own
    seeds = sorted(set.intersection(*map(set, by_variant.values())), key=lambda seed: (len(seed), seed))
    quantities = next(iter(numbers.values()))
    values = {
        name: {key: over_seeds([own[seed][key] for seed in seeds]) for key in quantities}
        for name, own in by_variant.items()
    }
    return Measurements(values, len(seeds))


def from_laws(by_x: Mapping[str, ScalingLaws]) -> Measurements:
    """Return the numbers of laws, by group: NEEDS and a quantity of an x axis, the parameters of a law and r_squared.

    by_x: quantity of the x axis -> the laws over it; of each group the first that was fitted counts.
    """
    values: dict[str, dict[str, Estimate | None]] = {}
    for x, laws in by_x.items():
        for group in laws.groups:
            own, fit = values.setdefault(group.name, {}), group.chosen_fit
            if "r_squared" not in own:
                own |= {**fit.parameters, "r_squared": Estimate(mean=fit.r_squared)}
        for saving in laws.arrows:
            values[saving.group] |= {NEEDS + name: saving.ratio for name in (x, OTHER_UNITS.get(x, x))}
    n_seeds = (point.n_seeds for laws in by_x.values() for group in laws.groups for point in group.points)
    return Measurements(values, min(n_seeds, default=None))


class PrintedPoints(Config):
    """Points that a paper prints, as a table of `points/`, and the laws through them."""

    file: str
    over: tuple[str, ...] = Field(min_length=1)
    """Columns of the x axes, one law over each."""
    y: str
    group: str | None = None
    """Column that names the group of a point; default: all are one group, named after the file."""
    baseline: str | None = None
    law: LawName | None = None
    """Default: the one that errs least at a point left out."""

    @cached_property
    def laws(self) -> Measurements:
        """The numbers of the laws, group by group. Raises UserError."""
        path = POINTS / f"{self.file}.csv"
        axes = {x: Axes(x, self.y, self.group) for x in self.over}
        return from_laws({x: fit_groups(gather([path], axes[x], self.baseline), "", "", self.law) for x in self.over})


def _depth_of_valley(model: AnalysedModel) -> float:
    """Return the smaller of the two slopes of the compression valley; 0 without one."""
    return 0.0 if model.valley is None else min(model.valley.drop, model.valley.rise)


def _late_entropy_drop(model: AnalysedModel) -> float | None:
    """Return by how much the entropy of the prediction falls over the last quarter of the layers; None if unknown."""
    by_depth = {point.depth: point.entropy for point in model.logit_lens}
    before, last = by_depth.get(round(0.75 * model.n_layers)), by_depth.get(model.n_layers)
    return None if before is None or last is None else before - last


OF_ANALYSED = {"depth_of_valley": _depth_of_valley, "late_entropy_drop": _late_entropy_drop}
"""Quantity of a whole analysed model -> what computes it."""


class AnalysisQuantity(Config):
    """Place of a quantity in an analysis: of a model, or of its layers, as a mean over a part of the network."""

    of: Literal["model", "activations", "stream", "logit_lens"]
    """Part of an analysed model. The state before the first layer counts for no part."""
    value: str
    """Name of the number in the record. Of one for each unit, the spread counts: standard deviation over mean."""
    beyond: float | None = None
    """Threshold of a density."""
    part: tuple[float, float] = (0.0, 1.0)
    """Where the part begins and ends, as fractions of the depth. Hidden units stand in the middle of their layer."""

    def read(self, model: AnalysedModel, thresholds: Sequence[float]) -> float:
        """Return the number; NaN where one of the layers lacks it, or there is none."""
        if self.of == "model":
            return finite(OF_ANALYSED[self.value](model))
        low, high = (fraction * model.n_layers for fraction in self.part)
        found = []
        for layer in getattr(model, self.of):
            depth = layer.layer - 0.5 if isinstance(layer, Activations) else layer.depth
            if depth > 0 and low <= depth <= high:
                found.append(self._number(getattr(layer, self.value), thresholds))
        return float(np.mean(found)) if found else math.nan

    def _number(self, value: float | Sequence[float | None] | None, thresholds: Sequence[float]) -> float:
        if not isinstance(value, Sequence):
            return finite(value)
        if self.beyond is not None:
            return finite(value[thresholds.index(self.beyond)]) if self.beyond in thresholds else math.nan
        of_units = np.array([finite(each) for each in value])
        return float(of_units.std() / of_units.mean()) if of_units.any() else math.nan


class TableQuantity(Config):
    """Place of a quantity in a table of evaluations."""

    column: str
    metric: str
    times: float = 1.0
    """Factor; 100 for a share that is printed in percent."""


N_GPUS = 8
"""GPUs of a node, as in the dynamic-width paper."""
NORM_FLOPS = 4
"""FLOPs that the virtual-width paper counts for each number that is normalised; here norms are not counted."""


def _memory_gb(recipe: Recipe) -> float:
    """Return the peak memory of a GPU of a node in a step."""
    with warnings.catch_warnings(action="ignore"):  # a model that is only counted need not be a good one
        sharded = ShardedModel(recipe)
    return sharded.memory(recipe.train, N_GPUS).total_bytes / 1e9


def _depth_connection_flops(recipe: Recipe) -> float:
    """Return the FLOPs of the writes of a site, without coefficients, over d_model."""
    d_model = recipe.final_model.d_model
    static = recipe.final_model.residual.model_copy(update={"dynamic": False})
    return (static.cost(d_model, d_model, d_model).flops - static.cost(d_model, d_model, 0).flops) / d_model


def _width_connection_flops(recipe: Recipe) -> float:
    """Return the FLOPs of the norm, the coefficients, the reads and the carries of a site, over d_model."""
    d_model, residual = recipe.final_model.d_model, recipe.final_model.residual
    site = residual.cost(d_model, d_model, d_model).flops + NORM_FLOPS * math.prod(residual.slot_shape(d_model))
    return site / d_model - _depth_connection_flops(recipe)


def _layer_activation_bytes(recipe: Recipe, *parts: str) -> float:
    """Return bytes that the first layer, or parts of it, keep per token for the backward pass in bf16, over d_model."""
    costs = recipe.final_model.layer_costs()[0]
    return sum(costs[part].activation_bytes() for part in parts or costs) / recipe.final_model.d_model


OF_RECIPES: Mapping[str, Callable[[Recipe], Number]] = {
    "n_layers": lambda recipe: len(recipe.explicit_model.layers),
    "tokens": lambda recipe: recipe.n_tokens,
    "seq_len": lambda recipe: recipe.seq_len,
    "pflops_days": lambda recipe: recipe.pflops_days,
    "batch_size": lambda recipe: recipe.train.batch_size,
    "memory_gb": _memory_gb,
    "width_connection_flops": _width_connection_flops,
    "depth_connection_flops": _depth_connection_flops,
    "layer_activation_bytes": _layer_activation_bytes,
    "residual_activation_bytes": lambda recipe: _layer_activation_bytes(recipe, "residual"),
}
"""Quantity that follows from the recipe alone -> what counts it."""


def count(recipe: Recipe, quantity: str) -> Number | None:
    """Return what can be counted without training: a number of the recipe, of the model, or an option of its
    feed-forwards that is the same in all layers."""
    if quantity in OF_RECIPES:
        return OF_RECIPES[quantity](recipe)
    if quantity in MODEL_COSTS:
        return MODEL_COSTS[quantity].of_cost(cost_summary(recipe.final_model, recipe.seq_len))
    options = {getattr(layer.ffn, quantity, None) for layer in recipe.explicit_model.layers}
    return options.pop() if len(options) == 1 else None
