"""Verbs that train one run, `train` and `resume`; with `--dry-run`, what it would take on many devices."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from widthwise.cli.options import Changes, JsonOption, RecipeArgument, RunArgument, VariantOption, whole_numbers
from widthwise.cli.plan import bytes_of, part_name
from widthwise.cli.progress import TrackOption, training_progress
from widthwise.cli.terminal import say, say_json, say_result
from widthwise.config_io import Config, UserError
from widthwise.records.cost import Deployment, DryRun, StepTraffic
from widthwise.records.run import RunResult
from widthwise.reports.formats import TIMES, amount, counted, duration, fixed
from widthwise.reports.table import Table
from widthwise.runs.environment import is_shared
from widthwise.training.devices import Device
from widthwise.yaml_io import recipe_name

if TYPE_CHECKING:
    from widthwise.recipe.recipe import Recipe

DIVISION: Mapping[str, Callable[[Deployment], str]] = {
    f"shards {TIMES} copies of the model": lambda each: f"{each.n_shards}{TIMES}{each.n_devices // each.n_shards}",
    f"passes {TIMES} sequences each": lambda each: f"{each.n_passes}{TIMES}{each.micro_batch_size}",
    "padding": lambda each: f"{100 * each.padding:.2g}%",
}
MEMORY = {
    "parameters": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer state": "optimizer_bytes",
    "gathered: what is in no layer": "root_bytes",
    "weights in bf16": "cast_weight_bytes",
    "activations": "activation_bytes",
    "buffers of layers or loss": "buffer_bytes",
    "teacher": "teacher_bytes",
    "memory of a device": "total_bytes",
}
"""Row -> its field."""
CLOCK = {
    "computation of a step": ("compute_seconds", 3600),
    "communication of a step": ("communication_seconds", 3600),
    "computation of the run": ("run_days", 1 / 24),
}
"""Row -> its field of the times, and how much of it is an hour."""


class DryRunOptions(Config):
    """The machines that a dry run is for."""

    dry_run: bool = False
    """Train nothing: predict memory, traffic and time."""
    devices: str | None = None
    """Numbers of devices, such as 8,64,512; default: 1."""
    device: str | None = None
    """A100, H100, H200 or B200: for time, and to refuse."""
    mfu: float | None = None
    """Share of the peak that training uses; default: 0.4."""
    bandwidth: str | None = None
    """GB/s a device sends in and between nodes, such as 450,50."""


def train(
    recipe: RecipeArgument,
    machines: Annotated[DryRunOptions, "Dry run"],
    overrides: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/RECIPE, or runs/RECIPE-VARIANT.")] = None,
    variant: VariantOption = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one recipe. Ctrl-C stops after a step and saves a checkpoint; `widthwise resume` continues from there.

    Example: `widthwise train configs/x_200m.yaml train.seed=1 --out runs/x-seed1`
    """
    from widthwise.experiments.recipes import read_one

    loaded = read_one(recipe, overrides or (), variant)
    if machines.dry_run:
        _show_dry_run(loaded, machines, as_json)
        return
    if unused := [name for name, value in machines if value is not None and name != "dry_run"]:
        raise UserError(f"--{unused[0]}: needs --dry-run")
    from widthwise.runs.train import train as train_recipe

    folder = out or Path("runs") / "-".join(filter(None, [recipe_name(recipe), variant]))
    with training_progress(track) as observer:
        result = train_recipe(loaded, folder, observer)
    _show_result(result, folder, as_json)


def resume(run: RunArgument, overrides: Changes = None, track: TrackOption = None, as_json: JsonOption = False) -> None:
    """Continue an interrupted or killed run from its last good checkpoint, or a finished one to more steps.

    How long a run is, what it records and which checkpoints it keeps may change: train.steps, train.log_every,
    train.validate_every, train.checkpoint_every and a few more. The rest of the recipe stays.

    Example: `widthwise resume runs/x_200m train.steps=4000 train.log_every=50`
    """
    from widthwise.runs.train import resume as resume_run

    with training_progress(track) as observer:
        result = resume_run(run, observer, overrides or ())
    _show_result(result, run, as_json)


