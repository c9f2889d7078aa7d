"""The numbers of an analysis as a long table: one number a row, for whoever draws figures of their own."""

import io
from collections.abc import Iterator
from pathlib import Path

from widthwise.data.extras import require
from widthwise.files import write_atomic
from widthwise.records.analysis import AnalysedModel, Analysis

COLUMNS = ("model", "measure", "layer", "block", "index", "value")
OF_BLOCKS = ("dead_share", "participation", "participation_share")
OF_STREAM = ("rank", "entropy", "participation")
OF_LENS = ("target_log_prob", "entropy", "kl_to_next")
OF_SINKS = ("first_token_share", "norm_ratio")

Row = tuple[str, str, int, int | None, int | None, float | None]


def rows(analysis: Analysis) -> Iterator[Row]:
    """model, measure, layer (of `stream.` and `logit_lens.` measures: depth), block, index, value.

    block: only for activations and exits inside a layer. index: the number of a density's threshold, of a utilisation's
    unit, of heads that of the head, all from 0; else None. value: None where a number is not defined.
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
    """Raises UserError where the optional library is missing, before a long analysis rather than after it."""
    require("pyarrow", "prep")


def write_parquet(analysis: Analysis, folder: Path) -> Path:
    """Writes the rows into `folder/analysis.parquet`. Raises UserError where it cannot be written."""
    pyarrow, parquet = require("pyarrow", "prep"), require("pyarrow.parquet", "prep")
    types = (pyarrow.string(), pyarrow.string(), pyarrow.int32(), pyarrow.int32(), pyarrow.int32(), pyarrow.float64())
    columns = zip(*rows(analysis))
    table = pyarrow.table({name: pyarrow.array(values, kind) for name, values, kind in zip(COLUMNS, columns, types)})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    path = folder / "analysis.parquet"
    write_atomic(path, buffer.getvalue())
    return path
