"""`widthwise plan`: the memory and time of a run on devices, and recipes for a device."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import PositiveFloat, PositiveInt

from widthwise.cli.options import JsonOption, VariantOption, is_change
from widthwise.cli.terminal import say, say_json, say_next, say_next_with_out, say_tables
from widthwise.config_io import Config
from widthwise.files import write_atomic
from widthwise.mistakes import UserError
from widthwise.records.cost import Plan, StepTraffic
from widthwise.reports.formats import TIMES, amount, counted, duration, si
from widthwise.reports.table import Table
from widthwise.training.devices import NEEDS_SPEED, OPTIONS, Device
from widthwise.yaml_io import dump_yaml

if TYPE_CHECKING:
    from widthwise.recipe.recipe import Recipe


ARGUMENTS = "Recipe, and changes, such as train.steps=2000."
MEMORY = {
    "parameters": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer state": "optimizer_bytes",
    "gathered: parameters outside layers": "root_bytes",
    "weights in bf16": "cast_weight_bytes",
    "activations": "activation_bytes",
    "buffers of layers or loss": "buffer_bytes",
    "teacher": "teacher_bytes",
    "memory of a device": "total_bytes",
}
"""Title of a row -> field of `records.cost` with its bytes."""
HOURS: Mapping[str, tuple[str, float]] = {
    "computation of a step": ("compute_seconds", 1 / 3600),
    "communication of a step": ("communication_seconds", 1 / 3600),
    "time of the run": ("run_hours", 1),
}
"""Title of a row -> field of `Deployment` with its time, and the hours of one unit of that field."""


class DeviceOptions(Config):
    """Options that describe the devices of a plan."""

    devices: tuple[PositiveInt, ...] = (1,)
    """Numbers of devices that train together, such as 1,8,64."""
    device: str | None = None
    """Name, such as rtx4090, or memory, such as 24GB."""
    days: PositiveFloat | None = None
    """Largest duration of the run in days."""
    mfu: float | None = None
    """Share of the peak that training uses; default: 0.4."""
    memory: str | None = None
    """Memory of an unlisted device, such as 24GB."""
    tflops: float | None = None
    """Dense bf16 peak of the device, in 10^12 FLOP/s."""
    memory_bandwidth: str | None = None
    """Bandwidth of the device's memory, such as 1TB/s."""
    node_bandwidth: str | None = None
    """Bandwidth of a device within a node of eight, such as 450GB/s."""
    network_bandwidth: str | None = None
    """Bandwidth of a device to other nodes, such as 50GB/s."""


class ProposalOptions(Config):
    """Options of a proposed recipe."""

    shape: str | None = None
    """x, diamond, growing, narrowing or uniform; default: uniform."""
    params: str | None = None
    """Parameters, such as 350M; default: from the law."""
    tokens_per_param: PositiveFloat | None = None
    """Tokens per parameter of the law; default: 20."""
    out: Path | None = None
    """File for the proposed recipe."""


