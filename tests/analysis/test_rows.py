"""The long table of an analysis."""

import sys
from pathlib import Path

import pytest

from widthwise.analysis.rows import COLUMNS, check_parquet, rows, write_parquet
from widthwise.config_io import UserError
from widthwise.records.analysis import Analysis

UNITS = {"layer": 2, "block": 1, "d_ff": 3, "density": [0.5, 0.25], "utilisation": [0.1, 0.2, 0.3]}
MODEL = {
    "name": "m",
    "source": "runs/m",
    "kind": "run",
    "step": 3,
    "d_model": 4,
    "widths": [4, 4],
    "n_tokens": 8,
    "activations": [{**UNITS, "dead_share": 0.0, "participation": None, "participation_share": None}],
    "stream": [{"depth": 0, "width": 4, "rank": 4, "entropy": 0.75, "participation": 2.5}],
    "logit_lens": [{"depth": 2, "target_log_prob": -1.5, "entropy": 1.25, "kl_to_next": None}],
    "block_exits": [{"layer": 2, "block": 1, "target_log_prob": -2.5}],
    "sinks": [{"layer": 1, "first_token_share": 0.5, "heads": [0.25, 0.75], "norm_ratio": 9.0}],
}
ANALYSIS = Analysis.model_validate(
    {
        "title": "t",
        "command": "widthwise analyze runs/m runs/n",
        "created": "2026-11-22T00:00:00+00:00",
        "sentence": "",
        "text": {"source": "text.txt", "seq_len": 4, "n_tokens": 8},
        "thresholds": [0.1, 1.0],
        "utilisation_threshold": 0.1,
        "models": [MODEL, {**MODEL, "name": "n", "sinks": []}],
    }
)


def test_every_number_is_a_row() -> None:
    found = list(rows(ANALYSIS))
    first = [row for row in found if row[0] == "m"]
    assert first == [
        ("m", "activations.dead_share", 2, 1, None, 0.0),
        ("m", "activations.participation", 2, 1, None, None),
        ("m", "activations.participation_share", 2, 1, None, None),
        ("m", "activations.density", 2, 1, 0, 0.5),
        ("m", "activations.density", 2, 1, 1, 0.25),
        ("m", "activations.utilisation", 2, 1, 0, 0.1),
        ("m", "activations.utilisation", 2, 1, 1, 0.2),
        ("m", "activations.utilisation", 2, 1, 2, 0.3),
        ("m", "stream.rank", 0, None, None, 4.0),
        ("m", "stream.entropy", 0, None, None, 0.75),
        ("m", "stream.participation", 0, None, None, 2.5),
        ("m", "logit_lens.target_log_prob", 2, None, None, -1.5),
        ("m", "logit_lens.entropy", 2, None, None, 1.25),
        ("m", "logit_lens.kl_to_next", 2, None, None, None),
        ("m", "block_exits.target_log_prob", 2, 1, None, -2.5),
        ("m", "sinks.first_token_share", 1, None, None, 0.5),
        ("m", "sinks.norm_ratio", 1, None, None, 9.0),
        ("m", "sinks.heads", 1, None, 0, 0.25),
        ("m", "sinks.heads", 1, None, 1, 0.75),
    ]
    assert len(found) == 2 * len(first) - 4


def test_parquet_holds_the_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra [prep]")
    check_parquet()
    path = write_parquet(ANALYSIS, tmp_path / "out")
    table = parquet.read_table(path)
    assert tuple(table.column_names) == COLUMNS
    assert [tuple(row.values()) for row in table.to_pylist()] == list(rows(ANALYSIS))


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'widthwise\[prep\]'"):
        check_parquet()
