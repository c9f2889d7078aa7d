"""`widthwise grow`: a run -> the run of a larger model that computes the same."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from widthwise.cli.growth_result import show_growth
from widthwise.config_io import UserError


def grow(
    run: Annotated[Path, typer.Argument(help="Run directory; its newest good checkpoint is grown.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe, or to that of the run, as train.steps=2000.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Recipe of the larger model; the run's own where not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.")] = None,
    d_model: Annotated[
        int | None, typer.Option(min=1, help="Width of the run's own recipe; all widths grow in proportion.")
    ] = None,
    n_heads: Annotated[int | None, typer.Option(min=1, help="Heads of every layer; groups keep their size.")] = None,
    n_kv_heads: Annotated[int | None, typer.Option(min=1, help="Key-value heads of every layer.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, help="Size of every head.")] = None,
    d_ff: Annotated[
        int | None, typer.Option(min=1, help="Hidden units of every feed-forward, expert or block.")
    ] = None,
    add_layers: Annotated[int, typer.Option(min=0, max=10_000, help="Further layers, evenly among the others.")] = 0,
    layers: Annotated[
        str | None,
        typer.Option(help="For each layer the old one it comes from, as 0,1,new,2 (or null); added ones lie evenly."),
    ] = None,
    new_layers: Annotated[
        Literal["drawn", "copied"], typer.Option(help="Added layers, but for what must be 0: copies of those before?")
    ] = "drawn",
    reset: Annotated[
        Literal["none", "new", "all"],
        typer.Option(help="What the optimizer forgets: nothing, the size of new entries' gradients, or everything."),
    ] = "none",
    rewarmup_steps: Annotated[
        int | None,
        typer.Option(min=0, help="Steps over which all rates rise again from 0; those the optimizer looks back."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of what is drawn.")] = 0,
    allow_change: Annotated[
        bool, typer.Option("--allow-change", help="Take constants from the recipe, though the function changes.")
    ] = False,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Say what would be done; read no weights.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make the model of a run larger without changing what it computes, and go on from there with `resume`.

    Example: `widthwise grow runs/small --d-model 96 --n-heads 6 --d-ff 264 --add-layers 2 train.steps=4000 --out
    runs/large`, or `--to configs/large.yaml` in place of the sizes.
    """
    from rich.console import Console

    from widthwise.cli.progress import shown_progress
    from widthwise.growth.resized import NewSizes
    from widthwise.runs.conversion import carry_out
    from widthwise.runs.grow import GrowOptions, growth_intended, wanted_recipe
    from widthwise.runs.source import Source

    if out is None and not plan_only:
        raise UserError("--out: is required, unless --plan-only is given")
    options = GrowOptions(_sources(layers), new_layers, reset, seed, allow_change, rewarmup_steps)
    sizes = NewSizes(d_model, n_heads, n_kv_heads, head_dim, d_ff, add_layers)
    source = Source.of(run)
    intention = growth_intended(source, wanted_recipe(source, to, overrides or (), sizes), options)
    if out is None or plan_only:
        show_growth(intention.record(), as_json)
        return
    with shown_progress(Console(stderr=True)) as observer:
        found = carry_out(source, intention, out, observer)
    show_growth(found, as_json)


def _sources(text: str | None) -> tuple[int | None, ...] | None:
    """ "0,1,new,2" -> the old layers, None for one that is added."""
    if text is None:
        return None
    words = ["new" if word.strip() == "null" else word.strip() for word in text.split(",")]
    if not all(word == "new" or (word.isdecimal() and len(word) < 6) for word in words):
        raise UserError(f"--layers: got {text!r}; expected numbers of layers and new, as 0,1,new,2")
    return tuple(None if word == "new" else int(word) for word in words)
