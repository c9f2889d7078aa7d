"""An analysis in words, and as a long table with one number a row."""

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from widthwise.config_io import require
from widthwise.files import write_atomic
from widthwise.records.analysis import AnalysedModel, Analysis
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
    measures = {
        "the normalised matrix entropy of the stream": ("stream", "entropy"),
        "the participation ratio over d_ff": ("units", "participation_share"),
        f"the share of activations beyond {threshold:g}": ("units", "density"),
    }
    clauses = [
        f"{name} is {own:.3f}{_compared(own, None if beside is None else _of_middle(beside, *place))}"
        for name, place in measures.items()
        if (own := _of_middle(model, *place)) is not None
    ]
    against = "" if beside is None else f", beside {beside.name}"
    valleys = [f"{each.name} {_valley(each)}" for each in (model, beside) if each is not None]
    measured = f"In the middle half of the layers of {model.name}{against}: {'; '.join(clauses)}."
    return f"{measured} Over all layers the stream of {', that of '.join(valleys)}."


def _of_middle(model: AnalysedModel, part: str, key: str) -> float | None:
    """Return the mean over the middle layers, which include a single layer; None if all of them are unknown."""
    low, high = (fraction * model.n_layers for fraction in MIDDLE)
    values = [finite(getattr(each, key)) for each in getattr(model, part) if low <= each.depth <= max(1, high)]
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else None


def _compared(own: float, other: float | None) -> str:
    """Compare with another model's number at three decimals."""
    if other is None:
        return ""
    own, other = round(own, 3), round(other, 3)
    relation = "as" if own == other else "higher than" if own > other else "lower than"
    return f", {relation} {other:.3f}"


def _valley(model: AnalysedModel) -> str:
    if (valley := model.valley) is None:
        return "has no compression valley"
    fall = f"falls by {valley.drop:.3f} of that entropy into a valley after layer {valley.depth}"
    return f"{fall} and rises by {valley.rise:.3f}"


COLUMNS = ("model", "measure", "layer", "block", "index", "value")
MEASURES = {
    "activations": ("dead_share", "participation", "participation_share", "density", "utilisation"),
    "stream": ("rank", "entropy", "participation"),
    "logit_lens": ("target_log_prob", "entropy", "kl_to_next"),
    "block_exits": ("target_log_prob",),
    "sinks": ("first_token_share", "norm_ratio", "heads"),
}
"""Part of a model -> its numbers, and its lists of numbers."""


def rows(analysis: Analysis) -> Iterator[tuple[str, str, int, int | None, int | None, float | None]]:
    """Yield model, measure, layer (depth for `stream.` and `logit_lens.` measures), block, index, value.

    block: of activations and exits inside a layer, else None. index: from 0, the threshold of a density, the unit of a
    utilisation, or the head, else None. value: None if undefined.
    """
    for model in analysis.models:
        for part, keys in MEASURES.items():
            for entry in getattr(model, part):
                layer = entry.depth if hasattr(entry, "depth") else entry.layer
                for key in keys:
                    found = getattr(entry, key)
                    indexed = enumerate(found) if isinstance(found, Sequence) else [(None, found)]
                    for index, value in indexed:
                        known = None if value is None else float(value)
                        yield model.name, f"{part}.{key}", layer, getattr(entry, "block", None), index, known


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
