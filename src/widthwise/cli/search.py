"""`widthwise search`: every shape at one budget, and its other costs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from widthwise.bundled import recipe_name
from widthwise.cli.compare import run_and_report
from widthwise.cli.experiment import JobsOption
from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import say, say_json
from widthwise.cli.track import TrackOption
from widthwise.config_io import UserError, parse
from widthwise.records.quantities import QUANTITY
from widthwise.reports.page.formats import TIMES, clean, fixed, hidden_widths, shown, si, signed
from widthwise.reports.page.table import Table

WHERE, LIMITS, RESULT = "What to search", "Limits", "Results"
LONGEST_SPAN = 10_000
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
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to it and to all recipes found, such as train.steps=200.")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(help="layer_params (what the paper counts), params, flops, flops_causal, kv_bytes."),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Such as 113M or 2.5G; default: that of the base.")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest relative miss of the budget; default: 0.001, on the hardware grid 0.01."),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(rich_help_panel=WHERE, help="paper, or hardware (multiples of 128 and 64, head_dim 64 or 128)."),
    ] = None,
    n_heads: Annotated[
        int | None,
        typer.Option(rich_help_panel=WHERE, help="Heads of every shape; default: the base's rule."),
    ] = None,
    head_dim: Annotated[
        int | None, typer.Option(rich_help_panel=WHERE, help="Head size of every shape, instead of --n-heads.")
    ] = None,
    attention_ratio: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=WHERE, help="Target n_heads * head_dim / d_model, such as 0.5,1,1.5; default: the base's."
        ),
    ] = None,
    n_blocks: Annotated[
        str | None, typer.Option(rich_help_panel=WHERE, help="Blocks per feed-forward, such as 1,2,4; default: 2,4.")
    ] = None,
    n_layers: Annotated[
        str | None,
        typer.Option(rich_help_panel=WHERE, help="Such as 6,12 or 8..16; default: every depth within --aspect."),
    ] = None,
    ratio: Annotated[
        str | None,
        typer.Option(rich_help_panel=WHERE, help="Target d_hidden / d_model; default: 0.4,0.5,0.6,0.75."),
    ] = None,
    aspect: Annotated[
        str | None,
        typer.Option(rich_help_panel=LIMITS, help="d_model / n_layers; default: 100..250 without --n-layers."),
    ] = None,
    ratio_range: Annotated[
        str | None, typer.Option(rich_help_panel=LIMITS, help="d_hidden / d_model after rounding, such as 0.3..0.8.")
    ] = None,
    max_flops: Annotated[
        float | None, typer.Option(rich_help_panel=LIMITS, help="Forward FLOPs per token, such as 5e8.")
    ] = None,
    max_kv_bytes: Annotated[
        float | None, typer.Option(rich_help_panel=LIMITS, help="KV-cache bytes per token.")
    ] = None,
    max_residual_additions: Annotated[
        int | None, typer.Option(rich_help_panel=LIMITS, help="Sublayers in sequence: n_layers * (1 + n_blocks).")
    ] = None,
    rank_by: Annotated[
        str | None,
        typer.Option(rich_help_panel=RESULT, help="flops, kv_bytes, params, activation_bytes or n_residual_additions."),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=RESULT,
            help="Keep only the best of each n_blocks, n_layers or ratio, or combination: n_blocks,ratio.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(rich_help_panel=RESULT, min=1, help="How many shapes to show and write.")] = 20,
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=RESULT, help="Folder for search.json and recipes that extend the base."),
    ] = None,
    train: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=RESULT, min=1, help="Train this many of the first and compare them with the base, in --out."
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(rich_help_panel=RESULT, help="Seed for --train, repeat for several; default: 1, 2 and 3."),
    ] = None,
    jobs: JobsOption = "auto",
    track: TrackOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=RESULT, help="Print JSON; with --train, the comparison.")
    ] = False,
) -> None:
    """Enumerate hourglass shapes with the base's parameters, FLOPs or KV cache, ranked by their other costs.

    Costs say nothing about the loss: `--train 3 train.steps=500` finds out which of the first three is worth its cost,
    `--per n_blocks,ratio --train 20` how the loss depends on the ratio.

    Example: `widthwise search configs/conventional_113m.yaml --n-blocks 1,2,4 --n-layers 6,12 --ratio 0.4,0.5`
    """
    from widthwise.experiments.compare import plan_of_search
    from widthwise.recipe.design import parse_quantity
    from widthwise.recipe.search import search_recipe, write_search
    from widthwise.shape.search_space import SearchSpace

    asked = {
        "match": match,
        "budget": budget and parse_quantity(budget),
        "tolerance": tolerance,
        "grid": grid,
        "n_heads": n_heads,
        "head_dim": head_dim,
        "attention_ratio": attention_ratio and _numbers("--attention-ratio", attention_ratio, ","),
        "n_blocks": n_blocks and whole_numbers("--n-blocks", n_blocks),
        "n_layers": n_layers and whole_numbers("--n-layers", n_layers),
        "ratio": ratio and _numbers("--ratio", ratio, ","),
        "aspect": aspect and _numbers("--aspect", aspect, ".."),
        "ratio_range": ratio_range and _numbers("--ratio-range", ratio_range, ".."),
        "max_flops": max_flops,
        "max_kv_bytes": max_kv_bytes,
        "max_residual_additions": max_residual_additions,
        "rank_by": rank_by,
        "per": per and [name.strip() for name in per.split(",")],
    }
    given = {name: value for name, value in asked.items() if value is not None}
    result = search_recipe(base, overrides or [], parse(SearchSpace, given, "search"))
    summary = result.summary(max(top, train or 0))
    folder = out or Path("runs") / f"{recipe_name(base)}-search"
    recipes = write_search(base, overrides or [], summary, folder) if out or train else []
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


def whole_numbers(option: str, text: str) -> list[int]:
    """ "2,4" or "8..12,16" -> the numbers, those of a span with both its ends."""
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            span = range(int(first), (int(last) if dots else int(first)) + 1)
            if not 0 < span.stop - span.start <= LONGEST_SPAN:
                raise ValueError
            numbers += span
    except ValueError:
        raise UserError(f"{option}: got {text!r}; expected whole numbers such as 2,4 or 8..16") from None
    return numbers


def _numbers(option: str, text: str, separator: str) -> list[float]:
    try:
        return [float(part) for part in text.split(separator)]
    except ValueError:
        example = separator.join(("0.4", "0.8"))
        raise UserError(f"{option}: got {text!r}; expected numbers such as {example}") from None
