"""`widthwise grow`: a run -> the run of a larger model that computes the same function."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from widthwise.cli.growth_result import show_growth
from widthwise.cli.step_option import StepOption
from widthwise.cli.terminal import progress_console
from widthwise.config_io import UserError


def grow(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe of the run, or of --to, such as train.steps=2000.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Recipe of the larger model; default: the run's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.")] = None,
    d_model: Annotated[
        int | None, typer.Option(min=1, help="New d_model for the run's own recipe; all widths grow in proportion.")
    ] = None,
    n_heads: Annotated[
        int | None, typer.Option(min=1, help="Heads of every layer; key-value groups keep their size.")
    ] = None,
    n_kv_heads: Annotated[int | None, typer.Option(min=1, help="Key-value heads of every layer.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, help="Size of every head.")] = None,
    d_ff: Annotated[
        int | None, typer.Option(min=1, help="Hidden units of every feed-forward, expert or block.")
    ] = None,
    add_layers: Annotated[int, typer.Option(min=0, max=10_000, help="Number of layers to add, spread evenly.")] = 0,
    layers: Annotated[
        str | None,
        typer.Option(
            help="For each layer the old one it comes from, such as 0,1,new,2; default: added layers spread evenly."
        ),
    ] = None,
    new_layers: Annotated[
        Literal["drawn", "copied", "stacked", "duplicated"],
        typer.Option(
            help="Draw added layers anew, or copy the layer before (except what must be 0); with --allow-change whole "
            "copies behind all layers, or behind each."
        ),
    ] = "drawn",
    zero_side: Annotated[
        Literal["outputs", "inputs"],
        typer.Option(help="Of two new factors, which starts at 0: w_down, w_o and w_k, or w_up, w_v and w_q."),
    ] = "outputs",
    new_std: Annotated[
        str | None,
        typer.Option(
            metavar="STD", help="Of new weights that are drawn: a number, or initial; default: that of the old entries."
        ),
    ] = None,
    new_weights: Annotated[
        Literal["drawn", "gradmax", "copied"],
        typer.Option(help="Draw new hidden units, choose them for the largest gradient on the next batch, or copy."),
    ] = "drawn",
    reset: Annotated[
        Literal["none", "new", "all"],
        typer.Option(help="Optimizer state to reset: none, the second moments of new entries, or all."),
    ] = "none",
    rewarmup_steps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Steps over which learning rates rise again from 0; default: the horizon of the optimizer's averages.",
        ),
    ] = None,
    rewarmup_of: Annotated[
        Literal["all", "new"], typer.Option(help="Whose learning rates rise again: all, or those of new entries.")
    ] = "all",
    freeze_steps: Annotated[int, typer.Option(min=0, help="Steps in which old entries stay as they are.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed for new weights.")] = 0,
    allow_change: Annotated[
        bool, typer.Option("--allow-change", help="Take constants from the recipe, although the function changes.")
    ] = False,
    step: StepOption = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Say what would be done, without reading weights.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a run's model larger without changing what it computes; `resume` continues training from there.

    Example: `widthwise grow runs/small --d-model 96 --n-heads 6 --d-ff 264 --add-layers 2 train.steps=4000 --out
    runs/large`, or `--to configs/large.yaml` instead of the sizes.
    """
    from widthwise.cli.progress import shown_progress
    from widthwise.growth.resized import NewSizes
    from widthwise.runs.conversion import carry_out
    from widthwise.runs.grow import GrowOptions, growth_intended, wanted_recipe
    from widthwise.runs.trained import Source

    if out is None and not plan_only:
        raise UserError("--out: is required, unless --plan-only is given")
    options = GrowOptions(
        layers=_sources(layers),
        new_layers=new_layers,
        zero_side=zero_side,
        new_std=_std(new_std),
        new_weights=new_weights,
        reset=reset,
        seed=seed,
        allow_change=allow_change,
        rewarmup_steps=rewarmup_steps,
        rewarmup_of=rewarmup_of,
        freeze_steps=freeze_steps,
    )
    sizes = NewSizes(d_model, n_heads, n_kv_heads, head_dim, d_ff, add_layers)
    source = Source.of(run, step)
    intention = growth_intended(source, wanted_recipe(source, to, overrides or (), sizes), options)
    if out is None or plan_only:
        show_growth(intention.record(), as_json)
        return
    with shown_progress(progress_console()) as observer:
        found = carry_out(source, intention, out, observer)
    show_growth(found, as_json)


def _sources(text: str | None) -> tuple[int | None, ...] | None:
    """ "0,1,new,2" -> the old layers, None for an added one."""
    if text is None:
        return None
    words = ["new" if word.strip() == "null" else word.strip() for word in text.split(",")]
    if not all(word == "new" or (word.isdecimal() and len(word) < 6) for word in words):
        raise UserError(f"--layers: got {text!r}; expected numbers of layers and new, as 0,1,new,2")
    return tuple(None if word == "new" else int(word) for word in words)


def _std(text: str | None) -> float | Literal["initial"] | None:
    """ "0.02" -> 0.02; "initial" and None stay."""
    if text is None or text == "initial":
        return text
    try:
        std = float(text)
    except ValueError:
        std = math.nan
    if not 0 < std < math.inf:
        raise UserError(f"--new-std: got {text!r}; must be a number above 0, or initial")
    return std
