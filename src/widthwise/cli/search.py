"""Verbs that look for a shape: among all of one budget by their costs, or by training."""

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from widthwise.cli.experiment import JobsOption, jobs_asked, run_and_report
from widthwise.cli.options import Changes, JsonOption
from widthwise.cli.progress import TrackOption, training_progress
from widthwise.cli.terminal import say, say_json, say_tables, table_console
from widthwise.config_io import Config
from widthwise.records.quantities import QUANTITY
from widthwise.reports.formats import TIMES, clean, fixed, hidden_widths, shown, si, signed
from widthwise.reports.table import Table
from widthwise.shape.search_space import SearchSpace
from widthwise.yaml_io import recipe_name

SIZES = {
    "n_\nlayers": lambda row: str(row["n_layers"]),
    "d_\nmodel": lambda row: str(row["d_model"]),
    "FFN\nhidden": lambda row: hidden_widths([row["d_hidden"]] * row["n_blocks"]),
    "heads": lambda row: f"{row['n_heads']}{TIMES}{row['head_dim']}",
    "d/L": lambda row: fixed(row["aspect"], 0),
    "ratio": lambda row: fixed(row["ratio"], 3),
}
"""Title -> how a candidate's cell is read."""
COSTS = [QUANTITY[name] for name in ("layer_params", "params", "flops", "kv_bytes", "activation_bytes")]


def search(
    base: Annotated[Path, typer.Argument(help="Recipe of the baseline, whose model sets the budget.")],
    space: Annotated[SearchSpace, "What to search"],
    overrides: Changes = None,
    top: Annotated[int, typer.Option(min=1, help="How many shapes to show and write.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Folder for search.json and recipes that extend the base.")] = None,
    train: Annotated[
        int | None, typer.Option(min=1, help="Train this many of the first and compare them with the base, in --out.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Seed for --train, repeat for several; default: 1, 2 and 3.")
    ] = None,
    jobs: JobsOption = "auto",
    track: TrackOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enumerate hourglass shapes with the base's parameters, FLOPs or KV cache, ranked by their other costs.

    Costs say nothing about the loss: `--train 3 train.steps=500` finds out which of the first three is worth its cost,
    `--per n_blocks,ratio --train 20` how the loss depends on the ratio. Changes are made in the base and in all recipes
    found; with --train, --json prints the comparison.

    Example: `widthwise search configs/conventional_113m.yaml --n-blocks 1,2,4 --n-layers 6,12 --ratio 0.4,0.5`
    """
    from widthwise.experiments.compare import plan_of_search
    from widthwise.recipe.design import search_recipe, write_search

    result = search_recipe(base, overrides or (), space)
    summary = result.summary(max(top, train or 0))
    folder = out or Path("runs") / f"{recipe_name(base)}-search"
    recipes = write_search(base, overrides or (), summary, folder) if out or train else []
    if not as_json:
        say_tables(search_table(summary, recipe_name(base)))
        if recipes:
            say(f"wrote {len(recipes)} recipes to {recipes[0].parent}")
    elif train is None:
        say_json(summary)
    if train is not None:
        run_and_report(plan_of_search(summary, recipes[: 1 + train], seed or ()), folder, as_json, jobs, track=track)


def search_table(summary: dict[str, Any], base: str) -> Table:
    """The baseline and, below it, the candidates of a `SearchResult.summary` with the Pareto front marked."""
    n_found, n_kept, n_shown = summary["n_found"], summary["n_kept"], len(summary["candidates"])
    kept = f", the best of each {' and '.join(summary['per'])}: {n_kept}" if summary["per"] else ""
    budget = f"{summary['match']} {si(summary['budget'])}, within {100 * summary['tolerance']:g}%"
    rows = [["base", *[""] * len(SIZES), *_totals(summary["baseline"]), ""]]
    for row in summary["candidates"]:
        sizes = [read(row) for read in SIZES.values()]
        rows.append(["*" if row["is_pareto"] else "", *sizes, *_totals(row), f"{signed(100 * row['miss'], 2)}%"])
    return Table(
        f"{budget}: {n_found:,} found{kept}" + (f", the first {n_shown}" if n_shown < n_kept else ""),
        ["", *SIZES, "att.\nshare", *(each.brief_title for each in COSTS), "res.\nadds", "miss"],
        rows,
        note=f"* on the Pareto front of {', '.join(summary['costs'])}\n"
        f"base: {clean(base)}; forward FLOPs and bytes per token, at {summary['seq_len']:,} tokens",
    )


def _totals(row: dict[str, Any]) -> list[str]:
    """The share and costs of a candidate or of the baseline, a cell each."""
    share = fixed(row["attention_params"] / row["layer_params"], 2)
    return [share, *(shown(row[each.name], each) for each in COSTS), str(row["n_residual_additions"])]


class DiscoverOptions(Config):
    """Changes that `discover` makes to the recipe's discover section."""

    budget: str | None = None
    """Such as 30M: the uniform model is sized to it first; default: the recipe's."""
    match: str | None = None
    """What the budget is of: params, layer_params, active_params, flops, flops_causal, kv_bytes."""
    steps: int | None = Field(default=None, ge=1)
    """Training steps of the search; default: those of the recipe."""


def discover(
    recipe: Annotated[Path, typer.Argument(help="Recipe of the uniform model; a discover section says how to search.")],
    options: DiscoverOptions,
    overrides: Changes = None,
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
    as_json: JsonOption = False,
) -> None:
    """Find which layers should be wide, under a budget, and retrain what was found beside its rivals.

    Finished parts are not repeated: the same command continues an interrupted discovery. Changes may be of the search
    too, as discover.method.n_stages=4.

    Example: `widthwise discover configs/small.yaml --seed 1 --seed 2 --seed 3`
    """
    from widthwise.experiments.discover import COMPARISON, plan_discovery, plan_of_rivals
    from widthwise.experiments.discover import discover as discover_shape
    from widthwise.experiments.jobs import Jobs
    from widthwise.experiments.running import run_experiment
    from widthwise.records.outcome import Outcome
    from widthwise.reports.discovery import cost_table, gains_table, rivals_table, sentences, sizes_table
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.environment import command_line

    plan = plan_discovery(recipe, overrides or (), options.budget, options.steps, options.match, seed or ())
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
    comparison: Outcome | None = None
    with training_progress(track) as observer:
        alone = Jobs.of([plan.task.base], 1, 1)
        with alone.threads():
            discovery = discover_shape(plan, folder, observer, command_line())
        if not only_search:
            rivals = plan_of_rivals(folder)
            for line in (*rivals.adjustment_lines, rivals.in_words):
                observer.message(line)
            at_a_time = Jobs.of(rivals.recipes.values(), len(rivals.order), n_at_a_time)
            comparison = run_experiment(rivals, folder / COMPARISON, command_line(), observer, jobs=at_a_time)
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
