"""The report that fits what a folder holds."""

from collections.abc import Sequence
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.reports.comparison_report import write_comparison_report
from widthwise.reports.run_report import write_run_report, write_runs_report
from widthwise.run_dir import RunDir


def write_report(paths: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Writes the report that fits what `paths` hold: one comparison folder, or one or more run directories.

    `out` is the folder to write into; without it the report goes beside what it describes, and several runs need it.
    Returns the files written. Raises UserError for a path that is neither, or that is broken.
    """
    comparisons = [path for path in paths if (path / "comparison.json").is_file()]
    for path in paths:
        if path not in comparisons and not RunDir(path).exists:
            raise UserError(f"{path}: is neither a comparison (comparison.json) nor a run directory (config.yaml)")
    if len(paths) == 1 and comparisons:
        return list(write_comparison_report(paths[0], out).values())
    if comparisons:
        raise UserError(f"report: got {len(paths)} paths, one a comparison; give one comparison alone, or only runs")
    if len(paths) == 1:
        return [write_run_report(paths[0], out)]
    if out is None:
        raise UserError(f"report: got {len(paths)} runs; name the folder for their common report with --out")
    return [write_runs_report(paths, out)]
