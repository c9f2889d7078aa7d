"""An analysis by layer and by model: its numbers, and tables of them for the page and the terminal."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from widthwise.records.analysis import Activations, AnalysedModel, Analysis
from widthwise.records.record import finite
from widthwise.reports.curves import Curve
from widthwise.reports.formats import MISSING, clean, fixed, si
from widthwise.reports.table import Table


@dataclass(frozen=True)
class DepthAxis:
    """One axis for all models: layers if they are equally deep, otherwise the fraction of the layers passed."""

    is_fraction: bool

    @classmethod
    def of(cls, models: Sequence[AnalysedModel]) -> "DepthAxis":
        return cls(len({model.n_layers for model in models}) > 1)

    @property
    def name(self) -> str:
        return "layers passed, as a share of all" if self.is_fraction else "layer"

    def curve(self, model: AnalysedModel, values: dict[int, float]) -> Curve:
        """Return values over depth. values: layer (or depth) -> value."""
        depths = np.array(sorted(values), dtype=float)
        scale = model.n_layers if self.is_fraction else 1
        return Curve(depths / scale, np.array([values[int(depth)] for depth in depths], dtype=float))


def _total(parts: Sequence[Activations], value: Callable[[Activations], float | None]) -> float:
    return sum(finite(value(part)) for part in parts)


@dataclass(frozen=True)
class LayerUnits:
    """All hidden units of a layer's feed-forward, those of several maps taken together."""

    layer: int
    parts: Sequence[Activations]

    @property
    def d_ff(self) -> int:
        return sum(part.d_ff for part in self.parts)

    @property
    def utilisation(self) -> NDArray[np.float64]:
        """(d_ff,): share of tokens for which each unit is active, the most used first."""
        shares = [finite(share) for part in self.parts for share in part.utilisation]
        return np.sort(np.array(shares))[::-1]

    @property
    def density(self) -> float:
        """Share of the activations beyond the threshold of utilisation."""
        return float(self.utilisation.mean())

    def density_at(self, index: int) -> float:
        """Share of the activations beyond threshold number `index`."""
        return _total(self.parts, lambda part: finite(part.density[index]) * part.d_ff) / self.d_ff

    @property
    def dead_share(self) -> float:
        return _total(self.parts, lambda part: finite(part.dead_share) * part.d_ff) / self.d_ff

    @property
    def participation(self) -> float:
        """Effective numbers of units, added over the maps."""
        return _total(self.parts, lambda part: part.participation)

    @property
    def participation_share(self) -> float:
        return self.participation / self.d_ff


def layers_of(model: AnalysedModel) -> dict[int, LayerUnits]:
    """Return layer -> its units; layers without a measured feed-forward are left out."""
    parts: dict[int, list[Activations]] = {}
    for each in model.activations:
        parts.setdefault(each.layer, []).append(each)
    return {layer: LayerUnits(layer, own) for layer, own in sorted(parts.items())}


def counterpart(layer: int, n_layers: int, of: AnalysedModel) -> int:
    """Return the layer of a model that stands where `layer` of `n_layers` does; the same number in one as deep."""
    return math.ceil(layer * of.n_layers / n_layers)


def exit_curve(model: AnalysedModel) -> Curve | None:
    """Return the loss where the model ends after a layer or a block, over the FLOPs by then; None if unknown."""
    if model.exit_flops is None:
        return None
    exits = [(model.exit_flops[each.depth], finite(each.target_log_prob)) for each in model.logit_lens]
    if model.block_exit_flops is not None:
        for each in model.block_exits:
            exits.append((model.block_exit_flops[each.layer - 1][each.block - 1], finite(each.target_log_prob)))
    flops, log_probs = np.array(sorted(exits), dtype=float).T
    return Curve(flops, -log_probs)


Number = Callable[[AnalysedModel], str]


@dataclass(frozen=True)
class Mean:
    """A number that an analysis gives of a model as a whole, most often a mean over its layers."""

    title: str
    short: str
    """Its title in a table with many columns."""
    value: Callable[[AnalysedModel], float]
    """NaN where the model has none."""
    n_decimals: int = 4

    def shown(self, model: AnalysedModel) -> str:
        value = self.value(model)
        return MISSING if np.isnan(value) else fixed(value, self.n_decimals)


