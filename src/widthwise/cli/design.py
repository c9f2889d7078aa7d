"""Verbs before training: recipes to start from, the costs of models, and shapes for a budget."""

import os
import shutil
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from widthwise.cli.options import Changes, JsonOption, RecipeArgument, VariantOption
from widthwise.cli.terminal import say, say_json, say_next, say_next_with_out, say_result
from widthwise.config_io import Config
from widthwise.files import new_folder
from widthwise.mistakes import UserError
from widthwise.records.quantities import QUANTITY, SHAPE_COSTS
from widthwise.reports.formats import clean, fixed, shown
from widthwise.reports.table import Table
from widthwise.reports.tables import budget_lines, inspection_costs, inspection_layers
from widthwise.shape.search_space import ShapeRequest
from widthwise.training.launch import Interrupted
from widthwise.yaml_io import recipes_folder

DEFAULT_PORT = 8520
COSTS = [*SHAPE_COSTS, *(QUANTITY[name] for name in ("active_params", "tokens", "training_flops"))]
"""Columns of the table of `inspect` for a recipe with several variants or points."""


def init(folder: Annotated[Path, typer.Argument(help="New folder for the recipes.")] = Path("configs")) -> None:
    """Copy recipes to start from into a folder.

    Commands also accept the names of bundled recipes, without a copy: `widthwise inspect x_200m`.

    Example: `widthwise init && widthwise compare configs/quickstart.yaml`
    """
    recipes = [*recipes_folder().glob("*.yaml")]
    with new_folder(folder) as partial:
        for recipe in recipes:
            shutil.copy(recipe, partial)
    say(
        f"wrote {len(recipes)} recipes to {folder}",
        f"  widthwise inspect {folder / 'x_200m.yaml'}    what a model costs, layer by layer",
        f"  widthwise train {folder / 'smoke.yaml'}    a first run, in seconds",
        f"  widthwise compare {folder / 'quickstart.yaml'}    five kinds of width at equal size, in minutes",
    )


def schema() -> None:
    """Print the JSON schema of recipes. With it, editors complete keys, explain them and mark mistakes.

    Example: `widthwise schema > recipe.schema.json`, then `# yaml-language-server: $schema=recipe.schema.json` as the
    first line of a recipe.
    """
    from widthwise.experiments.recipes import recipe_schema

    say_json(recipe_schema())


