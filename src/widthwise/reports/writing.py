"""The report that fits what a folder holds: a page, and tables for spreadsheets and papers."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from widthwise.config_io import UserError
from widthwise.files import listed, write_atomic
from widthwise.records.analysis import Analysis
from widthwise.records.discovery import Discovery
from widthwise.records.estimate import Effects
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.outcome import Outcome
from widthwise.records.scaling import ScalingLaws
from widthwise.reports import effects, evaluation, experiment, main_table, scaling
from widthwise.reports.analysis import analysis_page
from widthwise.reports.charts import FileKind
from widthwise.reports.discovery import discovery_page
from widthwise.reports.page import Page
from widthwise.reports.run import runs_page
from widthwise.reports.scales import read_scales
from widthwise.run_dir import RunDir


class Report(NamedTuple):
    """A page, and the files beside it by name."""

    page: Page
    tables: Mapping[str, str]
    record: Callable[[Path], Effects] | None = None
    """Makes the record of a report that has none before, from the folder it is written into."""


Columns = Sequence[str] | None


def _experiment(folder: Path, columns: Columns) -> Report:
    found = main_table.with_columns(Outcome.read(folder), columns)
    tables = {"table.csv": main_table.csv_text, "table.tex": main_table.latex_text} if found.variants else {}
    return Report(experiment.experiment_page(folder, found), {name: text(found) for name, text in tables.items()})


def _evaluation(folder: Path, columns: Columns) -> Report:
    found = EvaluationTable.read(folder)
    tables = {"table.csv": evaluation.csv_text(found), "table.tex": evaluation.latex_text(found)}
    return Report(evaluation.evaluation_page(found), tables)


def _scaling(folder: Path, columns: Columns) -> Report:
    found = ScalingLaws.read(folder)
    tables = {"fits.csv": scaling.fits_csv(found), "savings.csv": scaling.savings_csv(found)}
    return Report(scaling.scaling_page(found), tables)


def _effects(folder: Path, columns: Columns) -> Report:
    """The comparisons that `effects.json` names, read anew."""
    return _effects_of([Path(os.path.normpath(folder / each)) for each in Effects.read(folder).comparisons])


def _effects_of(folders: Sequence[Path]) -> Report:
    scales = read_scales(folders)
    tables = {"table.csv": effects.csv_text(scales), "table.tex": effects.latex_text(scales)}
    return Report(effects.effects_page(scales), tables, lambda out: effects.effects_record(scales, out))


PAGES: Mapping[str, Callable[[Path, Columns], Report]] = {
    Outcome.file_name: _experiment,
    Analysis.file_name: lambda folder, columns: Report(analysis_page(Analysis.read(folder)), {}),
    ScalingLaws.file_name: _scaling,
    Discovery.file_name: lambda folder, columns: Report(discovery_page(folder, Discovery.read(folder)), {}),
    EvaluationTable.file_name: _evaluation,
    Effects.file_name: _effects,
}
"""File that tells what a folder holds -> what makes its report."""


def write_report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    figures: FileKind | None = None,
    columns: Sequence[str] | None = None,
    refresh_seconds: int | None = None,
) -> list[Path]:
    """Write the report that fits what `paths` hold: one folder of PAGES, or several runs or comparisons.

    `out` is the folder to write into; without it the report goes beside what it describes, and several need it.
    figures: also write each figure of the page as a file of this kind, into `figures/` beside the page. columns:
    names of the quantities of the main table of a comparison, sweep or family; by default the usual ones.
    refresh_seconds: after so long a page of what has not finished loads itself again; None: never. Returns the files
    written, the page first. Raises UserError for a path that is neither, or that is broken, for comparisons that do
    not go together, and for columns that there are not.
    """
    described = listed(paths)
    report = _report(described, None if out is None else Path(out), columns, refresh_seconds)
    folder = Path(out or described[0])
    page, *drawn = report.page.write(folder, figures)
    for name, text in report.tables.items():
        write_atomic(folder / name, text)
    records = [] if report.record is None else [report.record(folder).write(folder)]
    return [page, *(folder / name for name in report.tables), *records, *drawn]


def check_kind(folder: Path, name: str) -> None:
    """Raises UserError where a folder meant for `name`, one of PAGES, has a report of another kind, or is no folder."""
    others = [other for other in ("config.yaml", *PAGES) if other != name and (folder / other).is_file()]
    if others:
        raise UserError(f"{folder}: holds {others[0]}, whose report would be replaced; choose another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")


def is_at_work(paths: Sequence[Path]) -> bool:
    """Return whether a run or a comparison among them has not finished, so that its page will change."""
    return any(
        experiment.is_unfinished(path) or (RunDir(path).exists and not RunDir(path).has_result) for path in paths
    )


def _report(paths: Sequence[Path], out: Path | None, columns: Columns, refresh_seconds: int | None) -> Report:
    if len(paths) == 1 and columns is None and experiment.is_unfinished(paths[0]):
        is_sweep = (paths[0] / Outcome.file_name).is_file() and Outcome.read(paths[0]).is_open
        so_far = _experiment(paths[0], None) if is_sweep else None
        page = experiment.live_page(paths[0], so_far and so_far.page, refresh_seconds)
        return Report(page, so_far.tables if so_far else {})
    found = {path: name for path in paths for name in PAGES if (path / name).is_file()}
    for path in paths:
        if len(paths) > 1 and path not in found and experiment.is_unfinished(path):
            raise UserError(f"{path}: has not finished; give it alone, or wait until it has")
        if path not in found and not RunDir(path).exists:
            allowed = "a run directory (config.yaml) or a folder with " + " or ".join(PAGES)
            raise UserError(f"{path}: is not {allowed}")
    if columns is not None and (len(paths) > 1 or found.get(paths[0]) != Outcome.file_name):
        raise UserError(f"--columns: goes with one folder that has {Outcome.file_name}")
    if len(paths) == 1 and found:
        return PAGES[found[paths[0]]](paths[0], columns)
    if len(paths) == 1:
        return Report(runs_page(paths, refresh_seconds), {})
    are_comparisons = [found.get(path) == Outcome.file_name for path in paths]
    if found and not all(are_comparisons):
        held = next((name for name in found.values() if name != Outcome.file_name), Outcome.file_name)
        raise UserError(
            f"report: got {len(paths)} paths, one with {held}; give that one alone, or only runs, or only comparisons"
        )
    if out is None:
        kind = "comparisons" if found else "runs"
        raise UserError(f"report: got {len(paths)} {kind}; name the folder for their common report with --out")
    if found:
        check_kind(out, Effects.file_name)
        return _effects_of(paths)
    return Report(runs_page(paths, refresh_seconds), {})
