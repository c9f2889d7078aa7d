"""`widthwise compare`: matched recipes x seeds -> one report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from widthwise.cli.experiment import (
    AdjustOption,
    DryRunOption,
    JobsOption,
    MatchOption,
    WorkerOption,
    jobs_asked,
    show_workload,
)
from widthwise.cli.progress import TrackerName, TrackOption, training_progress
from widthwise.cli.terminal import say, say_json, say_tables, table_console
from widthwise.config_io import UserError
from widthwise.reports.page.formats import duration
from widthwise.training.launch import is_silent

if TYPE_CHECKING:
    from widthwise.experiments.experiment import Experiment


def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(
            help="One recipe with a compare section, or several recipes, the baseline first; then overrides a.b=c."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/RECIPE, or runs/RECIPE-vs-RECIPE.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed, instead of the recipe's; repeat for several.")] = None,
    match: MatchOption = None,
    adjust: AdjustOption = None,
    jobs: JobsOption = "auto",
    worker: WorkerOption = False,
    track: TrackOption = None,
    dry_run: DryRunOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison, or the dry run, as JSON.")] = False,
) -> None:
    """Train matched recipes over several seeds with the same data order and report the paired differences.

    Finished runs are not repeated: the same command continues an interrupted comparison. Started several times, on one
    machine or on several that share the folder, it divides the runs.

    Example: `widthwise compare configs/uniform_200m.yaml configs/x_200m.yaml train.steps=2000`
    """
    from widthwise.experiments.compare import read_plan

    overrides = [argument for argument in recipes if "=" in argument]
    paths = [Path(argument) for argument in recipes if "=" not in argument]
    if not paths:
        raise UserError("compare: got no recipe; name one with a compare section, or several")
    plan = read_plan(paths, overrides, seed or (), match, adjust)
    if dry_run:
        show_workload(plan.workload(), plan.title, "variant", plan.adjustment_lines, as_json)
        return
    run_and_report(plan, out or Path("runs") / plan.title, as_json, jobs, track, worker)


def run_and_report(
    plan: "Experiment",
    folder: Path,
    as_json: bool,
    jobs: str = "auto",
    track: Sequence[TrackerName] | None = None,
    is_worker: bool = False,
) -> None:
    """Trains the runs of the plan, shows their progress, and prints the result. jobs, track: as `compare` takes them.
    is_worker: ends when there is nothing left to begin, though others have not finished."""
    from widthwise.experiments.jobs import Jobs
    from widthwise.experiments.running import expected_seconds, run_plan
    from widthwise.experiments.scheduler import HeldElsewhere
    from widthwise.reports.comparison.main_table import comparison_table
    from widthwise.reports.writing import write_report
    from widthwise.runs.environment import command_line

    at_a_time = Jobs.of(plan.recipes.values(), len(plan.order), jobs_asked(jobs))
    with training_progress(track) as observer:
        expected = expected_seconds(plan, folder, at_a_time)
        here = f"; about {duration(expected / 3600)} here, by a measured step of each variant" if expected else ""
        for line in (f"{plan.in_words}{here}", *plan.adjustment_lines):
            observer.message(line)
        try:
            comparison = run_plan(plan, folder, command_line(), observer, at_a_time, waits=not is_worker)
        except HeldElsewhere as left:
            observer.message(str(left))
            return
    if is_silent():
        return
    files = write_report([folder])
    if as_json:
        say_json(comparison)
        return
    say_tables(comparison_table(comparison))
    table_console().print(comparison.sentence)
    for file in reversed(files):  # the page comes last
        say(f"wrote {file}")