def inspect(
    recipe: RecipeArgument,
    overrides: Changes = None,
    against: Annotated[Path | None, typer.Option(help="Recipe of the baseline; default: uniform or plain.")] = None,
    variant: VariantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show widths, heads, parameters, FLOPs, KV and activation bytes per layer, and their ratios to a baseline.

    The baseline of a shape is the uniform model it matches; the baseline of a uniform model has the same layers, a
    plain residual and no multi-token prediction. Overrides also apply to --against. For a recipe with a compare or
    sweep section, a table shows all variants or points.

    Example: `widthwise inspect configs/x_200m.yaml`
    """
    from widthwise.recipe.inspection import inspect_recipe
    from widthwise.recipe.recipe import describes_several, load_recipe, parse_recipe
    from widthwise.yaml_io import read_recipe

    changes = overrides or ()
    data = read_recipe(recipe, changes)
    if variant is None and against is None and describes_several(data):
        from widthwise.experiments.recipes import read_all

        plan = read_all(recipe, changes)
        workload = plan.workload(n_runs=1)
        notes = list(plan.notes)
        if workload["n_drawn"]:
            notes.append(f"{workload['n_drawn']} further points are drawn when the sweep runs")
        say_result(workload, as_json, (), [_costs_table(workload)], notes=notes)
        return
    baseline = None if against is None else load_recipe(against, changes)
    if variant is None:
        inspected = parse_recipe(data, str(recipe))
    else:
        from widthwise.experiments.recipes import read_one

        inspected = read_one(recipe, changes, variant)
    summary = inspect_recipe(inspected, baseline)
    notes = []
    if "chosen_flops" in summary:
        costs = ", ".join(f"{name} {flops:,.0f}" for name, flops in summary["chosen_flops"].items())
        notes.append(f"forward FLOPs per token at the widths that tokens can choose: {costs}")
    for phase in summary.get("growth", ()):
        compute = f"{phase['n_tokens']:,} tokens, {phase['pflops_days']:.4g} PFLOP/s-days"
        notes.append(f"after step {phase['step']:,}: {phase['params']:,} parameters for {compute}")
    precision = ", in the faster precision of its machine" if inspected.train.precision == "auto" else ""
    notes.append(f"training: {summary['n_tokens']:,} tokens, {summary['pflops_days']:.4g} PFLOP/s-days{precision}")
    say_result(
        summary, as_json, budget_lines(summary), [inspection_layers(summary), inspection_costs(summary)], notes=notes
    )


def _costs_table(workload: dict[str, Any]) -> Table:
    """Return a table with a row for each point: all COSTS, and below them their ratios to the baseline.

    workload: of `experiments.plan.Plan`.
    """
    rows = []
    for row in workload["points"]:
        cells = [shown(row[cost.name], cost) for cost in COSTS]
        if row["ratio"] is not None:
            cells = [f"{cell}\n{fixed(row['ratio'][cost.name], 4)}" for cell, cost in zip(cells, COSTS)]
        rows.append([clean(row["name"]), *cells])
    note = "FLOPs and bytes per token, tokens and training FLOPs of one run"
    if workload["baseline"] is not None:
        note += f"\nbelow: ratio to {clean(workload['baseline'])}"
    header = [cost.brief_title for cost in COSTS]
    return Table(clean(workload["title"]), ["", *header], rows, note=note)


def design(
    base: Annotated[Path, typer.Argument(help="Recipe of the uniform model whose cost the shape matches.")],
    request: ShapeRequest,
    overrides: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the recipe; default: print it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Solve a shape with the cost of the uniform model, and write it as a recipe that extends the base.

    Example: `widthwise design configs/uniform_200m.yaml --kind x --turn-layer 0.75 --turn-width 0.3 --out mine.yaml`
    """
    from widthwise.recipe.design import design_recipe

    text, summary = design_recipe(base, request, overrides or (), out)
    say_result(summary, as_json, budget_lines(summary), [inspection_layers(summary), inspection_costs(summary)])
    if as_json:
        return
    if out is None:
        say(text)
        say_next_with_out("RECIPE")
    else:
        say(f"wrote {out}")
        say_next("widthwise", "train", out)


class ExploreOptions(Config):
    """Options of `explore`."""

    port: Annotated[int, Field(ge=0, lt=2**16)] | None = None
    """Port on this machine, 0 for any; default: 8520, or any if it is taken."""
    no_browser: bool = False
    """Print the address without opening a browser."""


def explore(recipe: RecipeArgument, options: ExploreOptions, overrides: Changes = None) -> None:
    """Explore a shape on a local page with sliders: widths, costs and memory follow.

    The page shows the numbers of `inspect`, `design` and `plan`. It opens only on this machine, until Ctrl-C. Its
    address contains the settings, and a button shows the recipe.

    Example: `widthwise explore configs/x_200m.yaml`
    """
    from widthwise.explorer.server import Answers, ExplorerServer

    answers = Answers(recipe, overrides or ())
    try:
        server = ExplorerServer(answers, DEFAULT_PORT if options.port is None else options.port)
    except OSError as error:
        if options.port is not None:
            raise UserError(f"--port: got {options.port}; {error.strerror}; 0 picks any free port") from None
        server = ExplorerServer(answers)
    with server:
        say(f"{server.url} (Ctrl-C to stop)")
        sys.stdout.flush()
        # Without a screen, webbrowser may start a text browser in this terminal.
        has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        has_screen = sys.platform in ("darwin", "win32") or has_display
        if has_screen and not options.no_browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except Interrupted:
            say("stopped")