def plan(
    devices: Annotated[DeviceOptions, "Devices"],
    wanted: Annotated[ProposalOptions, "Without a recipe"],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE] [OVERRIDES]...", help=ARGUMENTS)] = None,
    variant: VariantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict memory, fit, hours, traffic and data of a recipe on devices; or propose a recipe for a device.

    Examples: `widthwise plan configs/x_200m.yaml --device h100 --devices 1,8,64`;
    `widthwise plan --params 350M --device 24GB`
    """
    arguments = arguments or []
    if not arguments or is_change(arguments[0]):
        if variant is not None:
            raise UserError(f"--variant: got {variant!r}; needs a recipe")
        _propose(arguments, devices, wanted, as_json)
        return
    from widthwise.experiments.recipes import read_one
    from widthwise.runs.plan import plan as plan_recipe

    path = Path(arguments[0])
    overrides = arguments[1:]
    device = None
    if devices.device is not None or devices.memory is not None:
        device = _device(devices)
        if devices.days is not None and not device.peak_flops_per_second:
            raise UserError(NEEDS_SPEED)
    else:
        for name in ("days", "mfu", *OPTIONS):
            if getattr(devices, name) is not None:
                raise UserError(f"--{name.replace('_', '-')}: got {getattr(devices, name)}; needs --device")
    for name, value in wanted:
        if value is not None:
            raise UserError(f"--{name.replace('_', '-')}: conflicts with a recipe; use one of them")
    recipe = read_one(path, overrides, variant)
    planned = plan_recipe(recipe, devices.devices, device, devices.days)
    show_plan(planned, as_json)
    if not as_json:
        _say_next(recipe, planned, path, overrides, [] if variant is None else ["--variant", variant])


def _propose(overrides: list[str], devices: DeviceOptions, wanted: ProposalOptions, as_json: bool) -> None:
    """Propose a recipe for a device, write it to --out, and plan it."""
    from widthwise.recipe.design import Family, ShapeRequest, parse_quantity, shape_section
    from widthwise.runs.plan import LAW_TOKENS_PER_PARAM
    from widthwise.runs.plan import plan as plan_recipe
    from widthwise.runs.proposal import propose

    device = _device(devices)
    if wanted.out is not None and wanted.out.exists():
        raise UserError(f"{wanted.out}: exists already; choose another --out")
    shape = shape_section(ShapeRequest(kind=wanted.shape or "uniform"))
    n_params = None if wanted.params is None else parse_quantity(wanted.params, "--params")
    law = wanted.tokens_per_param or LAW_TOKENS_PER_PARAM
    n_devices = devices.devices[0]
    proposal = propose(Family(overrides, shape, n_devices), device, n_devices, devices.days, law, n_params)
    if wanted.out is not None:
        write_atomic(wanted.out, dump_yaml(proposal.data))
    planned = plan_recipe(proposal.recipe, devices.devices, device, devices.days)
    if as_json:
        say_json({**planned.to_data(), "law": proposal.law, "recipe": proposal.data})
        return
    say(f"proposed: {proposal.law}")
    show_plan(planned, as_json)
    say("", dump_yaml(proposal.data) if wanted.out is None else f"wrote {wanted.out}")
    _say_next(proposal.recipe, planned, wanted.out)


def _device(options: DeviceOptions) -> Device:
    return Device.from_options(options.device, options.mfu, **{name: getattr(options, name) for name in OPTIONS})


def _say_next(
    recipe: "Recipe", plan: Plan, path: Path | None, overrides: Sequence[str] = (), options: Sequence[str] = ()
) -> None:
    """Print the command that prepares the missing data, writes the recipe, or trains it."""
    from widthwise.data.prepared import is_prepared
    from widthwise.data.remote import is_url

    data_path = getattr(recipe.data, "path", None)
    if data_path is not None and not is_url(data_path) and not is_prepared(Path(data_path)):
        spec = getattr(recipe.data, "tokenizer", None) or "bpe-32768"
        say_next("widthwise", "data", "prepare", "TEXT", "--tokenizer", spec, "--out", data_path)
    elif path is None:
        say_next_with_out("RECIPE")
    else:
        first = plan.deployments[0]
        program = ["widthwise"]
        if first.n_devices > 1:
            program = ["torchrun", "--standalone", f"--nproc-per-node={first.n_devices}", "-m", "widthwise"]
        say_next(*program, "train", path, *overrides, *(first.remedy or "").split(), *options)


def show_plan(plan: Plan, as_json: bool) -> None:
    """Print a plan: fit, table and data; or JSON.

    Raises UserError, after printing, if a single sequence does not fit on any number of devices.
    """
    device_memory = bytes_of(plan.device_memory_bytes or 0)
    if as_json:
        say_json(plan)
    else:
        if plan.device is not None:
            for run in plan.deployments:
                line = f"{'fits' if run.fits else 'does not fit'} on {counted(run.n_devices, 'device')}: a model of "
                line += f"{amount(plan.params)} parameters needs {bytes_of(run.memory.total_bytes)} of memory with "
                line += f"passes of {counted(run.micro_batch_size, 'sequence')}; {plan.device} has {device_memory}"
                if not run.fits:
                    line += f"; {run.remedy or 'no number of shards, pass or activation checkpointing'} would fit"
                say(line)
            say("")
        say_tables(_table(plan))
        data = plan.data
        say(
            f"training: {amount(plan.tokens)} tokens ({plan.tokens_per_param:.3g} per parameter) in {plan.steps:,} "
            f"steps, {plan.training_flops:.3g} FLOPs",
            f"data: {si(data.disk_bytes)}B on disk from {si(data.text_bytes)}B of text, prepared in "
            f"{duration(data.prepare_core_hours)} of one core",
        )
    if all(run.fits is False and run.remedy is None for run in plan.deployments):
        raise UserError(f"--device: not even one sequence fits into the {device_memory} of {plan.device}")


def _table(plan: Plan) -> Table:
    """Return memory, traffic and time per device, and the largest passes, with a column for each number of devices.

    Rows whose sizes are all 0 are omitted.
    """
    runs = plan.deployments
    copies = [f"{run.n_shards}{TIMES}{run.n_devices // run.n_shards}" for run in runs]
    passes = [f"{run.n_passes}{TIMES}{run.micro_batch_size}" for run in runs]
    padding = [f"{100 * run.padding:.2g}%" for run in runs]
    rows = [[f"shards {TIMES} copies of the model", *copies], [f"passes {TIMES} sequences each", *passes]]
    rows.append(["padding", *padding])
    memory = {title: [getattr(run.memory, field) for run in runs] for title, field in MEMORY.items()}
    traffic = {field.removesuffix("_bytes"): [run.traffic[field] for run in runs] for field in StepTraffic.model_fields}
    sent = {f"sent: {name.replace('_', '-')}": sizes for name, sizes in traffic.items()}
    for sizes_by_title in (memory, sent):
        rows.append([])
        rows += [[title, *map(bytes_of, sizes)] for title, sizes in sizes_by_title.items() if any(sizes)]
    if plan.device is not None:
        rows.append([])
        for title, (field, unit) in HOURS.items():
            hours = [None if run[field] is None else run[field] * unit for run in runs]
            rows.append([title, *map(duration, hours)])
        if plan.asked_hours is not None and plan.mfu is not None:
            tokens = [plan.asked_hours / (run.run_hours or 1) * plan.tokens for run in runs]
            rows.append([f"tokens that {duration(plan.asked_hours)} allow", *map(amount, tokens)])
        rows.append([])
        for setups in zip(*(run.setups for run in runs)):
            row = [f"largest pass, checkpointing {setups[0].activation_checkpointing}"]
            for setup in setups:
                memory_used = bytes_of(setup.memory.total_bytes)
                if setup.micro_batch_size is None:
                    row.append(f"none, one needs {memory_used}")
                else:
                    row.append(f"{setup.micro_batch_size}: {memory_used}, {duration(setup.run_hours)}")
            rows.append(row)
    title = f"predicted, not measured: {amount(plan.params)} parameters"
    header = ["of a device and a step", *(counted(run.n_devices, "device") for run in runs)]
    return Table(title, header, rows, note=f"assumed: {plan.assumptions}")


def bytes_of(n_bytes: int) -> str:
    """Return a number of bytes as `1.50GB`."""
    return f"{si(n_bytes)}B" if n_bytes else "0"
