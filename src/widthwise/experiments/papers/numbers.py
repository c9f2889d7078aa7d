"""The numbers of an item: measured by experiments, and counted at the paper's size, where nothing is trained."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pydantic

from widthwise.config_io import Config
from widthwise.experiments.fitting import fit_groups
from widthwise.experiments.recipes import describes_several, read_all
from widthwise.experiments.scaling_points import Axes, gather
from widthwise.experiments.statistics import seed_interval
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.records.analysis import Activations, AnalysedModel, Analysis
from widthwise.records.certificate import Demonstration
from widthwise.records.comparison import Compared
from widthwise.records.estimate import Estimate
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.quantities import OF_MODELS, QUANTITY
from widthwise.records.record import Number, finite
from widthwise.records.scaling import LawName, ScalingLaws
from widthwise.runs.rank_memory import Layout, ShardedModel
from widthwise.yaml_io import papers_folder, recipe_path

DIFFERENCE = "difference"
DIFFERENCES = {DIFFERENCE: "val_loss", "difference_train_loss": "train_loss"}
"""Difference -> the loss that it is of: each with its like."""
NEEDS = "needs_"
"""Beginning of the quantity "x that a group needs for the loss of the baseline's largest model, over what that has"."""
OTHER_UNITS = {"pflops_days": "training_flops"}
"""Quantity -> the same in other units: ratios are equal."""


@dataclass(frozen=True)
class Measurements:
    """The numbers of a record."""

    value: Callable[[str, str], Estimate | None]
    """Name, quantity -> its mean over seeds; None if it was not measured."""
    n_seeds: int | None
    params: Sequence[float] = ()
    """Parameters of the models; empty where they are not known."""

    def called(self, names: Mapping[str, str]) -> "Measurements":
        """Return the same for other names. names: new name -> name here, where that is another."""
        return replace(self, value=lambda name, quantity: self.value(names.get(name, name), quantity))

    def difference(self, name: str, baseline: str, quantity: str) -> Estimate | None:
        """Return a quantity minus the baseline's; of a loss or its difference, that difference.

        The recorded difference if it is to the same baseline, so that one difference has one interval; otherwise paired
        by seed. None if they were not measured, or with other seeds.
        """
        recorded = next((key for key, loss in DIFFERENCES.items() if loss == quantity), quantity)
        if recorded.startswith(DIFFERENCE) and self.value(baseline, recorded) is None:
            if (found := self.value(name, recorded)) is not None:
                return found
            quantity = DIFFERENCES.get(recorded, quantity)
        own, other = self.value(name, quantity), self.value(baseline, quantity)
        if own is None or other is None or not own.per_seed or len(own.per_seed) != len(other.per_seed):
            return None
        return seed_interval([finite(a) - finite(b) for a, b in zip(own.per_seed, other.per_seed)])


def _of_seeds(
    values: Mapping[str, Mapping[str, Sequence[float]]], n_seeds: int, params: Sequence[float] = ()
) -> Measurements:
    """Return means over seeds. values: name -> quantity -> a value for each seed."""

    def value(name: str, quantity: str) -> Estimate | None:
        found = values.get(name, {}).get(quantity, ())
        return seed_interval(found) if len(found) and np.isfinite(found).all() else None

    return Measurements(value, n_seeds, params)


def from_variants(compared: Compared) -> Measurements:
    """Return the numbers of a comparison or a sweep, by variant; quantities are those of QUANTITY."""
    by_name = {variant.name: variant for variant in compared.variants}

    def value(name: str, quantity: str) -> Estimate | None:
        known = name in by_name and quantity in QUANTITY
        return QUANTITY[quantity].of_variant(by_name[name]) if known else None

    return Measurements(value, len(compared.seeds), [variant.cost.params["total"] for variant in compared.variants])


def from_demonstration(found: Demonstration) -> Measurements:
    """Return the numbers of a demonstration, by expansion."""
    expansions = found.expansions
    by_name = {name: each.quantities for name, each in expansions.items()}
    return _of_seeds(by_name, len(found.seeds), [each.params for each in expansions.values()])


def from_laws(by_x: Mapping[str, ScalingLaws]) -> Measurements:
    """Return the numbers of laws, by group: NEEDS and a quantity of an x axis, the parameters of a law and r_squared.

    by_x: quantity of the x axis -> the laws over it.
    """

    def value(name: str, quantity: str) -> Estimate | None:
        if quantity.startswith(NEEDS):
            x = quantity.removeprefix(NEEDS)
            laws = by_x.get(x) or by_x.get(OTHER_UNITS.get(x, x))
            return next((each.ratio for each in laws.arrows if each.group == name), None) if laws else None
        fits = (group.chosen_fit for laws in by_x.values() for group in laws.groups if group.name == name)
        if (fit := next(filter(None, fits), None)) is None:
            return None
        return Estimate(mean=fit.r_squared) if quantity == "r_squared" else fit.parameters.get(quantity)

    points = [point for laws in by_x.values() for group in laws.groups for point in group.points]
    return Measurements(value, min((point.n_seeds for point in points), default=None))


class AnalysisQuantity(Config):
    """Place of a quantity in an analysis: of a model, or of its layers, as a mean over a part of the network."""

    of: Literal["model", "activations", "stream", "logit_lens"]
    """The state before the first layer counts for no part."""
    value: str
    """Name of the number in the record. Of one for each unit, the spread counts: standard deviation over mean."""
    beyond: float | None = None
    """Of a density, the threshold."""
    part: tuple[float, float] = (0.0, 1.0)
    """Where the part begins and ends, as fractions of the depth. Hidden units stand in the middle of their layer."""

    def read(self, model: AnalysedModel, thresholds: Sequence[float]) -> float:
        """Return the number; NaN where one of the layers lacks it, or there is none."""
        if self.of == "model":
            return finite(getattr(model, self.value))
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


def from_analysis(analysis: Analysis, quantities: Mapping[str, AnalysisQuantity]) -> Measurements:
    """Return the numbers of models, by variant: they are called after their runs, `x-seed1`. Seeds that a variant lacks
    count for none, so that differences are paired."""
    by_name: dict[str, dict[str, AnalysedModel]] = {}
    for model in analysis.models:
        name, _, seed = model.name.rpartition("/")[2].rpartition("-seed")
        by_name.setdefault(name, {})[seed] = model
    seeds = sorted(set.intersection(*map(set, by_name.values())), key=lambda seed: (len(seed), seed))
    values = {
        name: {
            key: [each.read(models[seed], analysis.thresholds) for seed in seeds] for key, each in quantities.items()
        }
        for name, models in by_name.items()
    }
    return _of_seeds(values, len(seeds))


class TableQuantity(Config):
    """Place of a quantity in a table of evaluations."""

    column: str
    metric: str
    times: float = 1.0
    """Factor; 100 for a share that is printed in percent."""


def from_table(table: EvaluationTable, quantities: Mapping[str, TableQuantity]) -> Measurements:
    """Return the numbers of a table, by variant: its rows are called after runs, `x-seed1`."""
    columns = {(column.name, column.metric): i for i, column in enumerate(table.columns)}
    by_name: dict[str, list[list[float]]] = {}
    for row in table.rows:
        name, _, _ = row.name.rpartition("-seed")
        by_name.setdefault(name, []).append([finite(cell.value) for cell in row.cells])
    values = {
        name: {
            key: [each.times * cells[columns[each.column, each.metric]] for cells in rows]
            for key, each in quantities.items()
            if (each.column, each.metric) in columns
        }
        for name, rows in by_name.items()
    }
    return _of_seeds(values, min(map(len, by_name.values())))


N_GPUS = 8
"""GPUs of a node, as in the dynamic-width paper."""
NORM_FLOPS = 4
"""FLOPs that the virtual-width paper counts for each number that is normalised; here norms are not counted."""


def _memory_gb(recipe: Recipe) -> float:
    """Return the peak memory of a GPU of a node in a step."""
    with warnings.catch_warnings(action="ignore"):  # a model that is only counted need not be a good one
        sharded = ShardedModel.of(recipe)
    return sharded.memory(recipe.train, recipe.seq_len, Layout.of(recipe.train, N_GPUS)).total_bytes / 1e9


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


def read_sizes(names: Sequence[str]) -> Mapping[str, Recipe]:
    """Return the bundled recipes by name, or the variants or points of a single one by theirs. Raises UserError."""
    first = recipe_path(names[0])
    if len(names) == 1 and describes_several(first):
        return read_all(first)[0].recipes
    return {name: load_recipe(recipe_path(name)) for name in names}


def count(recipe: Recipe, quantity: str) -> Number | None:
    """Return what can be counted without training: a number of the recipe, of the model, or an option of its
    feed-forwards that is the same in all layers."""
    if quantity in OF_RECIPES:
        return OF_RECIPES[quantity](recipe)
    if quantity in OF_MODELS:
        return OF_MODELS[quantity].of_cost(cost_summary(recipe.final_model, recipe.seq_len))
    options = {getattr(layer.ffn, quantity, None) for layer in recipe.explicit_model.layers}
    return options.pop() if len(options) == 1 else None


class PrintedPoints(Config):
    """Points that a paper prints, as a table of `configs/papers/points`, and the laws through them."""

    file: str
    over: tuple[str, ...] = pydantic.Field(min_length=1)
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
        path = papers_folder() / "points" / f"{self.file}.csv"
        axes = {x: Axes(x, self.y, self.group) for x in self.over}
        return from_laws({x: fit_groups(gather([path], axes[x], self.baseline), "", "", self.law) for x in self.over})
