"""Reads run directories for reports, and checks them once, here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from widthwise.config_io import parse
from widthwise.files import read_json
from widthwise.records.certificate import Certificate
from widthwise.records.evaluation import Evaluation
from widthwise.records.run import DESCENTS, GrowthRecord, Run, RunResult
from widthwise.run_dir import RunDir


def read_run(path: Path, shown_as: str | None = None) -> Run:
    """Reads a run directory, finished or not; `shown_as` replaces its path in the report. UserError if it is broken."""
    folder = RunDir(path)
    config_yaml = folder.config_yaml()
    result, metrics = folder.result(), folder.metrics()
    certificate = folder.path / "certificate.json"
    return Run(
        path=shown_as or str(path),
        config_yaml=config_yaml,
        environment=folder.environment(),
        metrics=metrics,
        result=result,
        growths=_growths(metrics, result, f"{path}/metrics.jsonl"),
        certificate=Certificate.read(folder.path) if certificate.is_file() else None,
        evaluations=_evaluations(folder.path / "evaluations"),
        samples=folder.samples_file.records(),
    )


def _evaluations(folder: Path) -> list[Evaluation]:
    """By step; those of one step by name."""
    paths = sorted(folder.glob("step_*.json"))
    return sorted((parse(Evaluation, read_json(path), str(path)) for path in paths), key=lambda each: each.step)


def _growths(metrics: Sequence[Mapping[str, Any]], result: RunResult | None, where: str) -> list[GrowthRecord]:
    """Growths of a run. A result lists those in the course of the run; the metrics list all, finished or not."""
    told = (*DESCENTS, *(() if result else ("growth",)))
    found = [parse(GrowthRecord, record, where) for record in metrics if record.get("event") in told]
    return sorted([*(result.growth if result else ()), *found], key=lambda growth: growth.step)