def means(analysis: Analysis) -> list[Mean]:
    """Return means over layers, and the prediction of the last one."""
    threshold = f"{analysis.utilisation_threshold:g}"
    return [
        Mean(f"activations beyond {threshold}", f"beyond {threshold}", _units(lambda units: units.density)),
        Mean("units never active", "never active", _units(lambda units: units.dead_share)),
        Mean("participation / d_ff", "particip. / d_ff", _units(lambda units: units.participation_share)),
        Mean("matrix entropy / log(rank)", "entropy", lambda model: _mean(s.entropy for s in model.stream if s.depth)),
        Mean("target log-prob, last layer", "log-prob", _last, 3),
        Mean("KL to the next layer", "KL to next", lambda model: _mean(each.kl_to_next for each in model.logit_lens)),
        Mean(
            "attention to the first token", "first token", lambda model: _mean(s.first_token_share for s in model.sinks)
        ),
        Mean(
            "norm of the first token / others", "norm ratio", lambda model: _mean(s.norm_ratio for s in model.sinks), 3
        ),
    ]


def checkpoints_table(analysis: Analysis) -> Table:
    """Return one row per model, its tokens and the means over its layers."""
    shown = means(analysis)
    rows = [
        [
            clean(model.name),
            MISSING if model.tokens is None else si(model.tokens),
            *(mean.shown(model) for mean in shown),
        ]
        for model in analysis.models
    ]
    return Table("Means over layers, by checkpoint", ["Model", "tokens", *(mean.short for mean in shown)], rows)


def summary_table(analysis: Analysis) -> Table:
    """Return means over layers: one row per quantity, one column per model."""
    rows = [[title, *map(show, analysis.models)] for title, show in _summary_rows(analysis).items()]
    return Table(
        "Means over layers", ["Quantity", *(clean(model.name) for model in analysis.models)], rows, sortable=False
    )


def _summary_rows(analysis: Analysis) -> dict[str, Number]:
    return {
        "layers": lambda model: str(model.n_layers),
        "average width": lambda model: fixed(float(np.mean(model.widths)), 1),
        "target tokens": lambda model: si(model.n_tokens),
        **{mean.title: mean.shown for mean in means(analysis)},
        "lowest matrix entropy (after layer)": lambda model: _lowest(
            [(each.entropy, each.depth) for each in model.stream]
        ),
        "valley: drop, rise (after layer)": _valley,
        "target log-prob, half-way (after layer)": _half_way,
    }


def _units(value: Callable[[LayerUnits], float]) -> Callable[[AnalysedModel], float]:
    return lambda model: _mean(map(value, layers_of(model).values()))


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values that are known; NaN where none is."""
    known = [value for value in map(finite, values) if not np.isnan(value)]
    return float(np.mean(known)) if known else np.nan


def _lowest(points: Sequence[tuple[float | None, int]]) -> str:
    known = [(value, depth) for value, depth in points if value is not None]
    if not known:
        return MISSING
    value, depth = min(known)
    return f"{fixed(value, 4)} ({depth})"


def _valley(model: AnalysedModel) -> str:
    if model.valley is None:
        return "none" if model.stream else MISSING
    return f"{fixed(model.valley.drop, 3)}, {fixed(model.valley.rise, 3)} ({model.valley.depth})"


def _half_way(model: AnalysedModel) -> str:
    middle = model.n_layers / 2
    near = min(model.logit_lens, key=lambda each: abs(each.depth - middle), default=None)
    return MISSING if near is None else f"{fixed(near.target_log_prob, 3)} ({near.depth})"


def _last(model: AnalysedModel) -> float:
    last = max(model.logit_lens, key=lambda each: each.depth, default=None)
    return np.nan if last is None else finite(last.target_log_prob)


def layer_table(model: AnalysedModel, threshold: float) -> Table:
    """Return every number of a model by layer; row 0 is the stream before the first layer."""
    header = [
        *("Layer", "width", "d_ff", f"beyond {threshold:g}", "never active", "participation", "/ d_ff", "coordinates"),
        *("rank", "entropy / log(rank)", "stream participation", "target log-prob", "KL to next", "entropy"),
        *("first token", "strongest head", "norm ratio"),
    ]
    units, streams = layers_of(model), {each.depth: each for each in model.stream}
    lens, sinks = {each.depth: each for each in model.logit_lens}, {each.layer: each for each in model.sinks}
    rows = [
        [
            str(layer) if layer else "0: embedding",
            str(model.widths[layer - 1]) if layer else MISSING,
            *_cells(units.get(layer), d_ff=0, density=4, dead_share=4, participation=1, participation_share=4),
            *_cells(streams.get(layer), width=0, rank=0, entropy=4, participation=2),
            *_cells(lens.get(layer), target_log_prob=4, kl_to_next=4, entropy=4),
            *_cells(sinks.get(layer), first_token_share=4, strongest_head=4, norm_ratio=3),
        ]
        for layer in range(model.n_layers + 1)
    ]
    return Table(f"Layers of {clean(model.name)}", header, rows)


def _cells(record: object | None, **n_decimals: int) -> list[str]:
    """Return a cell for each attribute of the record, with that attribute's number of decimals."""
    return [MISSING if record is None else fixed(getattr(record, key), n) for key, n in n_decimals.items()]
