"""The report that fits what a folder holds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.files import listed, write_atomic
from widthwise.records.comparison import Comparison
from widthwise.records.estimate import Effects
from widthwise.reports.analysis.report import write_analysis_report
from widthwise.reports.comparison.report import is_unfinished, write_comparison_report, write_progress_page
from widthwise.reports.discovery import write_discovery_report
from widthwise.reports.effects.report import write_effects_anew, write_effects_report
from widthwise.reports.evaluation import write_evaluation_report
from widthwise.reports.family import write_family_report
from widthwise.reports.page.svg import FileKind, as_files
from widthwise.reports.run.report import write_run_report, write_runs_report
from widthwise.reports.scaling import write_scaling_report
from widthwise.reports.sweep.report import write_sweep_report
from widthwise.run_dir import RunDir

PAGES: Mapping[str, Callable[[Path, Path | None], dict[str, Path]]] = {
    "comparison.json": write_comparison_report,
    "analysis.json": write_analysis_report,
    "sweep.json": write_sweep_report,
    "scaling.json": write_scaling_report,
    "family.json": write_family_report,
    "discovery.json": write_discovery_report,
    "evaluation_table.json": write_evaluation_report,
    "effects.json": write_effects_anew,
}
"""File that tells what a folder holds -> what writes its report: (folder, out) -> kind of file -> path."""
WITH_COLUMNS: Mapping[str, Callable[[Path, Path | None, Sequence[str]], dict[str, Path]]] = {
    "comparison.json": write_comparison_report,
    "sweep.json": write_sweep_report,
    "family.json": write_family_report,
}
"""Those whose main table can have columns that are asked for, as a third argument."""


def write_report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    figures: FileKind | None = None,
    columns: Sequence[str] | None = None,
    refresh_seconds: int | None = None,
) -> list[Path]:
    """Writes the report that fits what `paths` hold: one folder of PAGES, or several runs or comparisons.

    `out` is the folder to write into; without it the report goes beside what it describes, and several need it.
    figures: also write each figure of the page as a file of this kind, into `figures/` beside the page. columns:
    names of the quantities of the main table of a comparison, sweep or family; by default the usual ones.
    refresh_seconds: after so long a page of what has not finished loads itself again; None: never. Returns the files
    written. Raises UserError for a path that is neither, or that is broken, for comparisons that do not go together,
    and for columns that there are not.
    """
    described = listed(paths)
    folder = None if out is None else Path(out)
    if figures is None:
        return _write_page(described, folder, columns, refresh_seconds)
    with as_files(figures) as drawn:
        files = _write_page(described, folder, columns, refresh_seconds)
    folder = files[0].parent / "figures"
    for name, content in drawn.contents.items():
        write_atomic(folder / f"{name}.{figures}", content)
    return [*files, *(folder / f"{name}.{figures}" for name in drawn.contents)]


def check_kind(folder: Path, name: str) -> None:
    """Raises UserError where a folder meant for `name`, one of PAGES, has a report of another kind, or is no folder."""
    others = [other for other in ("config.yaml", *PAGES) if other != name and (folder / other).is_file()]
    if others:
        raise UserError(f"{folder}: holds {others[0]}, whose report would be replaced; choose another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")


def is_at_work(paths: Sequence[Path]) -> bool:
    """Whether a run or a comparison among them has not finished, so that its page will change."""
    return any(is_unfinished(path) or (RunDir(path).exists and not RunDir(path).has_result) for path in paths)


def _write_page(
    paths: Sequence[Path], out: Path | None, columns: Sequence[str] | None, refresh_seconds: int | None
) -> list[Path]:
    if len(paths) == 1 and columns is None and is_unfinished(paths[0]):
        return [write_progress_page(paths[0], out, refresh_seconds)]
    found = {path: name for path in paths for name in PAGES if (path / name).is_file()}
    for path in paths:
        if len(paths) > 1 and path not in found and is_unfinished(path):
            raise UserError(f"{path}: has not finished; give it alone, or wait until it has")
        if path not in found and not RunDir(path).exists:
            allowed = "a run directory (config.yaml) or a folder with " + " or ".join(PAGES)
            raise UserError(f"{path}: is not {allowed}")
    if columns is not None:
        if len(paths) > 1 or found.get(paths[0]) not in WITH_COLUMNS:
            raise UserError(f"--columns: goes with one folder that has {' or '.join(WITH_COLUMNS)}")
        return list(WITH_COLUMNS[found[paths[0]]](paths[0], out, columns).values())
    if len(paths) == 1 and found:
        return list(PAGES[found[paths[0]]](paths[0], out).values())
    if len(paths) == 1:
        return [write_run_report(paths[0], out, refresh_seconds)]
    are_comparisons = [found.get(path) == Comparison.file_name for path in paths]
    if found and not all(are_comparisons):
        held = next((name for name in found.values() if name != Comparison.file_name), Comparison.file_name)
        raise UserError(
            f"report: got {len(paths)} paths, one with {held}; give that one alone, or only runs, or only comparisons"
        )
    if out is None:
        kind = "comparisons" if found else "runs"
        raise UserError(f"report: got {len(paths)} {kind}; name the folder for their common report with --out")
    if found:
        check_kind(out, Effects.file_name)
        return list(write_effects_report(paths, out).values())
    return [write_runs_report(paths, out, refresh_seconds)]
