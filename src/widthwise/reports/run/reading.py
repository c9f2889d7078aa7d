"""Reads what reports show, checked once, here."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widthwise.config_io import parse
from widthwise.files import read_json
from widthwise.records.comparison import Comparison
from widthwise.records.run import Certificate, Growth, Result, Run
from widthwise.run_dir import RunDir

GROWTH_VERBS = ("grown", "baked", "padded")
"""Events by which a run says that it begins where another one stood."""


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
    found = None if result is None else parse(Result, result, f"{path}/result.json")
    metrics = folder.metrics()
    certificate = folder.path / "certificate.json"
    return Run(
        path=shown_as or str(path),
        config_yaml=config_yaml,
        environment=environment,
        metrics=metrics,
        result=found,
        growths=_growths(metrics, found, f"{path}/metrics.jsonl"),
        certificate=parse(Certificate, read_json(certificate), str(certificate)) if certificate.is_file() else None,
    )


def _growths(metrics: Sequence[Mapping[str, Any]], result: Result | None, where: str) -> list[Growth]:
    """A result tells of those in the course of the run; records tell of all, and are all that an unfinished run has."""
    told = (*GROWTH_VERBS, *(() if result else ("growth",)))
    found = [parse(Growth, record, where) for record in metrics if record.get("event") in told]
    return sorted([*(result.growth if result else ()), *found], key=lambda growth: growth.step)
