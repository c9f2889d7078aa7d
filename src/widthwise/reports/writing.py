"""Reports of folders: the page of a record or of an unfinished experiment, tables, and the view in a notebook."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from widthwise.files import listed, write_atomic
from widthwise.mistakes import UserError
from widthwise.records.analysis import Analysis
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.outcome import Outcome
from widthwise.records.record import StoredRecord
from widthwise.records.run import PlannedRuns, Run, RunResult
from widthwise.records.scaling import ScalingLaws
from widthwise.reports.analysis import analysis_page
from widthwise.reports.charts import FileKind, styles
from widthwise.reports.comparison_page import comparison_answer, comparison_page
from widthwise.reports.effects import Effects, are_comparisons, read_effects
from widthwise.reports.evaluation import evaluation_page
from widthwise.reports.experiment_sections import loss_figures
from widthwise.reports.formats import counted
from widthwise.reports.main_table import with_columns
from widthwise.reports.page import Code, Page, note, section
from widthwise.reports.run import read_run, reload_sentence, runs_page
from widthwise.reports.scaling import scaling_page
from widthwise.reports.sweep_page import ladder_answer, sweep_answer, sweep_page
from widthwise.reports.tables import progress_table
from widthwise.run_dir import RunDir
from widthwise.runs.listing import listed_run, planned_run

_KINDS = {
    "comparison": (comparison_page, comparison_answer),
    "sweep": (sweep_page, sweep_answer),
    "ladder": (sweep_page, ladder_answer),
}
"""Kind of an experiment -> functions that return its page and its answer."""
PAGES: Mapping[str, Callable[[Path], Page]] = {
    Outcome.file_name: lambda folder: experiment_page(folder, Outcome.read(folder)),
    Analysis.file_name: lambda folder: analysis_page(Analysis.read(folder)),
    ScalingLaws.file_name: lambda folder: scaling_page(ScalingLaws.read(folder)),
    EvaluationTable.file_name: lambda folder: evaluation_page(EvaluationTable.read(folder)),
}
"""File of a record -> function that returns the page of its folder."""


def write_report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    figures: FileKind | None = None,
    columns: Sequence[str] | None = None,
    refresh_seconds: int | None = None,
) -> list[Path]:
    """Write the report of one folder with a run or a file of PAGES, or of several runs or comparisons.

    Several comparisons get a CSV table and no page. Returns the written files, the page first. Raises UserError for
    folders without a run or a file of PAGES, for broken files, for comparisons that cannot be combined, and for unknown
    columns.

    out: folder to write into; by default the described folder. Required for several folders.
    figures: also write each figure as a file of this kind into `figures/` next to the page.
    columns: names of the quantities in the main table of a comparison or sweep; None: the default columns.
    refresh_seconds: interval after which the page of an unfinished run or experiment reloads; None: never.
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
    """Write the table of several comparisons; return its content and its path. Raises UserError as `write_report`."""
    if figures is not None or columns is not None:
        raise UserError("report: several comparisons have one table; pass --figures or --columns with a single one")
    effects = read_effects(folders)
    file = _common_folder(out, f"{len(folders)} comparisons") / "table.csv"
    check_kind(file.parent, file.name)
    write_atomic(file, effects.csv_text())
    return effects, file


def check_kind(folder: Path, name: str) -> None:
    """Raise UserError if a folder for `name`, one of PAGES, has a report of another kind, or is no folder."""
    for file_name in ("config.yaml", *PAGES):
        if file_name != name and (folder / file_name).is_file():
            raise UserError(f"{folder}: holds {file_name}, whose report would be replaced; choose another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder")


def is_at_work(paths: Sequence[Path]) -> bool:
    """Return whether any of the runs or experiments is unfinished, so that the page will change."""
    return any(is_unfinished(path) or (RunDir(path).exists and not RunDir(path).has_result) for path in paths)


