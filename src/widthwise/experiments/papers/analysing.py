"""An item whose numbers are found inside trained models."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import PositiveInt

from widthwise.experiments.experiment import run_path
from widthwise.experiments.papers.comparing import OfVariants
from widthwise.experiments.papers.experiment import Measured
from widthwise.experiments.statistics import seed_interval
from widthwise.records.analysis import Activations, AnalysedModel, Analysis
from widthwise.records.estimate import Estimate
from widthwise.records.record import finite
from widthwise.runs.analyse import N_TOKENS, analyse, write_analysis
from widthwise.training.observer import Observer

MODELS = "models"
"""Folder of the trained models, inside that of their analysis."""


class Analysing(OfVariants):
    """A recipe with a compare section, whose models are analysed on held-out text."""

    kind: Literal["analysis"] = "analysis"
    tiny_overrides: ClassVar = ("compare.seeds=[1, 2]",)
    n_tokens: PositiveInt = N_TOKENS

    @property
    def tiny(self) -> Self:
        return super().tiny.model_copy(update={"n_tokens": 512})

    @property
    def workload(self) -> str:
        return f"{self.plan.workload}; each analysed on {self.n_tokens:,} tokens"

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        models = folder / MODELS
        plan = self.train(models, observer, n_jobs)
        paths = [models / run_path(name, seed) for name, seed in plan.order]
        write_analysis(analyse(paths, n_tokens=self.n_tokens, observer=observer), folder)
        return [models, folder]

    def measured(self, folder: Path) -> "MeasuredInside | None":
        return MeasuredInside(Analysis.read(folder)) if (folder / Analysis.file_name).is_file() else None


class MeasuredInside(Measured):
    """Its quantities are those of INSIDE."""

    def __init__(self, analysis: Analysis):
        """Its models are called after their runs, `x-seed1`."""
        self._analysis = analysis
        self._by_name: dict[str, dict[str, AnalysedModel]] = {}
        for model in analysis.models:
            name, _, seed = model.name.rpartition("/")[2].rpartition("-seed")
            self._by_name.setdefault(name, {})[seed] = model
        everywhere = set.intersection(*(set(models) for models in self._by_name.values()))
        self._seeds = sorted(everywhere, key=lambda seed: (len(seed), seed))

    def value(self, name: str, quantity: str) -> Estimate | None:
        models, read = self._by_name.get(name), INSIDE.get(quantity)
        if models is None or read is None or not self._seeds:
            return None
        values = [read(models[seed], self._analysis) for seed in self._seeds]
        return seed_interval(values) if np.isfinite(values).all() else None

    @property
    def models(self) -> Mapping[str, float]:
        return {}

    @property
    def n_seeds(self) -> int:
        return len(self._seeds)


Part = tuple[float, float]
"""Where a part of the network begins and ends, as fractions of its depth."""
EVERYWHERE: Part = (0.0, 1.0)
EARLY_TO_MIDDLE: Part = (0.0, 0.75)
MIDDLE: Part = (0.25, 0.75)
MIDDLE_TO_FINAL: Part = (0.5, 1.0)


def _mean(values: Iterable[tuple[float, float | None]], n_layers: int, part: Part) -> float:
    """Mean over a part. values: depth in layers, and the number there. NaN where one is not known, or there is none."""
    low, high = (fraction * n_layers for fraction in part)
    inside = [finite(value) for depth, value in values if low <= depth <= high]
    return float(np.mean(inside)) if inside else float("nan")


def _of_units(
    read: Callable[[Activations, Analysis], float | None], part: Part
) -> Callable[[AnalysedModel, Analysis], float]:
    """A number of the hidden units of each layer, which stand in the middle between its two ends."""
    return lambda model, analysis: _mean(
        ((units.layer - 0.5, read(units, analysis)) for units in model.activations), model.n_layers, part
    )


def _density(units: Activations, analysis: Analysis, threshold: float) -> float | None:
    if threshold not in analysis.thresholds:
        return None
    return units.density[list(analysis.thresholds).index(threshold)]


def _spread(units: Activations, _: Analysis) -> float:
    """How unevenly units are used: the standard deviation over units of the share of tokens that activate a unit,
    divided by the mean share. NaN where no unit is active."""
    shares = np.array([finite(share) for share in units.utilisation])
    return float(shares.std() / shares.mean()) if shares.any() else float("nan")


def _of_stream(part: Part) -> Callable[[AnalysedModel, Analysis], float]:
    return lambda model, _: _mean(((state.depth, state.entropy) for state in model.stream), model.n_layers, part)


def _of_lens(name: str, part: Part) -> Callable[[AnalysedModel, Analysis], float]:
    """A number of the predictions after each layer; that before the first is none."""
    return lambda model, _: _mean(
        ((point.depth, getattr(point, name)) for point in model.logit_lens if point.depth > 0), model.n_layers, part
    )


def _valley(model: AnalysedModel, _: Analysis) -> float:
    """The smaller of its two slopes, 0 without one."""
    return 0.0 if model.valley is None else min(model.valley.drop, model.valley.rise)


def _fall(model: AnalysedModel, _: Analysis) -> float:
    """By how much the entropy of the decoded distribution falls over the last quarter of the network."""
    entropies = {point.depth: finite(point.entropy) for point in model.logit_lens}
    before = round(0.75 * model.n_layers)
    return entropies.get(before, float("nan")) - entropies.get(model.n_layers, float("nan"))


INSIDE: Mapping[str, Callable[[AnalysedModel, Analysis], float]] = {
    "spread_of_utilisation": _of_units(_spread, EVERYWHERE),
    "spread_of_utilisation_in_the_middle": _of_units(_spread, MIDDLE),
    **{
        f"density_beyond_{threshold:g}{where}": _of_units(partial(_density, threshold=threshold), part)
        for threshold in (0.01, 0.1, 1.0)
        for where, part in (("", EVERYWHERE), ("_in_the_middle", MIDDLE))
    },
    "matrix_entropy_from_the_middle_on": _of_stream(MIDDLE_TO_FINAL),
    "compression_valley": _valley,
    "target_log_probability_up_to_the_last_quarter": _of_lens("target_log_prob", EARLY_TO_MIDDLE),
    "entropy_of_the_prediction_up_to_the_last_quarter": _of_lens("entropy", EARLY_TO_MIDDLE),
    "fall_of_that_entropy_in_the_last_quarter": _fall,
    "divergence_from_the_next_prediction_in_the_middle": _of_lens("kl_to_next", MIDDLE),
    "participation_ratio_in_the_middle": _of_units(lambda units, _: units.participation, MIDDLE),
    "participation_share_in_the_middle": _of_units(lambda units, _: units.participation_share, MIDDLE),
}
"""Quantity -> what reads it from a model, as a mean over the layers of a part of the network."""
