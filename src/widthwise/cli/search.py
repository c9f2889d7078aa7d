"""The verb `search`: all hourglass shapes of one budget, by their costs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import PositiveInt

from widthwise.cli.experiment import WORKERS, TrainingOptions, run_and_report
from widthwise.cli.options import Changes, JsonOption, Seeds
from widthwise.cli.terminal import say, say_json, say_tables
from widthwise.config_io import Config
from widthwise.records.quantities import SHAPE_COSTS
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
