"""The measures, findings and tables of an analysis, for page and terminal."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import yaml

from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.records.record import finite
from widthwise.reports.formats import MISSING, clean, fixed, si, without_seed
from widthwise.reports.table import Table, by_column

MIDDLE = (0.25, 0.75)
"""Depths of the middle layers, as fractions of all layers."""
CAVEAT = "Of these models on this text; another seed would give other numbers."
N_FINDINGS = 3
"""Number of sentences in the answer."""


@dataclass(frozen=True)
class Measure:
    """A number of each layer of a model, or of each depth of its stream."""

    part: Literal["units", "stream", "logit_lens", "sinks"]
    """The field of the model with one entry for each layer or depth."""
    key: str
    column: str
    """Title in tables with many columns. This and `title` are formatted with the threshold of utilisation."""
    n_decimals: int = 4
    title: str = ""
    """Title in other tables and of the figure; "" for neither."""
    unit: str = ""
    """Title of the y axis of the figure."""
    whole: Literal["", "mean", "middle", "last"] = ""
    """Value for a whole model. mean: the mean over layers; middle: this mean, and the mean over the middle half of the
    layers; last: the value at the last depth; "": none."""

    def by_depth(self, model: AnalysedModel) -> dict[int, float]:
        """Return layer or depth -> value; NaN if unknown."""
        entries = sorted(getattr(model, self.part), key=lambda entry: entry.depth)
        return {entry.depth: finite(getattr(entry, self.key)) for entry in entries}

    def of_model(self, model: AnalysedModel) -> float:
        """Return the value for the whole model; NaN if unknown."""
        by_depth = self.by_depth(model)
        if self.whole == "last":
            return next(reversed(by_depth.values()), np.nan)
        first = 0 if self.part == "logit_lens" else 1  # changes to the next depth begin at depth 0
        return _mean(value for depth, value in by_depth.items() if depth >= first)

    def of_middle(self, model: AnalysedModel) -> float:
        """Return the mean over the middle layers, which include the only layer of a model; NaN if unknown."""
        low, high = (fraction * model.n_layers for fraction in MIDDLE)
        return _mean(value for depth, value in self.by_depth(model).items() if low <= depth <= max(1, high))

    def shown(self, value: float | None) -> str:
        return MISSING if value is None or np.isnan(value) else fixed(value, self.n_decimals)


def _mean(values: Iterable[float]) -> float:
    finite_values = [value for value in values if not np.isnan(value)]
    return float(np.mean(finite_values)) if finite_values else np.nan


MEASURES = [Measure(**row) for row in yaml.safe_load(Path(__file__).with_name("measures.yaml").read_text("utf-8"))]
SUMMARIES = [measure for measure in MEASURES if measure.whole]
"""Measures with a value for a whole model."""


def findings(analysis: Analysis) -> list[tuple[Measure, str]]:
    """Return up to N_FINDINGS measures with the largest differences between variants, and a sentence for each.

    Each variant is the mean over its seeds, at the last checkpoint of each run, and is compared with the first variant.
    For a single run, the last checkpoint is compared with the first. For a single model, the sentences give the values
    of its middle layers.
    """
    threshold = analysis.utilisation_threshold
    last = {model.run or model.name: model for model in analysis.models}
    pooled: dict[str, list[AnalysedModel]] = {}
    for name, model in last.items():
        pooled.setdefault(without_seed(name), []).append(model)
    if len(last) == 1 and len(analysis.models) > 1:
        pooled = {clean(model.name): [model] for model in (analysis.models[0], analysis.models[-1])}
    first, *variants = pooled
    if not variants:
        alone = next(iter(last.values()))
        sentences = []
        for measure in SUMMARIES:
            if measure.whole == "middle" and not np.isnan(value := measure.of_middle(alone)):
                title = measure.title.format(threshold)
                sentences.append((measure, f"{title}: {measure.shown(value)} in the middle half of the layers."))
        return sentences
    changes = []
    for measure in SUMMARIES:
        values = {}
        for name, models in pooled.items():
            values[name] = float(np.mean([measure.of_model(model) for model in models]))
        name = max(variants, key=lambda variant: abs(np.nan_to_num(values[variant] - values[first])))
        if values[first] and np.isfinite(values[name] / values[first]):
            change = abs(values[name] / values[first] - 1)
            seeds = f", mean of {len(pooled[name])} seeds" if len(pooled[name]) > 1 else ""
            side = "higher" if values[name] > values[first] else "lower"
            title = measure.title.format(threshold)
            sentence = f"{title}: {side} by {change:.0%} in {name} than in {first}{seeds}."
            changes.append((change, measure, sentence))
    changes.sort(key=lambda change: -change[0])
    return [(measure, sentence) for _, measure, sentence in changes[:N_FINDINGS]]


def checkpoints_table(analysis: Analysis) -> Table:
    """Return a row for each model with its tokens and its values as a whole."""
    rows = [
        [clean(model.name), si(model.tokens), *(measure.shown(measure.of_model(model)) for measure in SUMMARIES)]
        for model in analysis.models
    ]
    header = ["Model", "tokens", *(measure.column.format(analysis.utilisation_threshold) for measure in SUMMARIES)]
    return Table("Means over layers, by checkpoint", header, rows, note=CAVEAT)


def summary_table(analysis: Analysis) -> Table:
    """Return means over layers: a row for each measure, a column for each model."""
    columns = {}
    for model in analysis.models:
        column = columns[model.name] = {
            "layers": str(model.n_layers),
            "average width": fixed(float(np.mean(model.widths)), 1),
            "target tokens": si(model.n_tokens),
        }
        for measure in SUMMARIES:
            title = measure.title.format(analysis.utilisation_threshold)
            title += ", last layer" if measure.whole == "last" else ""
            column[title] = measure.shown(measure.of_model(model))
            if measure.whole == "middle":
                column[f"{title}, middle half"] = measure.shown(measure.of_middle(model))
        valley = "none" if model.stream else MISSING
        if model.valley is not None:
            valley = f"{fixed(model.valley.drop, 3)}, {fixed(model.valley.rise, 3)} ({model.valley.depth})"
        column["valley: drop, rise (after layer)"] = valley
    return replace(by_column("Means over layers", columns, "Quantity"), note=CAVEAT)


def layer_table(model: AnalysedModel, threshold: float) -> Table:
    """Return all measures of a model by layer; row 0 is the stream before the first layer."""
    columns = [(measure, measure.by_depth(model)) for measure in MEASURES]
    rows = [["0: embedding", MISSING], *([str(n), str(width)] for n, width in enumerate(model.widths, start=1))]
    for depth, row in enumerate(rows):
        row += [measure.shown(by_depth.get(depth)) for measure, by_depth in columns]
    header = ["Layer", "width", *(measure.column.format(threshold) for measure in MEASURES)]
    return Table(f"Layers of {clean(model.name)}", header, rows)
