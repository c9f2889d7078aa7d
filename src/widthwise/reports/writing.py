"""The report that fits what a folder holds: a page, and tables for spreadsheets and papers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.files import listed, write_atomic
from widthwise.records.analysis import Analysis
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.outcome import Outcome
from widthwise.records.scaling import ScalingLaws
from widthwise.reports.analysis import analysis_page
from widthwise.reports.charts import FileKind
from widthwise.reports.effects import Effects, are_comparisons, read_effects
from widthwise.reports.evaluation import evaluation_page
from widthwise.reports.experiment import ExperimentOnDisk, experiment_page
from widthwise.reports.main_table import with_columns
from widthwise.reports.page import Page
from widthwise.reports.run import runs_page
from widthwise.reports.scaling import scaling_page
from widthwise.run_dir import RunDir

PAGES: Mapping[str, Callable[[Path], Page]] = {
    Outcome.file_name: lambda folder: experiment_page(folder, Outcome.read(folder)),
    Analysis.file_name: lambda folder: analysis_page(Analysis.read(folder)),
    ScalingLaws.file_name: lambda folder: scaling_page(ScalingLaws.read(folder)),
    EvaluationTable.file_name: lambda folder: evaluation_page(EvaluationTable.read(folder)),
}
"""File of a record -> the function that makes the page of its folder."""


def write_report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    figures: FileKind | None = None,
    columns: Sequence[str] | None = None,
    refresh_seconds: int | None = None,
) -> list[Path]:
    """Write the report that fits what `paths` hold: one folder of PAGES, or several runs, comparisons or
    searches. Several comparisons have a table as CSV, without a page.

    `out` is the folder to write into; default: the folder that is described. Several need it. figures: also write each
    figure of the page as a file of this kind, into `figures/` next to the page. columns: names of the quantities of the
    main table of a comparison, sweep or family; by default the usual ones. refresh_seconds: a page of what has not
    finished reloads itself after so long; None: never. Returns the files written, the page first. Raises UserError for
    a path that is neither, or that is broken, for comparisons or searches that do not go together, and for unknown
    columns.
    """
    folders = listed(paths)
    out = None if out is None else Path(out)
    if are_comparisons(folders):
        _, file = write_effects(folders, out, figures, columns)
        return [file]
    return _page(folders, out, columns, refresh_seconds).write(out or folders[0], figures)


def write_effects(
    folders: Sequence[Path], out: Path | None, figures: FileKind | None = None, columns: Sequence[str] | None = None
) -> tuple[Effects, Path]:
    """Write the table of several comparisons, and return its content and its path. Raises UserError."""
    if figures is not None or columns is not None:
        raise UserError("report: several comparisons have one table; give --figures or --columns with one of them")
    effects = read_effects(folders)
    file = _common_folder(out, f"{len(folders)} comparisons", "table.csv") / "table.csv"
    write_atomic(file, effects.csv_text())
    return effects, file


def check_kind(folder: Path, name: str) -> None:
    """Raises UserError if a folder meant for `name`, one of PAGES, has a report of another kind, or is no folder."""
    others = [other for other in ("config.yaml", *PAGES) if other != name and (folder / other).is_file()]
    if others:
        raise UserError(f"{folder}: holds {others[0]}, whose report would be replaced; choose another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")


def is_at_work(paths: Sequence[Path]) -> bool:
    """Return whether a run or an experiment among them has not finished, so that its page will change."""
    for path in paths:
        run = RunDir(path)
        if ExperimentOnDisk.read(path).is_unfinished or (run.exists and not run.has_result):
            return True
    return False


def _page(paths: Sequence[Path], out: Path | None, columns: Sequence[str] | None, refresh_seconds: int | None) -> Page:
    names = {path: name for path in paths for name in PAGES if (path / name).is_file()}
    if len(paths) == 1:
        return _page_of_one(paths[0], names.get(paths[0]), columns, refresh_seconds)
    for path in paths:
        if path not in names and ExperimentOnDisk.read(path).is_unfinished:
            raise UserError(f"{path}: has not finished; give it alone, or wait until it has")
        _check_described(path, names.get(path))
    if columns is not None:
        raise UserError(f"--columns: goes with one folder that has {Outcome.file_name}")
    if names:
        other = next((name for name in names.values() if name != Outcome.file_name), Outcome.file_name)
        raise UserError(
            f"report: got {len(paths)} paths, one with {other}; give that one alone, or only runs, or only comparisons"
        )
    _common_folder(out, f"{len(paths)} runs")
    return runs_page(paths, refresh_seconds)


def _page_of_one(path: Path, name: str | None, columns: Sequence[str] | None, refresh_seconds: int | None) -> Page:
    experiment = ExperimentOnDisk.read(path)
    if columns is None and experiment.is_unfinished:
        return experiment.live_page(refresh_seconds)
    _check_described(path, name)
    if name == Outcome.file_name and experiment.outcome is not None:
        return experiment_page(path, with_columns(experiment.outcome, columns))
    if columns is not None:
        raise UserError(f"--columns: goes with one folder that has {Outcome.file_name}")
    return runs_page([path], refresh_seconds) if name is None else PAGES[name](path)


def _check_described(path: Path, name: str | None) -> None:
    """Raise UserError for a folder that is no run and holds none of PAGES."""
    if name is None and not RunDir(path).exists:
        allowed = "a run directory (config.yaml) or a folder with " + " or ".join(PAGES)
        raise UserError(f"{path}: is not {allowed}")


def _common_folder(out: Path | None, described: str, name: str | None = None) -> Path:
    """Return the folder of a common report; raise UserError without one. name: file that is written into it."""
    if out is None:
        raise UserError(f"report: got {described}; name the folder for their common report with --out")
    if name is not None:
        check_kind(out, name)
    return out
