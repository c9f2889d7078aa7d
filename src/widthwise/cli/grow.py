"""Verbs that change a run's model without changing what it computes: `grow`, `bake` and `pad`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from widthwise.cli.options import Changes, JsonOption, RunArgument, StepOption
from widthwise.cli.progress import shown_progress
from widthwise.cli.terminal import progress_console, say, say_json, say_next, say_next_with_out
from widthwise.config_io import UserError
from widthwise.growth.choices import GrowOptions, Multiples, NewSizes

if TYPE_CHECKING:
    from widthwise.runs.conversion import Intention
    from widthwise.runs.trained import RunCheckpoint


def grow(
    run: RunArgument,
    sizes: NewSizes,
    options: Annotated[GrowOptions, "Advanced"],
    overrides: Changes = None,
    to: Annotated[Path | None, typer.Option(help="Recipe of the larger model; default: the run's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new run.")] = None,
    step: StepOption = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Say what would be done, without reading weights.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a run's model larger without changing what it computes; `resume` continues training from there.

    Changes are made in the recipe of the run, or of --to.

    Example: `widthwise grow runs/small --d-model 96 --n-heads 6 --d-ff 264 --add-layers 2 train.steps=4000 --out
    runs/large`, or `--to configs/large.yaml` instead of the sizes.
    """
    from widthwise.runs.grow import growth_intended, wanted_recipe
    from widthwise.runs.trained import RunCheckpoint

    if out is None and not plan_only:
        raise UserError("--out: is required, unless --plan-only is given")
    source = RunCheckpoint.of(run, step)
    intention = growth_intended(source, wanted_recipe(source, to, overrides or (), sizes), options)
    if out is None or plan_only:
        _show(intention.record(), as_json)
    else:
        _carry_out(source, intention, out, as_json)


def bake(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="Folder of the new run.")],
    one_eps: Annotated[
        bool,
        typer.Option("--one-eps", help="Leave the eps of norms alone, for formats with one eps for the whole model."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fold the constants that growth kept into the weights, so that attention scale and norms are the usual ones.

    Example: `widthwise bake runs/large --out runs/large-baked`
    """
    from widthwise.runs.grow import bake_intended
    from widthwise.runs.trained import RunCheckpoint

    source = RunCheckpoint.of(run)
    _carry_out(source, bake_intended(source, one_eps), out, as_json)


def pad(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="Folder of the new run.")],
    multiples: Multiples,
    as_json: JsonOption = False,
) -> None:
    """Round sizes up for kernels and tensor parallelism, with entries that are 0 and do not learn (those of `grow` do).

    Example: `widthwise pad runs/large --d-ff-multiple 64 --out runs/large-padded`
    """
    from widthwise.runs.grow import pad_intended
    from widthwise.runs.trained import RunCheckpoint

    source = RunCheckpoint.of(run)
    _carry_out(source, pad_intended(source, multiples), out, as_json)


def _carry_out(source: "RunCheckpoint", intention: "Intention", out: Path, as_json: bool) -> None:
    """Writes the run that is intended, and prints how the model changes, its certificate and the folder."""
    from widthwise.runs.conversion import carry_out

    with shown_progress(progress_console()) as observer:
        found = carry_out(source, intention, out, observer)
    _show(found, as_json)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(found)
        return
    for title, key in (("expansions", "expansions"), ("constants", "constants"), ("constants that change", "changes")):
        if found[key]:
            say(f"{title}:", *(f"  {line}" for line in found[key]))
    if found["bake_helps"]:
        say("  `widthwise bake` folds scales and divisors into weights")
    before, after = found["before"], found["after"]
    unwritten = [f"parameters {before['params']:,} -> {after['params']:,}; nothing was written"]
    say(*found.get("lines", unwritten), *(f"note: {note}" for note in found["notes"]))
    if "out" in found:
        say(f"wrote {found['out']}, step {found['step']}")
        say_next("widthwise", "resume", found["out"])
    else:
        say_next_with_out("RUN")
