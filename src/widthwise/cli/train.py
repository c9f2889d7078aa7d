"""Verbs that train one run: `train` and `resume`."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.options import Changes, JsonOption, RunArgument
from widthwise.cli.progress import TrackOption, training_progress
from widthwise.cli.terminal import say, say_json
from widthwise.config_io import Config, UserError
from widthwise.records.run import RunResult
from widthwise.reports.formats import fixed
from widthwise.runs.environment import is_shared
from widthwise.yaml_io import recipe_name

DRY = "Dry run"


class DryRunOptions(Config):
    """The machines that a dry run is for."""

    devices: str | None = None
    """Numbers of devices, such as 8,64,512; default: 1."""
    device: str | None = None
    """A100, H100, H200 or B200: for time, and to refuse."""
    mfu: float | None = None
    """Share of the peak that training uses; default: 0.4."""
    bandwidth: str | None = None
    """GB/s a device sends in and between nodes, such as 450,50."""


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe, such as configs/x_200m.yaml.")],
    asked: Annotated[DryRunOptions, DRY],
    overrides: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: runs/RECIPE, or runs/RECIPE-VARIANT.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="Variant of a recipe with a compare section, or point of one with a sweep.")
    ] = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=DRY, help="Train nothing: predict memory, traffic and time.")
    ] = False,
) -> None:
    """Train one recipe. Ctrl-C stops after a step and saves a checkpoint; `widthwise resume` continues from there.

    Example: `widthwise train configs/x_200m.yaml train.seed=1 --out runs/x-seed1`
    """
    from widthwise.experiments.recipes import read_one

    loaded = read_one(recipe, overrides or (), variant)
    if is_dry:
        from widthwise.cli.dry_run import show_dry_run

        show_dry_run(loaded, dict(asked), as_json)
        return
    if unused := [name for name, value in asked if value is not None]:
        raise UserError(f"--{unused[0]}: goes with --dry-run")
    from widthwise.runs.train import train as train_recipe

    folder = out or Path("runs") / "-".join(filter(None, [recipe_name(recipe), variant]))
    with training_progress(track) as observer:
        result = train_recipe(loaded, folder, observer)
    show_result(result, folder, as_json)


def resume(run: RunArgument, overrides: Changes = None, track: TrackOption = None, as_json: JsonOption = False) -> None:
    """Continue an interrupted or killed run from its last good checkpoint, or a finished one to more steps.

    How long a run is, what it records and which checkpoints it keeps may change: train.steps, train.log_every,
    train.validate_every, train.checkpoint_every and a few more. The rest of the recipe stays.

    Example: `widthwise resume runs/x_200m train.steps=4000 train.log_every=50`
    """
    from widthwise.runs.train import resume as resume_run

    with training_progress(track) as observer:
        result = resume_run(run, observer, overrides or ())
    show_result(result, run, as_json)


def show_result(result: RunResult, folder: Path, as_json: bool) -> None:
    """The result of a run on standard output, as JSON or in a few lines."""
    if as_json:
        say_json(result)
        return
    bits_per_byte = result.val_bits_per_byte
    say(f"{folder}: {result.steps:,} steps, {result.tokens:,} tokens in {result.wall_seconds:,.0f} s")
    say(f"training loss   {result.train_loss:.4f} (mean of the last {result.loss_window_steps:,} steps)")
    say(
        f"validation loss {result.val_loss:.4f}, perplexity {result.val_perplexity:.2f}"
        + ("" if bits_per_byte is None else f", {bits_per_byte:.4f} bits per byte")
    )
    if result.val_losses:
        say("  by source     " + ", ".join(f"{name} {loss:.4f}" for name, loss in result.val_losses.items()))
    for name, text in (result.val_texts or {}).items():
        bits = "" if text.bits_per_byte is None else f", {text.bits_per_byte:.4f} bits per byte"
        say(f"  on {name}: loss {fixed(text.loss, 4)}{bits}")
    for name, task in (result.val_tasks or {}).items():
        say(f"  on {name}: accuracy {task.metrics['acc'].value:.2%} of {task.n_items:,} items")
    if result.val_mtp_losses:
        places = enumerate(result.val_mtp_losses, start=2)
        say("  further heads " + ", ".join(f"next-{place} {loss:.4f}" for place, loss in places))
    share = result.other_cpu_share
    shared = f", not comparable: other processes used {share:.0%} of the CPUs" if is_shared(share) else ""
    say(f"speed           {result.tokens_per_second:,.0f} tokens/s{shared}")
    if result.best_step is not None:
        say(f"best checkpoint step {result.best_step:,}, by the held-out loss")
    for doubt in result.doubts:
        say(f"warning: {doubt}")
    for note in result.notes:
        say(f"note: {note}")
