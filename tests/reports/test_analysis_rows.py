"""The long table of an analysis."""

import sys
from pathlib import Path

import pytest
from fake_analysis import analysis

from widthwise.mistakes import UserError
from widthwise.records.analysis import Analysis
from widthwise.reports.analysis_tables import COLUMNS, parquet_rows, write_parquet

UNITS = {"layer": 2, "block": 1, "d_ff": 3, "density": [0.5, 0.25], "utilisation": [0.1, 0.2, 0.3]}
SHARES = {"dead_share": 0.0, "participation": None, "participation_share": None}
MODEL = {
    "name": "m",
    "source": "runs/m",
    "kind": "run",
    "step": 3,
    "d_model": 4,
    "widths": [4, 4],
    "n_tokens": 8,
    "activations": [{**UNITS, **SHARES}],
    "stream": [{"depth": 0, "width": 4, "rank": 4, "entropy": 0.75, "participation": 2.5}],
    "logit_lens": [{"depth": 2, "target_log_prob": -1.5, "entropy": 1.25, "kl_to_next": None}],
    "block_exits": [{"layer": 2, "block": 1, "target_log_prob": -2.5}],
    "sinks": [{"layer": 1, "first_token_share": 0.5, "heads": [0.25, 0.75], "norm_ratio": 9.0}],
}
ANALYSIS = Analysis.model_validate(analysis(MODEL, {**MODEL, "name": "n", "sinks": []}))


def test_every_number_is_a_row() -> None:
    found = list(parquet_rows(ANALYSIS))
    first = [row[1:] for row in found if row[0] == "m"]
    assert first == [
        *(("activations.density", 2, 1, index, value) for index, value in enumerate((0.5, 0.25))),
        *(("activations.utilisation", 2, 1, index, value) for index, value in enumerate((0.1, 0.2, 0.3))),
        *((f"activations.{key}", 2, 1, None, value) for key, value in SHARES.items()),
        *((f"stream.{key}", 0, None, None, MODEL["stream"][0][key]) for key in ("rank", "entropy", "participation")),
        ("logit_lens.target_log_prob", 2, None, None, -1.5),
        ("logit_lens.entropy", 2, None, None, 1.25),
        ("logit_lens.kl_to_next", 2, None, None, None),
        ("block_exits.target_log_prob", 2, 1, None, -2.5),
        ("sinks.first_token_share", 1, None, None, 0.5),
        *(("sinks.heads", 1, None, index, value) for index, value in enumerate((0.25, 0.75))),
        ("sinks.norm_ratio", 1, None, None, 9.0),
    ]
    assert len(found) == 2 * len(first) - 4


def test_parquet_holds_the_rows_and_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra [prep]")
    path = write_parquet(ANALYSIS, tmp_path / "out")
    table = parquet.read_table(path)
    assert tuple(table.column_names) == COLUMNS
    assert [tuple(row.values()) for row in table.to_pylist()] == list(parquet_rows(ANALYSIS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'widthwise\[prep\]'"):
        write_parquet(ANALYSIS, tmp_path)
