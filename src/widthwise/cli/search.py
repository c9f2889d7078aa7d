"""Verbs that find a shape for a budget: by the costs of all shapes, or by training."""

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import PositiveInt

from widthwise.cli.experiment import WORKERS, TrainingOptions, run_and_report
from widthwise.cli.options import Changes, JsonOption, Seeds
from widthwise.cli.progress import training_progress
from widthwise.cli.terminal import say, say_json, say_result, say_tables
from widthwise.config_io import Config
from widthwise.records.outcome import Outcome
from widthwise.records.quantities import SHAPE_COSTS
from widthwise.reports.formats import TIMES, clean, fixed, hidden_widths, shown, si, signed
from widthwise.reports.table import Table
from widthwise.runs.environment import command_line
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
"""Title -> function that returns the cell of a candidate."""


class SearchOptions(Config):
    """Numbers of shapes to show, write and train."""

    top: PositiveInt = 20
    """Number of shapes to show and write."""
    out: Path | None = None
    """Folder for search.json and recipes that extend the base."""
    train: PositiveInt | None = None
    """Train this many of the first and compare them with the base, in --out."""
    seeds: Seeds = ()
    """Seed for --train, repeat for several; default: 1, 2 and 3."""


def search(
    base: Annotated[Path, typer.Argument(help="Recipe of the baseline, whose model sets the budget.")],
    space: Annotated[SearchSpace, "What to search"],
    options: SearchOptions,
    training: Annotated[TrainingOptions, WORKERS],
    overrides: Changes = None,
    as_json: JsonOption = False,
) -> None:
    """Enumerate hourglass shapes with the base's parameters, FLOPs or KV cache, ranked by their other costs.

    Costs do not determine the loss: `--train 3 train.steps=500` shows which of the first three is worth its cost, and
    `--per n_blocks,ratio --train 20` shows the loss over the ratio. Changes apply to the base and to all recipes; with
    --train, --json prints the comparison.

    Example: `widthwise search conventional_113m --n-blocks 1,2,4 --n-layers 6,12 --ratio 0.4,0.5`
    """
    from widthwise.experiments.compare import plan_of_search
    from widthwise.recipe.design import search_recipe, write_search

    result = search_recipe(base, overrides or (), space)
    n_trained = options.train or 0
    summary = result.summary(max(options.top, n_trained))
    folder = options.out or Path("runs") / f"{recipe_name(base)}-search"
    recipes = write_search(base, overrides or (), summary, folder) if options.out or n_trained else []
    if not as_json:
        say_tables(_search_table(summary, recipe_name(base)))
        if recipes:
            say(f"wrote {len(recipes)} recipes to {recipes[0].parent}")
    elif not n_trained:
        say_json(summary)
    if n_trained:
        run_and_report(plan_of_search(summary, recipes[: 1 + n_trained], options.seeds), folder, as_json, training)


def _search_table(summary: dict[str, Any], base: str) -> Table:
    """Return the baseline, then the candidates of a `SearchResult.summary`, with the Pareto front marked."""
    n_shown = len(summary["candidates"])
    title = f"{summary['match']} {si(summary['budget'])}, within {100 * summary['tolerance']:g}%: "
    title += f"{summary['n_found']:,} found"
    if summary["per"]:
        title += f", the best of each {' and '.join(summary['per'])}: {summary['n_kept']}"
    if n_shown < summary["n_kept"]:
        title += f", the first {n_shown}"
    rows = []
    for row in (summary["baseline"], *summary["candidates"]):
        if row is summary["baseline"]:
            cells = ["base", *[""] * len(SIZES), ""]
        else:
            mark = "*" if row["is_pareto"] else ""
            cells = [mark, *(read(row) for read in SIZES.values()), f"{signed(100 * row['miss'], 2)}%"]
        costs = [shown(row[cost.name], cost) for cost in SHAPE_COSTS]
        share = fixed(row["attention_params"] / row["layer_params"], 2)
        rows.append([*cells, share, *costs, str(row["n_residual_additions"])])
    return Table(
        title,
        ["", *SIZES, "miss", "att.\nshare", *(cost.brief_title for cost in SHAPE_COSTS), "res.\nadds"],
        rows,
        note=f"* on the Pareto front of {', '.join(summary['costs'])}\n"
        f"base: {clean(base)}; forward FLOPs and bytes per token, at {summary['seq_len']:,} tokens",
        n_essential=len(SIZES) + 3,
    )


class DiscoverOptions(Config):
    """Changes that `discover` makes to the recipe's discover section."""

    budget: str | None = None
    """Such as 30M: the uniform model is sized to it first; default: the recipe's."""
    match: str | None = None
    """Quantity of the budget: params, layer_params, active_params, flops, flops_causal, kv_bytes."""
    steps: PositiveInt | None = None
    """Training steps of the search; default: those of the recipe."""
    seeds: Seeds = ()
    """Seed of the comparison, repeat for several; default: 1, 2 and 3."""
    only_search: bool = False
    """Do not train the rivals; rivals.yaml says how to."""
    out: Path | None = None
    """Folder; default: runs/RECIPE-discovery."""
    dry_run: bool = False
    """Say what would be searched, and train nothing."""


def discover(
    recipe: Annotated[Path, typer.Argument(help="Recipe of the uniform model; a discover section says how to search.")],
    options: DiscoverOptions,
    training: Annotated[TrainingOptions, WORKERS],
    overrides: Changes = None,
    as_json: JsonOption = False,
) -> None:
    """Find which layers should be wide under a budget, and retrain the result against its rivals.

    Finished parts are not repeated: the same command continues an interrupted discovery. Changes may be of the search
    too, as discover.method.n_stages=4.

    Example: `widthwise discover configs/small.yaml --seed 1 --seed 2 --seed 3`
    """
    from widthwise.experiments.compare import read_plan
    from widthwise.experiments.discover import COMPARISON, plan_discovery
    from widthwise.experiments.discover import discover as discover_shape
    from widthwise.experiments.jobs import Jobs
    from widthwise.experiments.running import jobs_of, run_experiment
    from widthwise.reports.discovery import gains_table, rivals_table, sentences, sizes_table
    from widthwise.reports.writing import check_kind, write_report

    plan = plan_discovery(recipe, overrides or (), options.budget, options.steps, options.match, options.seeds)
    folder = options.out or Path("runs") / f"{recipe_name(recipe)}-discovery"
    check_kind(folder, "discovery.json")
    n_at_a_time = training.n_jobs
    if options.dry_run:
        planned = plan.search
        say(
            f"{plan.config.method.kind}: {planned.steps} steps of search under {si(planned.budget)} {planned.match}; "
            f"then rivals of {planned.base.train.steps} steps with the seeds {', '.join(map(str, plan.config.seeds))}"
        )
        return
    comparison: Outcome | None = None
    with training_progress(training.track) as observer:
        alone = Jobs.of([plan.search.base], 1, 1)
        with alone.threads():
            discovery = discover_shape(plan, folder, observer, command_line())
        if not options.only_search:
            rivals = read_plan(folder / "rivals.yaml")
            for line in (*rivals.adjustment_lines, rivals.in_words):
                observer.message(line)
            jobs = jobs_of(rivals, n_at_a_time)
            comparison = run_experiment(rivals, folder / COMPARISON, command_line(), observer, jobs)
            write_report([folder / COMPARISON])
    tables = [sizes_table(discovery), gains_table(discovery)]
    if comparison is not None:
        tables.append(rivals_table(discovery, comparison))
    files = reversed(write_report([folder]))  # the page comes last
    say_result(discovery, as_json, sentences(discovery, comparison), tables, files)
