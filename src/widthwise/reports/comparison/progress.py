"""The page of a comparison that has not finished: which runs are done, running or waiting, and the curves so far."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from widthwise.files import write_atomic
from widthwise.records.comparison import Comparison
from widthwise.records.listing import ListedRun, PlannedRuns
from widthwise.records.run import Run
from widthwise.reports.page import plots
from widthwise.reports.page.curves import by_step, mean_over_seeds
from widthwise.reports.page.html import legend, panels, render
from widthwise.reports.page.svg import Style, styles
from widthwise.reports.run.growth import growth_steps
from widthwise.reports.run.progress import counted_states, progress_table, reload_sentence
from widthwise.reports.run.reading import read_run
from widthwise.run_dir import RunDir
from widthwise.runs.listing import listed_run, planned_run

_CURVES = (("validation", "Held-out loss"), ("train", "Training loss"))


def is_unfinished(folder: Path) -> bool:
    """Whether a folder holds a comparison of which a run or the result is missing."""
    if not (folder / PlannedRuns.file_name).is_file():
        return False
    runs = PlannedRuns.read(folder).runs
    return not (folder / Comparison.file_name).is_file() or not all(RunDir(folder / r.path).has_result for r in runs)


def write_progress_page(folder: Path, out: Path | None = None, refresh_seconds: int | None = None) -> Path:
    """Writes `report.html` of an unfinished comparison into `out` (default: `folder`). UserError if it is broken.

    refresh_seconds: after so long the page loads itself again; None: never.
    """
    page = Path(out or folder) / "report.html"
    write_atomic(page, _page(Path(folder), refresh_seconds))
    return page


def _page(folder: Path, refresh_seconds: int | None) -> str:
    planned = PlannedRuns.read(folder)
    listed = {each.path.rsplit("/")[-1]: _listed(folder / each.path, each.n_steps) for each in planned.runs}
    variants = list(dict.fromkeys(each.variant for each in planned.runs))
    begun = {
        name: [
            read_run(folder / e.path, e.path) for e in planned.runs if e.variant == name and _is_begun(folder / e.path)
        ]
        for name in variants
    }
    chosen = styles(variants, planned.baseline)
    grown = growth_steps([run for own in begun.values() for run in own])
    figures = {
        title: plots.curve_figure(f"{event}-loss", _bundles(begun, chosen, event), "step", title.lower(), True, grown)
        for event, title in _CURVES
    }
    return render(
        "comparison/progress.html",
        title=planned.title,
        lead=f"{len(listed)} runs: {counted_states(list(listed.values()))}.{reload_sentence(refresh_seconds)}",
        refresh_seconds=refresh_seconds,
        table=progress_table(listed),
        curves=panels(figures),
        legend=legend(chosen),
        command=planned.command,
    )


def _is_begun(path: Path) -> bool:
    return RunDir(path).exists


def _listed(path: Path, n_steps: int) -> ListedRun:
    return listed_run(path) if _is_begun(path) else planned_run(path, n_steps)


def _bundles(begun: Mapping[str, Sequence[Run]], chosen: Mapping[str, Style], event: str) -> list[plots.Bundle]:
    """A bundle for each variant of which a run was begun."""
    found = {name: [by_step(run, event, "loss") for run in runs] for name, runs in begun.items() if runs}
    return [plots.Bundle(name, chosen[name], curves, mean_over_seeds(curves)) for name, curves in found.items()]
