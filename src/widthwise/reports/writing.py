"""The report that fits what a folder holds: a page, and tables for spreadsheets and papers."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.files import listed, write_atomic
from widthwise.records.analysis import Analysis
from widthwise.records.discovery import Consensus, Discovery
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.outcome import Outcome
from widthwise.records.scaling import ScalingLaws
from widthwise.reports.analysis import analysis_page
from widthwise.reports.charts import FileKind
from widthwise.reports.consensus import consensus_page, read_searches
from widthwise.reports.discovery import discovery_page
from widthwise.reports.effects import are_comparisons, read_effects
from widthwise.reports.evaluation import evaluation_page
from widthwise.reports.experiment import experiment_page, is_unfinished, live_page
from widthwise.reports.main_table import with_columns
from widthwise.reports.page import Page
from widthwise.reports.run import runs_page
from widthwise.reports.scaling import scaling_page
from widthwise.run_dir import RunDir

Columns = Sequence[str] | None
PAGES: Mapping[str, Callable[[Path, Columns], Page]] = {
    Outcome.file_name: lambda folder, columns: experiment_page(folder, with_columns(Outcome.read(folder), columns)),
    Analysis.file_name: lambda folder, columns: analysis_page(Analysis.read(folder)),
    ScalingLaws.file_name: lambda folder, columns: scaling_page(ScalingLaws.read(folder)),
    Discovery.file_name: lambda folder, columns: discovery_page(folder, Discovery.read(folder)),
    EvaluationTable.file_name: lambda folder, columns: evaluation_page(EvaluationTable.read(folder)),
    Consensus.file_name: lambda folder, columns: consensus_page(
        read_searches([Path(os.path.normpath(folder / path)) for path in Consensus.read(folder).searches])
    ),
}
"""File that tells what a folder holds -> what makes its report."""


def write_report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    figures: FileKind | None = None,
    columns: Sequence[str] | None = None,
    refresh_seconds: int | None = None,
) -> list[Path]:
    """Write the report that fits what `paths` hold: one folder of PAGES, or several runs, comparisons or
    searches. Several comparisons have a table as CSV, without a page.

    `out` is the folder to write into; without it the report goes into the folder it describes, and several need it.
    figures: also write each figure of the page as a file of this kind, into `figures/` next to the page. columns:
    names of the quantities of the main table of a comparison, sweep or family; by default the usual ones.
    refresh_seconds: after so long a page of what has not finished loads itself again; None: never. Returns the files
    written, the page first. Raises UserError for a path that is neither, or that is broken, for comparisons or
    searches that do not go together, and for columns that there are not.
    """
    described = listed(paths)
    folder = None if out is None else Path(out)
    if are_comparisons(described):
        effects = read_effects(described)
        if figures is not None or columns is not None:
            raise UserError("report: several comparisons have one table; give --figures or --columns with one of them")
        table = _common_folder(folder, f"{len(described)} comparisons", "table.csv") / "table.csv"
        write_atomic(table, effects.csv_text())
        return [table]
    return _page(described, folder, columns, refresh_seconds).write(folder or described[0], figures)


def check_kind(folder: Path, name: str) -> None:
    """Raises UserError where a folder meant for `name`, one of PAGES, has a report of another kind, or is no folder."""
    others = [other for other in ("config.yaml", *PAGES) if other != name and (folder / other).is_file()]
    if others:
        raise UserError(f"{folder}: holds {others[0]}, whose report would be replaced; choose another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")


def is_at_work(paths: Sequence[Path]) -> bool:
    """Return whether a run or a comparison among them has not finished, so that its page will change."""
    return any(is_unfinished(path) or (RunDir(path).exists and not RunDir(path).has_result) for path in paths)


def _page(paths: Sequence[Path], out: Path | None, columns: Columns, refresh_seconds: int | None) -> Page:
    if len(paths) == 1 and columns is None and is_unfinished(paths[0]):
        return live_page(paths[0], refresh_seconds)
    found = {path: name for path in paths for name in PAGES if (path / name).is_file()}
    for path in paths:
        if len(paths) > 1 and path not in found and is_unfinished(path):
            raise UserError(f"{path}: has not finished; give it alone, or wait until it has")
        if path not in found and not RunDir(path).exists:
            allowed = "a run directory (config.yaml) or a folder with " + " or ".join(PAGES)
            raise UserError(f"{path}: is not {allowed}")
    if columns is not None and (len(paths) > 1 or found.get(paths[0]) != Outcome.file_name):
        raise UserError(f"--columns: goes with one folder that has {Outcome.file_name}")
    if len(paths) == 1 and found:
        return PAGES[found[paths[0]]](paths[0], columns)
    if len(paths) == 1:
        return runs_page(paths, refresh_seconds)
    kinds = {found.get(path) for path in paths}
    if kinds not in ({None}, {Discovery.file_name}):
        other = next((name for name in found.values() if name != Outcome.file_name), Outcome.file_name)
        only = "only runs, or only comparisons, or only searches"
        raise UserError(f"report: got {len(paths)} paths, one with {other}; give that one alone, or {only}")
    if not found:
        _common_folder(out, f"{len(paths)} runs")
        return runs_page(paths, refresh_seconds)
    _common_folder(out, f"{len(paths)} searches", Consensus.file_name)
    return consensus_page(read_searches(paths))


def _common_folder(out: Path | None, of: str, name: str | None = None) -> Path:
    """Return the folder for a common report; raise UserError without one. name: file that it is meant for."""
    if out is None:
        raise UserError(f"report: got {of}; name the folder for their common report with --out")
    if name is not None:
        check_kind(out, name)
    return out
