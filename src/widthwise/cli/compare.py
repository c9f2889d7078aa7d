"""`widthwise compare`: matched recipes x seeds -> one report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from widthwise.cli.progress import TrackerName, TrackOption, training_progress
from widthwise.cli.terminal import say, say_json, say_tables, table_console
from widthwise.cli.workers import HeartbeatOption, JobsOption, StudyOption, jobs_asked, storage_option
from widthwise.cli.workload import show_workload
from widthwise.config_io import UserError
from widthwise.reports.page.formats import duration
from widthwise.training.launch import is_silent

if TYPE_CHECKING:
    from widthwise.experiments.plan import ComparisonPlan


def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(
            help="One recipe with a compare section, or several recipes, the baseline first; then overrides a.b=c."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/RECIPE, or runs/RECIPE-vs-RECIPE.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed, instead of the recipe's; repeat for several.")] = None,
    match: Annotated[
        str | None,
        typer.Option(
            help="What variants must match: params, layer_params (attention and feed-forward), active_params, flops, "
            "flops_causal, kv_bytes, training_flops, none."
        ),
    ] = None,
    adjust: Annotated[
        str | None,
        typer.Option(
            help="What of every variant is changed until it matches: ffn, d_model or shape; in turn: d_model,ffn."
        ),
    ] = None,
    storage: Annotated[str | None, storage_option("one worker does all runs")] = None,
    study: StudyOption = None,
    heartbeat: HeartbeatOption = 60,
    jobs: JobsOption = "auto",
    track: TrackOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the planned work, and train nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison, or the dry run, as JSON.")] = False,
) -> None:
    """Train matched recipes over several seeds with the same data order and report the paired differences.

    Finished runs are not repeated: the same command continues an interrupted comparison. Started several times with
    --storage, on one machine or on several that share the folder, it divides the runs.

    Example: `widthwise compare configs/uniform_200m.yaml configs/x_200m.yaml train.steps=2000`
    """
    from widthwise.experiments.plan import read_plan

    overrides = [argument for argument in recipes if "=" in argument]
    paths = [Path(argument) for argument in recipes if "=" not in argument]
    if not paths:
        raise UserError("compare: got no recipe; name one with a compare section, or several")
    if study and storage is None:
        raise UserError(f"--study: got {study!r}; goes with --storage, the database that holds the study")
    plan = read_plan(paths, overrides, seed or (), match, adjust)
    if dry_run:
        show_workload(plan.workload_as_data(), plan.title, "variant", plan.adjustment_lines, as_json)
        return
    run_and_report(plan, out or Path("runs") / plan.title, as_json, jobs, storage, study, heartbeat, track)


def run_and_report(
    plan: "ComparisonPlan",
    folder: Path,
    as_json: bool,
    jobs: str = "auto",
    storage: str | None = None,
    study: str | None = None,
    heartbeat: int = 60,
    track: Sequence[TrackerName] | None = None,
) -> None:
    """Trains the runs of the plan, shows their progress, and prints the result. jobs, storage, study, heartbeat, track:
    as `compare` takes them."""
    from widthwise.experiments.compare import expected_seconds, run_plan
    from widthwise.experiments.jobs import Jobs
    from widthwise.experiments.sharing.storage import Heartbeat
    from widthwise.reports.comparison.terminal import comparison_table
    from widthwise.reports.writing import write_report
    from widthwise.runs.environment import command_line

    at_a_time = Jobs.of(plan.recipes.values(), len(plan.runs), jobs_asked(jobs))
    with training_progress(track) as observer:
        expected = expected_seconds(plan, folder, at_a_time)
        here = f"; about {duration(expected / 3600)} here, by a measured step of each variant" if expected else ""
        for line in (f"{plan.workload}{here}", *plan.adjustment_lines):
            observer.message(line)
        comparison = run_plan(plan, folder, command_line(), observer, storage, study, Heartbeat(heartbeat), at_a_time)
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
