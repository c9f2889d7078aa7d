"""Verbs that train one run, `train` and `resume`, and the list of runs."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.options import Changes, JsonOption, RecipeArgument, RunArgument, VariantOption
from widthwise.cli.plan import show_plan
from widthwise.cli.progress import TrackOption, training_progress
from widthwise.cli.terminal import remark, say, say_json, say_result
from widthwise.records.run import RunResult
from widthwise.reports.formats import counted, fixed
from widthwise.runs.environment import is_shared
from widthwise.training.launch import n_launched
from widthwise.yaml_io import recipe_name


def train(
    recipe: RecipeArgument,
    overrides: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/RECIPE, or runs/RECIPE-VARIANT.")] = None,
    variant: VariantOption = None,
    track: TrackOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the `plan` for this machine; no training.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train one recipe. Ctrl-C stops after a step and saves a checkpoint; `widthwise resume` continues from there.

    Example: `widthwise train configs/x_200m.yaml train.seed=1 --out runs/x-seed1`
    """
    from widthwise.experiments.recipes import read_one

    loaded = read_one(recipe, overrides or (), variant)
    if dry_run:
        from widthwise.runs.plan import local_device, plan

        show_plan(plan(loaded, [n_launched()], local_device()), as_json)
        return
    from widthwise.runs.train import train as train_recipe

    folder = out or Path("runs") / "-".join(filter(None, [recipe_name(recipe), variant]))
    with training_progress(track) as observer:
        result = train_recipe(loaded, folder, observer)
    _show_result(result, folder, as_json)


def resume(run: RunArgument, overrides: Changes = None, track: TrackOption = None, as_json: JsonOption = False) -> None:
    """Continue an interrupted or killed run from its last good checkpoint, or a finished one to more steps.

    Only the length, records and checkpoints of a run may change: train.steps, train.log_every, train.validate_every,
    train.checkpoint_every and a few more.

    Example: `widthwise resume runs/x_200m train.steps=4000 train.log_every=50`
    """
    from widthwise.runs.train import resume as resume_run

    with training_progress(track) as observer:
        result = resume_run(run, observer, overrides or ())
    _show_result(result, run, as_json)


def _show_result(result: RunResult, folder: Path, as_json: bool) -> None:
    """Print the result of a run, as JSON or as a few lines."""
    if as_json:
        say_json(result)
        return
    bits = "" if result.val_bits_per_byte is None else f", {result.val_bits_per_byte:.4f} bits per byte"
    validations = []
    if result.val_losses:
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in result.val_losses.items())
        validations.append(f"  by source     {losses}")
    for name, text in (result.val_texts or {}).items():
        text_bits = "" if text.bits_per_byte is None else f", {text.bits_per_byte:.4f} bits per byte"
        validations.append(f"  on {name}: loss {fixed(text.loss, 4)}{text_bits}")
    for name, task in (result.val_tasks or {}).items():
        validations.append(f"  on {name}: accuracy {task.metrics['acc'].value:.2%} of {task.n_items:,} items")
    if result.val_mtp_losses:
        losses = ", ".join(f"next-{depth} {loss:.4f}" for depth, loss in enumerate(result.val_mtp_losses, start=2))
        validations.append(f"  MTP heads     {losses}")
    share = result.other_cpu_share
    shared = f", not comparable: other processes used {share:.0%} of the CPUs" if is_shared(share) else ""
    say(
        f"{folder}: {result.steps:,} steps, {result.tokens:,} tokens in {result.wall_seconds:,.0f} s",
        f"training loss   {result.train_loss:.4f} (mean of the last {result.loss_window_steps:,} steps)",
        f"validation loss {result.val_loss:.4f}, perplexity {result.val_perplexity:.2f}{bits}",
        *validations,
        f"speed           {result.tokens_per_second:,.0f} tokens/s{shared}",
        *(f"warning: {doubt}" for doubt in result.doubts),
        *(f"note: {note}" for note in result.notes),
    )


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds runs or experiments.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List runs: which are running, finished, ready, stopped, failed or waiting; steps, losses, rate, age and size.

    Example: `widthwise runs runs/quickstart`
    """
    from widthwise.reports.tables import progress_table
    from widthwise.runs.listing import list_runs

    listed = list_runs(folder)
    names = [run.path if run.path == str(folder) else str(Path(run.path).relative_to(folder)) for run in listed]
    table = progress_table(dict(zip(names, listed)), f"{counted(len(listed), 'run')} in {folder}")
    say_result({"runs": [run.to_data() for run in listed]}, as_json, (), [table])
    for run in listed:
        if run.reason is not None and not as_json:
            remark(run.reason if run.state == "unreadable" else f"{run.path}: {run.reason}")
