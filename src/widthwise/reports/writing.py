"""The report that fits what a folder holds: a page, and tables for spreadsheets and papers."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.files import listed
from widthwise.records.analysis import Analysis
from widthwise.records.discovery import Consensus, Discovery
from widthwise.records.estimate import Effects
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.outcome import Outcome
from widthwise.records.scaling import ScalingLaws
from widthwise.reports.analysis import analysis_page
from widthwise.reports.charts import FileKind
from widthwise.reports.consensus import consensus_page, read_searches
from widthwise.reports.discovery import discovery_page
from widthwise.reports.effects import effects_page
from widthwise.reports.evaluation import evaluation_page
from widthwise.reports.experiment import experiment_page, is_unfinished, live_page
from widthwise.reports.main_table import with_columns
from widthwise.reports.page import Page
from widthwise.reports.run import runs_page
from widthwise.reports.scales import read_scales
from widthwise.reports.scaling import scaling_page
from widthwise.run_dir import RunDir

Columns = Sequence[str] | None
PAGES: Mapping[str, Callable[[Path, Columns], Page]] = {
    Outcome.file_name: lambda folder, columns: experiment_page(folder, with_columns(Outcome.read(folder), columns)),
    Analysis.file_name: lambda folder, columns: analysis_page(Analysis.read(folder)),
    ScalingLaws.file_name: lambda folder, columns: scaling_page(ScalingLaws.read(folder)),
    Discovery.file_name: lambda folder, columns: discovery_page(folder, Discovery.read(folder)),
    EvaluationTable.file_name: lambda folder, columns: evaluation_page(EvaluationTable.read(folder)),
    Effects.file_name: lambda folder, columns: effects_page(
        read_scales(_from_folder(folder, Effects.read(folder).comparisons))
    ),
    Consensus.file_name: lambda folder, columns: consensus_page(
        read_searches(_from_folder(folder, Consensus.read(folder).searches))
    ),
}
"""File that tells what a folder holds -> what makes its report."""
TOGETHER: Mapping[str, tuple[str, str, Callable[[Sequence[Path]], Page]]] = {
    Outcome.file_name: ("comparisons", Effects.file_name, lambda folders: effects_page(read_scales(folders))),
    Discovery.file_name: ("searches", Consensus.file_name, lambda folders: consensus_page(read_searches(folders))),
}
"""File of each of several folders -> their name, the file of their common report, and what makes it."""


def _from_folder(folder: Path, others: Sequence[str]) -> list[Path]:
    """Return folders that a record names by their paths from its own."""
    return [Path(os.path.normpath(folder / each)) for each in others]


def write_report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    figures: FileKind | None = None,
    columns: Sequence[str] | None = None,
    refresh_seconds: int | None = None,
) -> list[Path]:
    """Write the report that fits what `paths` hold: one folder of PAGES, or several runs, comparisons or
    searches.

    `out` is the folder to write into; without it the report goes beside what it describes, and several need it.
    figures: also write each figure of the page as a file of this kind, into `figures/` beside the page. columns:
    names of the quantities of the main table of a comparison, sweep or family; by default the usual ones.
    refresh_seconds: after so long a page of what has not finished loads itself again; None: never. Returns the files
    written, the page first. Raises UserError for a path that is neither, or that is broken, for comparisons or
    searches that do not go together, and for columns that there are not.
    """
    described = listed(paths)
    page = _page(described, None if out is None else Path(out), columns, refresh_seconds)
    return page.write(Path(out or described[0]), figures)


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
    together = TOGETHER.get(found.get(paths[0], ""))
    if len({found.get(path) for path in paths}) > 1 or (found and together is None):
        other = next((name for name in found.values() if name != Outcome.file_name), Outcome.file_name)
        only = "only runs, or only comparisons, or only searches"
        raise UserError(f"report: got {len(paths)} paths, one with {other}; give that one alone, or {only}")
    if out is None:
        kind = "runs" if together is None else together[0]
        raise UserError(f"report: got {len(paths)} {kind}; name the folder for their common report with --out")
    if together is None:
        return runs_page(paths, refresh_seconds)
    _, record, common_page = together
    check_kind(out, record)
    return common_page(paths)
