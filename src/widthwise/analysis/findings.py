"""An analysis in words, and as a long table with one number a row."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from widthwise.config_io import require
from widthwise.files import write_atomic
from widthwise.records.analysis import Activations, AnalysedModel, Analysis
from widthwise.records.record import finite

MIDDLE = (0.25, 0.75)
"""Depths that count as the middle, as fractions of the layers."""
RESERVATION = (
    "These numbers describe the trained models named here on this text. They have no interval: models of other seeds "
    "would give others, and a difference between two models is not yet one between their shapes."
)


def sentence(models: Sequence[AnalysedModel], threshold: float) -> str:
    """Return a line for the first model, or one comparing each further model with it, and the reservation."""
    first, *others = models
    lines = [_line(model, first, threshold) for model in others] or [_line(first, None, threshold)]
    return "".join(f"{line}\n" for line in (*lines, RESERVATION))


def _line(model: AnalysedModel, beside: AnalysedModel | None, threshold: float) -> str:
    measures: dict[str, Callable[[AnalysedModel], float | None]] = {
        "the normalised matrix entropy of the stream": _entropy,
        "the participation ratio over d_ff": _participation_share,
        f"the share of activations beyond {threshold:g}": _density,
    }
    clauses = [
        f"{name} is {own:.3f}{_compared(own, None if beside is None else value(beside))}"
        for name, value in measures.items()
        if (own := value(model)) is not None
    ]
    against = "" if beside is None else f", beside {beside.name}"
    valleys = [f"{each.name} {_valley(each)}" for each in (model, beside) if each is not None]
    measured = f"In the middle half of the layers of {model.name}{against}: {'; '.join(clauses)}."
    return f"{measured} Over all layers the stream of {', that of '.join(valleys)}."


def _compared(own: float, other: float | None) -> str:
    """Compare with another model's number at three decimals."""
    if other is None:
        return ""
    own, other = round(own, 3), round(other, 3)
    relation = "as" if own == other else "higher than" if own > other else "lower than"
    return f", {relation} {other:.3f}"


def _valley(model: AnalysedModel) -> str:
    valley = model.valley
    if valley is None:
        return "has no compression valley"
    drop, rise = valley.drop, valley.rise
    return f"falls by {drop:.3f} of that entropy into a valley after layer {valley.depth} and rises by {rise:.3f}"


def _entropy(model: AnalysedModel) -> float | None:
    return _of_middle({entry.depth: entry.entropy for entry in model.stream}, model)


def _participation_share(model: AnalysedModel) -> float | None:
    def of_layer(entries: Sequence[Activations]) -> float | None:
        if any(entry.participation is None for entry in entries):
            return None
        return sum(finite(entry.participation) for entry in entries) / sum(entry.d_ff for entry in entries)

    return _of_middle({layer: of_layer(entries) for layer, entries in _layers(model).items()}, model)


def _density(model: AnalysedModel) -> float | None:
    return _of_middle(
        {
            layer: float(np.mean([finite(share) for entry in entries for share in entry.utilisation]))
            for layer, entries in _layers(model).items()
        },
        model,
    )


def _layers(model: AnalysedModel) -> dict[int, list[Activations]]:
    """The feed-forward blocks of each layer."""
    layers: dict[int, list[Activations]] = {}
    for entry in model.activations:
        layers.setdefault(entry.layer, []).append(entry)
    return layers


def _of_middle(by_layer: Mapping[int, float | None], model: AnalysedModel) -> float | None:
    """Return the mean over the middle layers, which include a single layer; None if all of them are unknown."""
    low, high = (fraction * len(model.widths) for fraction in MIDDLE)
    known = [value for layer, value in by_layer.items() if low <= layer <= max(1, high) and value is not None]
    return float(np.mean(known)) if known else None


COLUMNS = ("model", "measure", "layer", "block", "index", "value")
OF_BLOCKS = ("dead_share", "participation", "participation_share")
OF_STREAM = ("rank", "entropy", "participation")
OF_LENS = ("target_log_prob", "entropy", "kl_to_next")
OF_SINKS = ("first_token_share", "norm_ratio")

Row = tuple[str, str, int, int | None, int | None, float | None]


def rows(analysis: Analysis) -> Iterator[Row]:
    """Yield model, measure, layer (depth for `stream.` and `logit_lens.` measures), block, index, value.

    block: of activations and exits inside a layer, else None. index: from 0, the threshold of a density, the unit of a
    utilisation, or the head, else None. value: None if undefined.
    """
    for model in analysis.models:
        for measure, layer, block, index, value in _of_model(model):
            yield model.name, measure, layer, block, index, None if value is None else float(value)


def _of_model(model: AnalysedModel) -> Iterator[tuple[str, int, int | None, int | None, float | None]]:
    for entry in model.activations:
        layer, block = entry.layer, entry.block
        for key in OF_BLOCKS:
            yield f"activations.{key}", layer, block, None, getattr(entry, key)
        for key in ("density", "utilisation"):
            for index, value in enumerate(getattr(entry, key)):
                yield f"activations.{key}", layer, block, index, value
    for part, keys in (("stream", OF_STREAM), ("logit_lens", OF_LENS)):
        for entry in getattr(model, part):
            for key in keys:
                yield f"{part}.{key}", entry.depth, None, None, getattr(entry, key)
    for entry in model.block_exits:
        yield "block_exits.target_log_prob", entry.layer, entry.block, None, entry.target_log_prob
    for entry in model.sinks:
        for key in OF_SINKS:
            yield f"sinks.{key}", entry.layer, None, None, getattr(entry, key)
        for index, value in enumerate(entry.heads):
            yield "sinks.heads", entry.layer, None, index, value


def check_parquet() -> None:
    """Raise UserError if the optional library is missing, before a long analysis rather than after it."""
    require("pyarrow", "prep")


def write_parquet(analysis: Analysis, folder: Path) -> Path:
    """Write the rows to `folder/analysis.parquet`. Raises UserError if that is impossible."""
    pyarrow, parquet = require("pyarrow", "prep"), require("pyarrow.parquet", "prep")
    types = (pyarrow.string(), pyarrow.string(), pyarrow.int32(), pyarrow.int32(), pyarrow.int32(), pyarrow.float64())
    columns = zip(*rows(analysis))
    table = pyarrow.table({name: pyarrow.array(values, kind) for name, values, kind in zip(COLUMNS, columns, types)})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    path = folder / "analysis.parquet"
    write_atomic(path, buffer.getvalue())
    return path
