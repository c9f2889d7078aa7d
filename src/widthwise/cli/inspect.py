"""`widthwise inspect`: what a recipe's model costs, before anything is trained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from widthwise.bundled import recipe_name
from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import say_json, table_console
from widthwise.cli.variants import show_variants
from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_MODELS, QUANTITY
from widthwise.reports.page.formats import hidden_widths, shown
from widthwise.reports.page.table import Table

SIZES = ("layer", "d_model", "n_heads", "n_kv_heads", "head_dim")
COSTS = {
    "params": QUANTITY["params"],
    "forward_flops": QUANTITY["flops"],
    "kv_bytes": QUANTITY["kv_bytes"],
    "activation_bytes": QUANTITY["activation_bytes"],
}
"""Cost of a layer -> what it is called and how it is shown."""


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
    from widthwise.experiments.variants import describes_several, read_all, read_one
    from widthwise.recipe.inspection import inspect_recipe
    from widthwise.recipe.recipe import load_recipe

    changes = overrides or ()
    if variant is None and against is None and describes_several(recipe, changes):
        show_variants(read_all(recipe, changes).summary(), recipe_name(recipe), as_json)
        return
    other = None if against is None else load_recipe(against, changes)
    summary = inspect_recipe(read_one(recipe, changes, variant), other)
    if as_json:
        say_json(summary)
        return
    say_tables(layer_table(summary), cost_table(summary))
    console = table_console()
    for phase in summary.get("growth", ()):
        size, compute = f"{phase['params']:,} parameters", f"{phase['pflops_days']:.4g} PFLOP/s-days"
        console.print(f"after step {phase['step']:,}: {size} for {phase['n_tokens']:,} tokens, {compute}")
    console.print(f"training: {summary['n_tokens']:,} tokens, {summary['pflops_days']:.4g} PFLOP/s-days")


def layer_table(summary: dict[str, Any]) -> Table:
    """The sizes and costs of every layer, from an inspection."""
    rows = [
        [
            *(str(row[name]) for name in SIZES),
            hidden_widths(row["hidden_widths"]),
            *(shown(row[name], quantity) for name, quantity in COSTS.items()),
        ]
        for row in summary["layers"]
    ]
    header = [*SIZES, "FFN hidden", *(quantity.brief_title for quantity in COSTS.values())]
    return Table("layers (forward FLOPs and bf16 bytes per token)", header, rows)


def cost_table(summary: dict[str, Any]) -> Table:
    """The whole model next to its baseline, from an inspection. Parts that no model has are left out."""
    own = CostSummary.model_validate(summary)
    baseline = CostSummary.model_validate(summary["baseline"]) if "baseline" in summary else None
    header = ["", f"model\n{_kind(own)}", *([f"baseline\n{_kind(baseline)}", "ratio"] if baseline else [])]
    rows: list[list[str]] = []
    for quantity in OF_MODELS.values():
        value, other = quantity.read(own) or 0, (quantity.read(baseline) or 0) if baseline else 0
        if value or other:
            cells = [_exact(other), f"{value / other:.4f}" if other else "-"] if baseline else []
            rows.append([quantity.title, _exact(value), *cells])
    return Table("costs", header, rows)


def _kind(cost: CostSummary) -> str:
    """What kind of model it is: its residual, its shape, its further heads."""
    words = [cost.residual or "", "uniform" if cost.is_uniform else "shaped"]
    if cost.n_mtp_depths:
        words.append(f"mtp {cost.n_mtp_depths}")
    return "\n".join(words)


def _exact(value: float) -> str:
    return f"{value:,.2f}" if value % 1 else f"{value:,.0f}"
