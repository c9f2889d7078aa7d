"""The page and the answer of an experiment of any kind, finished or not."""

from dataclasses import replace
from pathlib import Path

from widthwise.records.outcome import Outcome
from widthwise.records.run import PlannedRuns, Run
from widthwise.reports.charts import styles
from widthwise.reports.comparison_page import comparison_answer, comparison_page
from widthwise.reports.experiment_sections import loss_figures
from widthwise.reports.formats import counted
from widthwise.reports.page import Code, Page, note, section
from widthwise.reports.run import read_run, reload_sentence
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


def experiment_page(folder: Path, outcome: Outcome) -> Page:
    """Return the page of the results of an experiment so far. Raises UserError if a run is broken."""
    page, _ = _KINDS[outcome.kind]
    return page(folder, outcome)


def answer(outcome: Outcome) -> list[str]:
    """Return a few sentences that answer the question of an experiment."""
    _, kind_answer = _KINDS[outcome.kind]
    return kind_answer(outcome)


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder has an experiment of which runs, points or the result are missing.

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
    listed = {}
    for run in planned.runs:
        path = folder / run.path
        listed[path.name] = listed_run(path) if RunDir(path).exists else planned_run(path, run.n_steps)
    progress = section("Runs", progress_table(listed), note("unfinished"))
    lead = ""
    if listed:
        states = [run.state for run in listed.values()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        lead = f"{counted(len(listed), 'run')}: {counts}.{reload_sentence(refresh_seconds)}"
    outcome = Outcome.read_if_present(folder)
    if outcome is not None and outcome.is_open:
        page = experiment_page(folder, outcome)
        return replace(
            page,
            kind=f"{page.kind}, not finished",
            lead=f"{page.lead} {lead}",
            sections=[progress, *page.sections],
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
        sections=[progress, section("How to resume", Code(planned.command))],
        made_from=f"{PlannedRuns.file_name} and the run directories next to this page",
        refresh_seconds=refresh_seconds,
    )
