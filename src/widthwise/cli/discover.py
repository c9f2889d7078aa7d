"""`widthwise discover`: a shape that training finds, and its comparison with rivals of the same budget."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.bundled import recipe_name
from widthwise.cli.experiment import JobsOption, jobs_asked
from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import say, say_json, table_console
from widthwise.cli.track import TrackOption, training_progress


def discover(
    recipe: Annotated[Path, typer.Argument(help="Recipe of the uniform model; a discover section says how to search.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to it, such as train.steps=2000 or discover.method.n_stages=4.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Such as 30M: the uniform model is sized to it first; default: the recipe's.")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(help="What the budget is of: params, layer_params, active_params, flops, flops_causal, kv_bytes."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of the search; default: those of the recipe.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Seed of the comparison, repeat for several; default: 1, 2 and 3.")
    ] = None,
    only_search: Annotated[
        bool, typer.Option("--only-search", help="Do not train the rivals; rivals.yaml says how to.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/RECIPE-discovery.")] = None,
    jobs: JobsOption = "auto",
    track: TrackOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be searched, and train nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the discovery as JSON.")] = False,
) -> None:
    """Find which layers should be wide, under a budget, and retrain what was found beside its rivals.

    Finished parts are not repeated: the same command continues an interrupted discovery.

    Example: `widthwise discover configs/small.yaml --seed 1 --seed 2 --seed 3`
    """
    from widthwise.experiments.discovery.discover import COMPARISON, plan_discovery, plan_of_rivals
    from widthwise.experiments.discovery.discover import discover as search
    from widthwise.experiments.jobs import Jobs
    from widthwise.experiments.running import run_plan
    from widthwise.records.comparison import Comparison
    from widthwise.reports.discovery.tables import cost_table, gains_table, rivals_table, sentences, sizes_table
    from widthwise.reports.page.formats import si
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.environment import command_line

    plan = plan_discovery(recipe, overrides or (), budget, steps, match, seed or ())
    folder = out or Path("runs") / f"{recipe_name(recipe)}-discovery"
    check_kind(folder, "discovery.json")
    n_at_a_time = jobs_asked(jobs)
    if dry_run:
        task = plan.task
        say(
            f"{plan.config.method.kind}: {task.steps} steps of search under {si(task.budget)} {task.match}; then "
            f"rivals of {task.base.train.steps} steps with the seeds {', '.join(map(str, plan.config.seeds))}"
        )
        return
    comparison: Comparison | None = None
    with training_progress(track) as observer:
        alone = Jobs.of([plan.task.base], 1, 1)
        with alone.threads():
            discovery = search(plan, folder, observer, command_line())
        if not only_search:
            rivals = plan_of_rivals(folder)
            for line in (*rivals.adjustment_lines, rivals.in_words):
                observer.message(line)
            at_a_time = Jobs.of(rivals.recipes.values(), len(rivals.order), n_at_a_time)
            comparison = run_plan(rivals, folder / COMPARISON, command_line(), observer, jobs=at_a_time)
            write_report([folder / COMPARISON])
    files = write_report([folder])
    if as_json:
        say_json(discovery)
        return
    say_tables(*filter(None, [sizes_table(discovery), gains_table(discovery)]))
    if comparison is not None:
        say_tables(*filter(None, [cost_table(discovery, comparison), rivals_table(comparison)]))
    table_console().print("\n".join(sentences(discovery, comparison)))
    say(*(f"wrote {file}" for file in files))
