"""An analysis as a long table with one number a row."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from widthwise.config_io import require
from widthwise.files import write_atomic
from widthwise.records.analysis import Analysis

COLUMNS = ("model", "measure", "layer", "block", "index", "value")
PARTS = ("activations", "stream", "logit_lens", "block_exits", "sinks")
"""Lists of a model whose entries hold the numbers."""
SIZES = ("layer", "depth", "block", "d_ff", "width")
"""Fields of an entry that are no measures."""


def rows(analysis: Analysis) -> Iterator[tuple[str, str, int, int | None, int | None, float | None]]:
    """Yield model, measure, layer (depth for `stream.` and `logit_lens.` measures), block, index, value.

    block: of activations and exits inside a layer, else None. index: from 0, the threshold of a density, the unit of a
    utilisation, or the head, else None. value: None if undefined.
    """
    for model in analysis.models:
        for part in PARTS:
            for entry in getattr(model, part):
                layer = entry.depth if hasattr(entry, "depth") else entry.layer
                for key, found in entry.to_data().items():
                    for index, value in enumerate(found) if isinstance(found, Sequence) else [(None, found)]:
                        if key not in SIZES:
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
