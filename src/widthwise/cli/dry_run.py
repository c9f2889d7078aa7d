"""`widthwise train --dry-run`: what a run would take, on the terminal."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from widthwise.cli.options import whole_numbers
from widthwise.cli.terminal import say_json, say_tables
from widthwise.config_io import UserError
from widthwise.records.cost import Deployment, DryRun, RankMemory, StepTraffic, Times
from widthwise.reports.formats import TIMES, counted, duration, si
from widthwise.reports.table import Table

if TYPE_CHECKING:
    from widthwise.recipe.recipe import Recipe

DIVISION: Mapping[str, Callable[[Deployment], str]] = {
    f"shards {TIMES} copies of the model": lambda each: f"{each.n_shards}{TIMES}{each.n_devices // each.n_shards}",
    f"passes {TIMES} sequences each": lambda each: f"{each.n_passes}{TIMES}{each.micro_batch_size}",
    "padding": lambda each: f"{100 * each.padding:.2g}%",
}
MEMORY: Mapping[str, Callable[[RankMemory], int]] = {
    "parameters": lambda memory: memory.parameter_bytes,
    "gradients": lambda memory: memory.gradient_bytes,
    "optimizer state": lambda memory: memory.optimizer_bytes,
    "gathered: what is in no layer": lambda memory: memory.root_bytes,
    "weights in bf16": lambda memory: memory.cast_weight_bytes,
    "activations": lambda memory: memory.activation_bytes,
    "buffers of layers or loss": lambda memory: memory.buffer_bytes,
    "memory of a device": lambda memory: memory.total_bytes,
}
TRAFFIC: Mapping[str, Callable[[StepTraffic], int]] = {
    "sent: all-gather": lambda traffic: traffic.all_gather_bytes,
    "sent: reduce-scatter": lambda traffic: traffic.reduce_scatter_bytes,
    "sent: all-reduce": lambda traffic: traffic.all_reduce_bytes,
    "sent: broadcast": lambda traffic: traffic.broadcast_bytes,
}
CLOCK: Mapping[str, Callable[[Times], float]] = {
    "computation of a step": lambda times: times.compute_seconds / 3600,
    "communication of a step": lambda times: times.communication_seconds / 3600,
    "computation of the run": lambda times: times.run_days * 24,
}
"""Row -> hours."""


def show_dry_run(recipe: "Recipe", asked: Mapping[str, Any], as_json: bool) -> None:
    """Prints the prediction. asked: the options of the command line by name, None where not given.

    Raises UserError for options that make no sense, and, after printing, where a device has too little memory.
    """
    from widthwise.runs.plan import dry_run
    from widthwise.training.devices import Device

    mfu, bandwidth = asked["mfu"], asked["bandwidth"]
    for option, value in (("--mfu", mfu), ("--bandwidth", bandwidth)):
        if value is not None and asked["device"] is None:
            raise UserError(f"{option}: got {value}; it needs a --device")
    device = None if asked["device"] is None else Device.linked(asked["device"], mfu, bandwidth)
    n_devices = whole_numbers("--devices", asked["devices"] or "1")
    found = dry_run(recipe, n_devices, device)
    if as_json:
        say_json(found)
    else:
        say_tables(dry_run_table(found))
    if too_small := [_refusal(found, each) for each in found.deployments if each.fits is False]:
        raise UserError("; ".join(too_small))


def dry_run_table(found: DryRun) -> Table:
    """Memory, traffic and time of one device: a column for each number of devices."""
    each = found.deployments
    rows = [[title, *map(read, each)] for title, read in DIVISION.items()]
    for table, record in ((MEMORY, "memory"), (TRAFFIC, "traffic")):
        counted_bytes = ([title, *(read(one[record]) for one in each)] for title, read in table.items())
        rows += [[], *([title, *map(_bytes, n_bytes)] for title, *n_bytes in counted_bytes if any(n_bytes))]
    if found.device is not None:
        clock = [[title, *(duration(one.times and read(one.times)) for one in each)] for title, read in CLOCK.items()]
        rows += [[], *clock]
    title = f"predicted, not measured: {si(found.params)} parameters in {_units(found)}"
    header = ["of a device and a step", *(counted(one.n_devices, "device") for one in each)]
    return Table(title, header, rows, note=f"assumed: {found.assumptions}")


def _units(found: DryRun) -> str:
    """The number of units, the root, and the largest and the smallest layer."""
    *layers, root = sorted(found.units, key=lambda unit: unit.name == "root")
    largest, smallest = (choose(layers, key=lambda unit: unit.params) for choose in (max, min))
    named = ", ".join(f"{unit.name} {_bytes(unit.gathered_bytes)}" for unit in (root, largest, smallest))
    return f"{len(found.units)} units: {named}"


def _bytes(n_bytes: int) -> str:
    return f"{si(n_bytes)}B" if n_bytes else "0"


def _refusal(found: DryRun, deployment: Deployment) -> str:
    n_bytes, there = deployment.memory.total_bytes, found.device_memory_bytes or 0
    remedy = "no number of shards, micro-batch or activation checkpointing would help"
    if deployment.remedy is not None:
        remedy = f"{deployment.remedy} would fit"
    where = counted(deployment.n_devices, "device")
    return f"{where}: each needs {_bytes(n_bytes)}, an {found.device} has {_bytes(there)}; {remedy}"
