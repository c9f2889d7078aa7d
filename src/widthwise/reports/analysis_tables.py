"""An analysis by layer and by model: its numbers, and tables of them for the page and the terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.records.record import finite
from widthwise.reports.formats import MISSING, clean, fixed, si
from widthwise.reports.table import Table

T = TypeVar("T")
Part = Literal["units", "stream", "logit_lens", "sinks"]
"""The lists of a model whose entries have a depth."""


def model_columns(caption: str, models: Mapping[str, T], quantities: Mapping[str, Callable[[T], str]]) -> Table:
    """Return a column for each model, and a row for each quantity. quantities: title -> cell."""
    rows = [[title, *map(cell, models.values())] for title, cell in quantities.items()]
    return Table(caption, ["Quantity", *map(clean, models)], rows, sortable=False)


def by_depth(model: AnalysedModel, part: Part, key: str) -> dict[int, float | None]:
    """Return layer or depth -> one number of a part of the model."""
    return {each.depth: getattr(each, key) for each in sorted(getattr(model, part), key=lambda each: each.depth)}


class Mean(NamedTuple):
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
    beyond = f"beyond {analysis.utilisation_threshold:g}"
    return [
        Mean(f"activations {beyond}", beyond, _over_layers("units", "density")),
        Mean("units never active", "never active", _over_layers("units", "dead_share")),
        Mean("participation / d_ff", "particip. / d_ff", _over_layers("units", "participation_share")),
        Mean("matrix entropy / log(rank)", "entropy", _over_layers("stream", "entropy")),
        Mean("target log-prob, last layer", "log-prob", _last_prediction, 3),
        Mean("KL to the next layer", "KL to next", _over_layers("logit_lens", "kl_to_next", first=0)),
        Mean("attention to the first token", "first token", _over_layers("sinks", "first_token_share")),
        Mean("norm of the first token / others", "norm ratio", _over_layers("sinks", "norm_ratio"), 3),
    ]


def _over_layers(part: Part, key: str, first: int = 1) -> Callable[[AnalysedModel], float]:
    """Return the mean of the known values from depth `first` on; NaN where none is known."""

    def mean(model: AnalysedModel) -> float:
        values = [finite(value) for depth, value in by_depth(model, part, key).items() if depth >= first]
        known = [value for value in values if not np.isnan(value)]
        return float(np.mean(known)) if known else np.nan

    return mean


def _last_prediction(model: AnalysedModel) -> float:
    return finite(next(reversed(by_depth(model, "logit_lens", "target_log_prob").values()), None))


def checkpoints_table(analysis: Analysis) -> Table:
    """Return one row per model, its tokens and the means over its layers."""
    shown = means(analysis)
    rows = [[clean(model.name), si(model.tokens), *(mean.shown(model) for mean in shown)] for model in analysis.models]
    return Table("Means over layers, by checkpoint", ["Model", "tokens", *(mean.short for mean in shown)], rows)


def summary_table(analysis: Analysis) -> Table:
    """Return means over layers: one row per quantity, one column per model."""
    quantities: dict[str, Callable[[AnalysedModel], str]] = {
        "layers": lambda model: str(model.n_layers),
        "average width": lambda model: fixed(float(np.mean(model.widths)), 1),
        "target tokens": lambda model: si(model.n_tokens),
        **{mean.title: mean.shown for mean in means(analysis)},
        "lowest matrix entropy (after layer)": _lowest_entropy,
        "valley: drop, rise (after layer)": _valley,
        "target log-prob, half-way (after layer)": _half_way,
    }
    return model_columns("Means over layers", {model.name: model for model in analysis.models}, quantities)


def _lowest_entropy(model: AnalysedModel) -> str:
    value, depth = min(
        ((each.entropy, each.depth) for each in model.stream if each.entropy is not None), default=(None, 0)
    )
    return MISSING if value is None else f"{fixed(value, 4)} ({depth})"


def _valley(model: AnalysedModel) -> str:
    if model.valley is None:
        return "none" if model.stream else MISSING
    return f"{fixed(model.valley.drop, 3)}, {fixed(model.valley.rise, 3)} ({model.valley.depth})"


def _half_way(model: AnalysedModel) -> str:
    near = min(model.logit_lens, key=lambda each: abs(each.depth - model.n_layers / 2), default=None)
    return MISSING if near is None else f"{fixed(near.target_log_prob, 3)} ({near.depth})"


_LAYER_COLUMNS: Sequence[tuple[str, Part, str, int]] = (
    ("d_ff", "units", "d_ff", 0),
    ("beyond {:g}", "units", "density", 4),
    ("never active", "units", "dead_share", 4),
    ("participation", "units", "participation", 1),
    ("/ d_ff", "units", "participation_share", 4),
    ("coordinates", "stream", "width", 0),
    ("rank", "stream", "rank", 0),
    ("entropy / log(rank)", "stream", "entropy", 4),
    ("stream participation", "stream", "participation", 2),
    ("target log-prob", "logit_lens", "target_log_prob", 4),
    ("KL to next", "logit_lens", "kl_to_next", 4),
    ("entropy", "logit_lens", "entropy", 4),
    ("first token", "sinks", "first_token_share", 4),
    ("strongest head", "sinks", "strongest_head", 4),
    ("norm ratio", "sinks", "norm_ratio", 3),
)
"""Title of a column, and the number that it shows, with its decimals."""


def layer_table(model: AnalysedModel, threshold: float) -> Table:
    """Return every number of a model by layer; row 0 is the stream before the first layer."""
    columns = [(by_depth(model, part, key), n_decimals) for _, part, key, n_decimals in _LAYER_COLUMNS]
    names = [("0: embedding", MISSING), *((str(n), str(width)) for n, width in enumerate(model.widths, start=1))]
    rows = [[*name, *(fixed(own.get(n), n_decimals) for own, n_decimals in columns)] for n, name in enumerate(names)]
    header = ["Layer", "width", *(title.format(threshold) for title, *_ in _LAYER_COLUMNS)]
    return Table(f"Layers of {clean(model.name)}", header, rows)
