"""`widthwise inspect`: what a recipe's model costs, before anything is trained."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.terminal import say_json, table_console


def inspect(
    recipe: Annotated[Path, typer.Argument(help="Recipe, such as configs/x_200m.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes, such as model.n_layers=12.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Recipe to compare with; default: the uniform or plain model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show widths, heads, parameters, FLOPs, KV and activation bytes per layer, compared with a baseline.

    For a shape the baseline is the uniform model it is matched to; for a uniform model, the same layers with a plain
    residual and without multi-token prediction.

    Example: `widthwise inspect configs/x_200m.yaml`
    """
    from widthwise.cli.tables import cost_table, layer_table
    from widthwise.recipe.inspection import inspect_recipe
    from widthwise.recipe.recipe import load_recipe

    summary = inspect_recipe(load_recipe(recipe, overrides), None if against is None else load_recipe(against))
    if as_json:
        say_json(summary)
        return
    console = table_console()
    console.print(layer_table(summary))
    console.print(cost_table(summary))
    for phase in summary.get("growth", ()):
        size, compute = f"{phase['params']:,} parameters", f"{phase['pflops_days']:.4g} PFLOP/s-days"
        console.print(f"after step {phase['step']:,}: {size} for {phase['n_tokens']:,} tokens, {compute}")
    console.print(f"training: {summary['n_tokens']:,} tokens, {summary['pflops_days']:.4g} PFLOP/s-days")
