"""An analysis as a long table with one number in each row."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from widthwise.config_io import require
from widthwise.files import write_atomic
from widthwise.records.analysis import Analysis

COLUMNS = ("model", "measure", "layer", "block", "index", "value")
PARTS = ("activations", "stream", "logit_lens", "block_exits", "sinks")
"""Lists of the record of a model whose entries have the numbers."""
SIZES = ("layer", "depth", "block", "d_ff", "width")
"""Fields of an entry that are not measures."""


def rows(analysis: Analysis) -> Iterator[tuple[str, str, int, int | None, int | None, float | None]]:
    """Yield model, measure, layer (depth for `stream.` and `logit_lens.` measures), block, index, value.

    block: for activations and exits inside a layer. index: from 0, of a density's threshold, a utilisation's unit or a
    head. value: None if undefined.
    """
    for model in analysis.models:
        for part in PARTS:
            for entry in getattr(model, part):
                layer = entry.depth if hasattr(entry, "depth") else entry.layer
                block = getattr(entry, "block", None)
                for key, content in entry.to_data().items():
                    values = enumerate(content) if isinstance(content, Sequence) else [(None, content)]
                    for index, value in values if key not in SIZES else ():
                        yield model.name, f"{part}.{key}", layer, block, index, None if value is None else float(value)


def write_parquet(analysis: Analysis, folder: Path) -> Path:
    """Write the rows to `folder/analysis.parquet`. Raises UserError if that is impossible."""
    pyarrow = require("pyarrow", "prep")
    types = (pyarrow.string(), pyarrow.string(), pyarrow.int32(), pyarrow.int32(), pyarrow.int32(), pyarrow.float64())
    columns = zip(*rows(analysis))
    table = pyarrow.table({name: pyarrow.array(values, kind) for name, values, kind in zip(COLUMNS, columns, types)})
    buffer = io.BytesIO()
    require("pyarrow.parquet", "prep").write_table(table, buffer)
    path = folder / "analysis.parquet"
    write_atomic(path, buffer.getvalue())
    return path
