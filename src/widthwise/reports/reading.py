"""Reads what reports show, checked once, here."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widthwise.config_io import parse
from widthwise.files import read_json
from widthwise.reports.records import Comparison, Result, Run
from widthwise.run_dir import RunDir


def parse_comparison(data: Mapping[str, Any], where: str = "comparison") -> Comparison:
    """Plain data -> Comparison. Raises UserError for the first key that is missing or wrong."""
    as_read = json.loads(json.dumps(data))  # a comparison just made may hold tuples where its file holds lists
    return parse(Comparison, as_read, where)


def read_comparison(folder: Path) -> Comparison:
    """Reads `folder/comparison.json`. Raises UserError where it is missing or broken."""
    path = Path(folder) / "comparison.json"
    return parse_comparison(read_json(path), str(path))


def read_run(path: Path, shown_as: str | None = None) -> Run:
    """Reads a run directory, finished or not; `shown_as` replaces its path in the report. UserError if it is broken."""
    folder = RunDir(path)
    config_yaml = folder.config_yaml()
    environment, result = folder.environment(), folder.result()
    return Run(
        path=shown_as or str(path),
        config_yaml=config_yaml,
        environment=environment,
        metrics=folder.metrics(),
        result=None if result is None else parse(Result, result, f"{path}/result.json"),
    )
