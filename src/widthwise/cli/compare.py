"""Verbs that compare: `compare`, matched recipes x seeds; `family`, several larger models grown from one run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from widthwise.cli.experiment import (
    AdjustOption,
    DryRunOption,
    JobsOption,
    MatchOption,
    WorkerOption,
    jobs_asked,
    run_and_report,
    show_workload,
)
from widthwise.cli.progress import TrackOption, training_progress
from widthwise.cli.terminal import say, say_json, say_tables, table_console
from widthwise.config_io import UserError


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


def family(
    run: Annotated[Path, typer.Argument(help="Run directory; its newest good checkpoint is grown.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to all recipes, such as train.steps=2000.")
    ] = None,
    to: Annotated[list[Path] | None, typer.Option(help="Recipe of a larger model; repeat for several.")] = None,
    also: Annotated[
        list[Path] | None, typer.Option(help="Run of the same recipe with another seed, grown too; repeat for several.")
    ] = None,
    alone: Annotated[
        Literal["tokens", "flops"] | None,
        typer.Option(help="Train each model from scratch too, on as many tokens or with as many training FLOPs."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new runs; default: RUN-family.")] = None,
    jobs: JobsOption = "auto",
    track: TrackOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the family as JSON.")] = False,
) -> None:
    """Grow one run into several sizes without changing what it computes, and train each to the end of its recipe.

    Finished branches are not trained again: the same command continues an interrupted family.

    Example: `widthwise family runs/small --to configs/medium.yaml --to configs/large.yaml --out runs/family`
    """
    from widthwise.experiments.family import plan_family, run_family
    from widthwise.experiments.jobs import Jobs
    from widthwise.reports.answers import answer
    from widthwise.reports.experiment import branch_table
    from widthwise.reports.main_table import comparison_table
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.environment import command_line
    from widthwise.runs.trained import RunCheckpoint

    if not to:
        raise UserError("--to: is required; give the recipe of a larger model, one --to for each")
    folder = out or run.with_name(f"{run.name}-family")
    check_kind(folder, "outcome.json")
    further = [RunCheckpoint.of(other) for other in also or ()]
    branches = plan_family(RunCheckpoint.of(run), to, overrides or (), folder, further, alone)
    recipes = [recipe for branch in branches for recipe in branch.recipes]
    at_a_time = Jobs.of(recipes, len(recipes), jobs_asked(jobs))
    with training_progress(track) as observer:
        found = run_family(branches, folder, observer, at_a_time, alone, command_line())
    files = write_report([folder])
    if as_json:
        say_json(found)
        return
    table_console().print("\n".join(answer(found)))
    say_tables(*filter(None, [comparison_table(found), branch_table(found)]))
    say(*(f"wrote {file}" for file in files))
