"""`widthwise design`: solve a shape for a budget and write a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import say, say_json, say_next, say_next_with_out
from widthwise.reports.page.inspection import budget_line, cost_table, layer_table


def design(
    base: Annotated[Path, typer.Argument(help="Recipe of the uniform model whose cost the shape matches.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to it, such as model.n_layers=12.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the recipe; default: print it.")] = None,
    kind: Annotated[str, typer.Option(help="x, diamond, growing, narrowing, or uniform.")] = "x",
    turn_layer: Annotated[
        float | None, typer.Option(help="Depth of the narrowest (or widest) layer, as a share of n_layers.")
    ] = None,
    turn_width: Annotated[float | None, typer.Option(help="Width of that layer, as a share of d_model.")] = None,
    quantum: Annotated[int | None, typer.Option(help="Widths are multiples of this.")] = None,
    match: Annotated[
        str,
        typer.Option(
            help="What to match: params, layer_params (attention and feed-forward), active_params, flops, flops_causal "
            "or kv_bytes."
        ),
    ] = "params",
    rounding: Annotated[
        str, typer.Option(help="nearest (the paper's) or balanced (closer to the budget).")
    ] = "balanced",
    budget: Annotated[
        str | None,
        typer.Option(help="Size the model first, to the nearest: 30M parameters, 2G FLOPs, ..."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the inspection as JSON.")] = False,
) -> None:
    """Solve a shape whose cost equals the uniform model's, and write it as a recipe that extends the base.

    Example: `widthwise design configs/uniform_200m.yaml --kind x --turn-layer 0.75 --turn-width 0.3 --out mine.yaml`
    """
    from widthwise.recipe.design import ShapeRequest, design_recipe

    request = ShapeRequest(kind, turn_layer, turn_width, quantum, match, rounding, budget)
    text, summary = design_recipe(base, request, overrides or (), out)
    if as_json:
        say_json(summary)
    else:
        say_tables(layer_table(summary), cost_table(summary))
        if "budget" in summary:
            say(budget_line(summary["budget"]))
        if out is None:
            say(text)
            say_next_with_out("RECIPE")
        else:
            say(f"wrote {out}")
            say_next("widthwise", "train", out)