def _show_result(result: RunResult, folder: Path, as_json: bool) -> None:
    """The result of a run on standard output, as JSON or in a few lines."""
    if as_json:
        say_json(result)
        return
    bits = "" if result.val_bits_per_byte is None else f", {result.val_bits_per_byte:.4f} bits per byte"
    share = result.other_cpu_share
    shared = f", not comparable: other processes used {share:.0%} of the CPUs" if is_shared(share) else ""
    say(
        f"{folder}: {result.steps:,} steps, {result.tokens:,} tokens in {result.wall_seconds:,.0f} s",
        f"training loss   {result.train_loss:.4f} (mean of the last {result.loss_window_steps:,} steps)",
        f"validation loss {result.val_loss:.4f}, perplexity {result.val_perplexity:.2f}{bits}",
        *_validated(result),
        f"speed           {result.tokens_per_second:,.0f} tokens/s{shared}",
    )
    if result.best_step is not None:
        say(f"best checkpoint step {result.best_step:,}, by the held-out loss")
    for line in (*(f"warning: {doubt}" for doubt in result.doubts), *(f"note: {note}" for note in result.notes)):
        say(line)


def _validated(result: RunResult) -> Iterator[str]:
    """Yield a line for each source, further text, task and head that was validated."""
    if result.val_losses:
        yield "  by source     " + ", ".join(f"{name} {loss:.4f}" for name, loss in result.val_losses.items())
    for name, text in (result.val_texts or {}).items():
        bits = "" if text.bits_per_byte is None else f", {text.bits_per_byte:.4f} bits per byte"
        yield f"  on {name}: loss {fixed(text.loss, 4)}{bits}"
    for name, task in (result.val_tasks or {}).items():
        yield f"  on {name}: accuracy {task.metrics['acc'].value:.2%} of {task.n_items:,} items"
    if result.val_mtp_losses:
        places = enumerate(result.val_mtp_losses, start=2)
        yield "  further heads " + ", ".join(f"next-{place} {loss:.4f}" for place, loss in places)


def _show_dry_run(recipe: "Recipe", machines: DryRunOptions, as_json: bool) -> None:
    """Prints the prediction.

    Raises UserError for options that make no sense, and, after printing, where a device has too little memory.
    """
    from widthwise.runs.plan import dry_run

    for option, value in (("--mfu", machines.mfu), ("--bandwidth", machines.bandwidth)):
        if value is not None and machines.device is None:
            raise UserError(f"{option}: got {value}; it needs a --device")
    device = None
    if machines.device is not None:
        device = Device.linked(machines.device, machines.mfu, machines.bandwidth)
    found = dry_run(recipe, whole_numbers("--devices", machines.devices or "1"), device)
    say_result(found, as_json, (), [_dry_run_table(found)])
    if too_small := [_refusal(found, each) for each in found.deployments if each.fits is False]:
        raise UserError("; ".join(too_small))


def _dry_run_table(found: DryRun) -> Table:
    """Memory, traffic and time of one device: a column for each number of devices."""
    each = found.deployments
    rows = [[title, *map(read, each)] for title, read in DIVISION.items()]
    memory = {title: [getattr(one.memory, field) for one in each] for title, field in MEMORY.items()}
    sent = {key: [one.traffic[key] for one in each] for key in StepTraffic.model_fields}
    titles = {f"sent: {key.removesuffix('_bytes').replace('_', '-')}": own for key, own in sent.items()}
    for n_bytes in (memory, titles):
        rows += [[], *([title, *map(bytes_of, own)] for title, own in n_bytes.items() if any(own))]
    if found.device is not None:
        rows.append([])
        for title, (field, hour) in CLOCK.items():
            hours = (None if one.times is None else getattr(one.times, field) / hour for one in each)
            rows.append([title, *map(duration, hours)])
    title = f"predicted, not measured: {amount(found.params)} parameters in {_units(found)}"
    header = ["of a device and a step", *(counted(one.n_devices, "device") for one in each)]
    return Table(title, header, rows, note=f"assumed: {found.assumptions}")


def _units(found: DryRun) -> str:
    """The number of units, the root, and the largest and the smallest layer."""
    *layers, root = sorted(found.units, key=lambda unit: unit.name == "root")
    largest, smallest = (choose(layers, key=lambda unit: unit.params) for choose in (max, min))
    named = ", ".join(f"{part_name(unit.name)} {bytes_of(unit.gathered_bytes)}" for unit in (root, largest, smallest))
    return f"{len(found.units)} units: {named}"


def _refusal(found: DryRun, deployment: Deployment) -> str:
    n_bytes, there = deployment.memory.total_bytes, found.device_memory_bytes or 0
    remedy = "no number of shards, micro-batch or activation checkpointing would help"
    if deployment.remedy is not None:
        remedy = f"{deployment.remedy} would fit"
    where = counted(deployment.n_devices, "device")
    return f"{where}: each needs {bytes_of(n_bytes)}, an {found.device} has {bytes_of(there)}; {remedy}"