def _page(paths: Sequence[Path], out: Path | None, columns: Sequence[str] | None, refresh_seconds: int | None) -> Page:
    if len(paths) == 1 and columns is None and is_unfinished(paths[0]):
        return live_page(paths[0], refresh_seconds)
    names = {path: name for path in paths for name in PAGES if (path / name).is_file()}
    for path in paths:
        if len(paths) > 1 and path not in names and is_unfinished(path):
            raise UserError(f"{path}: has not finished; pass it alone, or wait until it has finished")
        if path not in names and not RunDir(path).exists:
            allowed = "a run directory (config.yaml) or a folder with " + " or ".join(PAGES)
            raise UserError(f"{path}: is not {allowed}")
    if columns is not None:
        if len(paths) > 1 or names.get(paths[0]) != Outcome.file_name:
            raise UserError(f"--columns: needs one folder with {Outcome.file_name}")
        return experiment_page(paths[0], with_columns(Outcome.read(paths[0]), columns))
    if names and len(paths) == 1:
        return PAGES[names[paths[0]]](paths[0])
    if names:
        name = next((name for name in names.values() if name != Outcome.file_name), Outcome.file_name)
        raise UserError(
            f"report: got {len(paths)} paths, one with {name}; pass that one alone, or only runs, or only comparisons"
        )
    if len(paths) > 1:
        _common_folder(out, f"{len(paths)} runs")
    return runs_page(paths, refresh_seconds)


def experiment_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of the results of an experiment so far. Raises UserError if a run is broken."""
    page, _ = _KINDS[outcome.kind]
    return page(folder, outcome)


def answer(outcome: Outcome) -> list[str]:
    """Return a few sentences that answer the question of an experiment."""
    _, kind_answer = _KINDS[outcome.kind]
    return kind_answer(outcome)


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder has an experiment without all of its runs, points or results.

    Raises UserError for a broken record.
    """
    outcome = Outcome.read_if_present(folder)
    if outcome is not None and outcome.study is not None:
        return outcome.is_open
    planned = PlannedRuns.read_if_present(folder)
    if planned is None:
        return False
    return outcome is None or not all(RunDir(folder / run.path).has_result for run in planned.runs)


def live_page(folder: Path, refresh_seconds: int | None) -> Page:
    """Return the page of an unfinished experiment: the progress of each run, and the page of the results so far.

    Without results the page shows the curves of the runs.
    """
    planned = PlannedRuns.read_if_present(folder) or PlannedRuns(title="", command="", runs=())
    progress = {}
    for run in planned.runs:
        path = folder / run.path
        progress[path.name] = listed_run(path) if RunDir(path).exists else planned_run(path, run.n_steps)
    progress_section = section("Runs", progress_table(progress), note("unfinished"))
    lead = ""
    if progress:
        states = [run.state for run in progress.values()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        lead = f"{counted(len(progress), 'run')}: {counts}.{reload_sentence(refresh_seconds)}"
    outcome = Outcome.read_if_present(folder)
    if outcome is not None and outcome.is_open:
        page = experiment_page(folder, outcome)
        return replace(
            page,
            kind=f"{page.kind}, not finished",
            lead=f"{page.lead} {lead}",
            sections=[progress_section, *page.sections],
            refresh_seconds=refresh_seconds,
        )
    runs: dict[str, list[Run]] = {run.variant: [] for run in planned.runs}
    for run in planned.runs:
        if RunDir(folder / run.path).exists:
            runs[run.variant].append(read_run(folder / run.path, run.path))
    return Page(
        "experiment, not finished",
        planned.title,
        [],
        lead=lead,
        first=loss_figures(runs, styles(runs, planned.baseline)),
        sections=[progress_section, section("How to resume", Code(planned.command))],
        made_from=f"{PlannedRuns.file_name} and the run directories next to this page",
        refresh_seconds=refresh_seconds,
    )


def _common_folder(out: Path | None, described: str) -> Path:
    """Return `out`. Raises UserError if it is None. described: the contents of the report, such as `3 runs`."""
    if out is None:
        raise UserError(f"report: got {described}; pass the folder of their common report with --out")
    return out


def notebook_html(record: StoredRecord, folder: Path) -> str | None:
    """Return the first screen of the page of a record for a notebook; None if it has no page.

    folder: folder of the record. Raises UserError if the folder or a run on the page is missing or broken.
    """
    if isinstance(record, RunResult):
        return runs_page([folder]).notebook_html()
    page = PAGES.get(record.file_name)
    return None if page is None else page(folder).notebook_html()


StoredRecord.notebook_view = notebook_html
