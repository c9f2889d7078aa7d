"""`widthwise inspect`: what a recipe's model costs, before anything is trained."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.bundled import recipe_name
from widthwise.cli.experiment import show_costs
from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import say_json, table_console
from widthwise.reports.page.inspection import cost_table, layer_table


def inspect(
    recipe: Annotated[Path, typer.Argument(help="Recipe, such as configs/x_200m.yaml.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes, such as model.n_layers=12; they are made in the recipe of --against too."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Recipe to compare with; default: the uniform or plain model.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="One variant or point of a recipe with a compare or sweep section.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show widths, heads, parameters, FLOPs, KV and activation bytes per layer, compared with a baseline.

    For a shape the baseline is the uniform model it is matched to; for a uniform model, the same layers with a plain
    residual and without multi-token prediction. A recipe with a compare or sweep section gives a table of all its
    variants or points.

    Example: `widthwise inspect configs/x_200m.yaml`
    """
    from widthwise.experiments.recipes import describes_several, read_all, read_one
    from widthwise.recipe.inspection import inspect_recipe
    from widthwise.recipe.recipe import load_recipe

    changes = overrides or ()
    if variant is None and against is None and describes_several(recipe, changes):
        plan, refusal = read_all(recipe, changes)
        show_costs(plan.costs(refusal), recipe_name(recipe), as_json)
        return
    other = None if against is None else load_recipe(against, changes)
    one = read_one(recipe, changes, variant)
    summary = inspect_recipe(one, other)
    if as_json:
        say_json(summary)
        return
    say_tables(layer_table(summary), cost_table(summary))
    console = table_console()
    if "chosen_flops" in summary:
        at = ", ".join(f"{name} {flops:,.0f}" for name, flops in summary["chosen_flops"].items())
        console.print(f"forward FLOPs per token at the widths that tokens can choose: {at}")
    for phase in summary.get("growth", ()):
        size, compute = f"{phase['params']:,} parameters", f"{phase['pflops_days']:.4g} PFLOP/s-days"
        console.print(f"after step {phase['step']:,}: {size} for {phase['n_tokens']:,} tokens, {compute}")
    chosen = ", in the precision that is faster where it starts" if one.train.precision == "auto" else ""
    console.print(f"training: {summary['n_tokens']:,} tokens, {summary['pflops_days']:.4g} PFLOP/s-days{chosen}")
