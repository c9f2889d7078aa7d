"""The page and the answer of an experiment of any kind, finished or not."""

from dataclasses import dataclass, replace
from pathlib import Path

from widthwise.records.outcome import Outcome
from widthwise.records.run import PlannedRuns, Run
from widthwise.reports.charts import styles
from widthwise.reports.comparison_page import comparison_answer, comparison_page
from widthwise.reports.experiment_sections import loss_figures
from widthwise.reports.family_page import family_answer, family_page
from widthwise.reports.formats import counted
from widthwise.reports.page import Code, Page, note, section
from widthwise.reports.reading import counted_states, progress_table, read_run, reload_sentence
from widthwise.reports.sweep_page import ladder_answer, ladder_page, sweep_answer, sweep_page
from widthwise.run_dir import RunDir
from widthwise.runs.listing import listed_run, planned_run

_KINDS = {
    "comparison": (comparison_page, comparison_answer),
    "sweep": (sweep_page, sweep_answer),
    "ladder": (ladder_page, ladder_answer),
    "family": (family_page, family_answer),
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


@dataclass(frozen=True)
class ExperimentOnDisk:
    """The records of an experiment in a folder; None for missing ones."""

    folder: Path
    outcome: Outcome | None
    planned: PlannedRuns | None

    @classmethod
    def read(cls, folder: Path) -> "ExperimentOnDisk":
        """Read the records of a folder. Raises UserError if one is broken."""
        outcome = Outcome.read(folder) if (folder / Outcome.file_name).is_file() else None
        planned = PlannedRuns.read(folder) if (folder / PlannedRuns.file_name).is_file() else None
        return cls(folder, outcome, planned)

    @property
    def is_unfinished(self) -> bool:
        """True if runs, points or the result are missing."""
        if self.outcome is not None and self.outcome.study is not None:
            return self.outcome.is_open
        if self.planned is None:
            return False
        return self.outcome is None or not all(RunDir(self.folder / run.path).has_result for run in self.planned.runs)

    def live_page(self, refresh_seconds: int | None) -> Page:
        """Return the page of an unfinished experiment: the progress of each run, and the page of the results so far.

        Without results the page shows the curves of the runs.
        """
        planned = self.planned or PlannedRuns(title="", command="", runs=())
        listed = {}
        for run in planned.runs:
            path = self.folder / run.path
            listed[path.name] = listed_run(path) if RunDir(path).exists else planned_run(path, run.n_steps)
        progress = section("Runs", progress_table(listed), note("unfinished"))
        lead = ""
        if listed:
            states = f"{counted(len(listed), 'run')}: {counted_states(list(listed.values()))}."
            lead = states + reload_sentence(refresh_seconds)
        if self.outcome is not None and self.outcome.is_open:
            page = experiment_page(self.folder, self.outcome)
            return replace(
                page,
                kind=f"{page.kind}, not finished",
                lead=f"{page.lead} {lead}",
                sections=[progress, *page.sections],
                refresh_seconds=refresh_seconds,
            )
        runs: dict[str, list[Run]] = {run.variant: [] for run in planned.runs}
        for run in planned.runs:
            if RunDir(self.folder / run.path).exists:
                runs[run.variant].append(read_run(self.folder / run.path, run.path))
        looks = styles(runs, planned.baseline)
        curves = loss_figures(runs, looks)
        return Page(
            "experiment, not finished",
            planned.title,
            [],
            lead=lead,
            first=curves,
            sections=[progress, section("How to resume", Code(planned.command))],
            made_from=f"{PlannedRuns.file_name} and the run directories next to this page",
            refresh_seconds=refresh_seconds,
        )
