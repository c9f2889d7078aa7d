"""The report that fits what a folder holds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.reports.comparison_report import write_comparison_report
from widthwise.reports.run_report import write_run_report, write_runs_report
from widthwise.run_dir import RunDir

PAGES: Mapping[str, Callable[[Path, Path | None], dict[str, Path]]] = {
    "comparison.json": write_comparison_report,
}
"""File that tells what a folder holds -> what writes its report: (folder, out) -> kind of file -> path."""


def write_report(paths: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Writes the report that fits what `paths` hold: one folder of PAGES, or one or more run directories.

    `out` is the folder to write into; without it the report goes beside what it describes, and several runs need it.
    Returns the files written. Raises UserError for a path that is neither, or that is broken.
    """
    found = {path: name for path in paths for name in PAGES if (path / name).is_file()}
    for path in paths:
        if path not in found and not RunDir(path).exists:
            allowed = "a run directory (config.yaml) or a folder with " + " or ".join(PAGES)
            raise UserError(f"{path}: is not {allowed}")
    if len(paths) == 1 and found:
        return list(PAGES[found[paths[0]]](paths[0], out).values())
    if found:
        raise UserError(
            f"report: got {len(paths)} paths, one with {next(iter(found.values()))}; give that one alone, or only runs"
        )
    if len(paths) == 1:
        return [write_run_report(paths[0], out)]
    if out is None:
        raise UserError(f"report: got {len(paths)} runs; name the folder for their common report with --out")
    return [write_runs_report(paths, out)]
