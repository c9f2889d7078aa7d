"""`widthwise plan`: what fits on a device, how long it takes, and what could be trained there."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import PositiveFloat, PositiveInt

from widthwise.cli.options import JsonOption, VariantOption, is_change
from widthwise.cli.terminal import say, say_json, say_next, say_next_with_out, say_tables
from widthwise.config_io import Config, UserError
from widthwise.files import write_atomic
from widthwise.records.cost import Plan
from widthwise.reports.formats import amount, counted, duration, si
from widthwise.reports.table import Table
from widthwise.training.devices import Device
from widthwise.yaml_io import dump_yaml, recipe_path

if TYPE_CHECKING:
    from widthwise.runs.plan import Planner
    from widthwise.runs.proposal import Proposal


ARGUMENTS = "Recipe, and changes, such as train.steps=2000."


class DeviceOptions(Config):
    """The devices of a plan."""

    device: str | None = None
    """A name, such as rtx4090, or a memory, such as 24GB."""
    n_devices: PositiveInt = 1
    """Number of them that train together."""
    days: PositiveFloat | None = None
    """Days that the run may take."""
    mfu: float | None = None
    """Share of the peak that training uses; default: 0.4."""
    memory: str | None = None
    """Memory of any other device, such as 24GB."""
    tflops: float | None = None
    """Its dense bf16 peak, in 10^12 FLOP/s."""
    bandwidth: str | None = None
    """Between it and its memory, such as 1TB/s."""


class ProposalOptions(Config):
    """Properties of a recipe that is proposed."""

    shape: str | None = None
    """x, diamond, growing, narrowing or uniform; default: uniform."""
    params: str | None = None
    """Parameters, such as 350M; default: what the law says."""
    tokens_per_param: PositiveFloat | None = None
    """Tokens of the law; default: 20."""
    out: Path | None = None
    """Where to write the recipe that is proposed."""


def plan(
    devices: Annotated[DeviceOptions, "Device"],
    wanted: Annotated[ProposalOptions, "Without a recipe"],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE] [OVERRIDES]...", help=ARGUMENTS)] = None,
    variant: VariantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict memory by part, what fits, hours and data of a recipe on a device; or propose a recipe for a device.

    Examples: `widthwise plan configs/x_200m.yaml --device rtx4090 --days 10`;
    `widthwise plan --params 350M --device 24GB`
    """
    from widthwise.experiments.recipes import read_one
    from widthwise.recipe.design import is_quantity
    from widthwise.runs.plan import Planner, missing_data

    arguments = arguments or []
    recipe = Path(arguments[0]) if arguments and not is_change(arguments[0]) else None
    overrides = arguments[recipe is not None :]
    if recipe is not None and is_quantity(str(recipe)) and not recipe_path(str(recipe)).exists():
        raise UserError(f"{recipe}: no such recipe; for a model of that size, give --params {recipe}")
    on = Device.from_options(devices.device, devices.memory, devices.tflops, devices.bandwidth, devices.mfu)
    if recipe is not None:
        if given := [name for name, value in wanted if value is not None]:
            raise UserError(f"--{given[0].replace('_', '-')}: conflicts with a recipe; leave one of the two out")
        proposal, planned = None, read_one(recipe, overrides, variant)
    elif variant is not None:
        raise UserError(f"--variant: got {variant!r}; needs a recipe")
    else:
        proposal = _proposed(on, devices, wanted, overrides)
        planned = proposal.recipe
    planner = Planner(planned, devices.n_devices)
    found = planner.plan(on, devices.days)
    if as_json:
        say_json(found if proposal is None else {**found.to_data(), "law": proposal.law, "recipe": proposal.data})
    else:
        if proposal is not None:
            say(f"proposed: {proposal.law}")
        _show_plan(found, planner, on)
        if proposal is not None:
            say("", dump_yaml(proposal.data) if wanted.out is None else f"wrote {wanted.out}")
        if any(setup.micro_batch_size for setup in found.setups):
            if (path := missing_data(planned)) is not None:
                spec = getattr(planned.data, "tokenizer", None) or "bpe-32768"
                say_next("widthwise", "data", "prepare", "TEXT", "--tokenizer", spec, "--out", path)
            else:
                _say_next(found, recipe or wanted.out, [*overrides] if recipe else [], variant)
    if all(setup.micro_batch_size is None for setup in found.setups):
        hint = f"; try train.shards={devices.n_devices}" if planned.train.shards < devices.n_devices else ""
        raise UserError(f"--device: not even one sequence fits into the {si(on.memory_bytes)}B of {on.name}{hint}")


def _proposed(on: Device, devices: DeviceOptions, wanted: ProposalOptions, overrides: list[str]) -> "Proposal":
    """The recipe for a device, written into --out. Raises UserError."""
    from widthwise.recipe.design import Family, ShapeRequest, parse_quantity, shape_section
    from widthwise.runs.plan import LAW_TOKENS_PER_PARAM
    from widthwise.runs.proposal import Request, propose

    if wanted.out is not None and wanted.out.exists():
        raise UserError(f"{wanted.out}: exists already; choose another --out")
    shape = shape_section(ShapeRequest(kind=wanted.shape or "uniform"))
    n_params = None if wanted.params is None else parse_quantity(wanted.params, "--params")
    law = wanted.tokens_per_param or LAW_TOKENS_PER_PARAM
    request = Request(on, devices.n_devices, devices.days, law, n_params)
    proposal = propose(request, Family(overrides, shape, devices.n_devices))
    if wanted.out is not None:
        write_atomic(wanted.out, dump_yaml(proposal.data))
    return proposal


def _show_plan(found: Plan, planner: "Planner", on: Device) -> None:
    """Prints a plan: the answer, memory by part, what fits, time and data, and what is odd."""
    say(_verdict(found), "")
    header = ["activation checkpointing", "largest micro_batch_size", "memory", "time of the run"]
    setups = []
    for each in found.setups:
        largest, needed = str(each.micro_batch_size or "none"), bytes_of(each.memory.total_bytes)
        setups.append([each.activation_checkpointing, largest, needed, duration(each.run_hours)])
    say_tables(_part_table(found), Table(f"what fits into {found.device}", header, setups))
    data = found.data
    say(
        f"training: {amount(found.tokens)} tokens ({found.tokens_per_param:.3g} per parameter) in {found.steps:,} "
        f"steps, {found.training_flops:.3g} FLOPs; {_time(found, planner, on)}",
        f"data: {si(data.disk_bytes)}B on disk from {si(data.text_bytes)}B of text, prepared in "
        f"{duration(data.prepare_core_hours)} of one core",
        *(f"remark: {each}" for each in found.remarks),
    )


def _say_next(found: Plan, recipe: Path | None, overrides: list[str], variant: str | None) -> None:
    """Return the command that trains the recipe on as many devices as were asked for, or writes it to a file first."""
    if recipe is None:
        say_next_with_out("RECIPE")
        return
    several = ("torchrun", "--standalone", f"--nproc-per-node={found.n_devices}", "-m", "widthwise")
    of_variant = () if variant is None else ("--variant", variant)
    program = several if found.n_devices > 1 else ("widthwise",)
    say_next(*program, "train", recipe, *overrides, *_changes_that_fit(found), *of_variant)


def _changes_that_fit(found: Plan) -> list[str]:
    """Return the change that makes a recipe fit, if anything helps."""
    possible = [each for each in found.setups if each.micro_batch_size is not None]
    if found.fits or not possible:
        return []
    best = min(possible, key=lambda each: each.run_hours or 0)
    kind = best.activation_checkpointing
    return [f"train.micro_batch_size={best.micro_batch_size}", f"train.activation_checkpointing={kind}"]


def _verdict(found: Plan) -> str:
    """Return in one line if it fits."""
    line = f"{'fits' if found.fits else 'does not fit'}: a model of {amount(found.params)} parameters needs "
    line += f"{si(found.memory.total_bytes)}B of memory with passes of {counted(found.micro_batch_size, 'sequence')}"
    line += f"; {found.device} has {si(found.device_memory_bytes)}B"
    if found.fits:
        return line
    changes = " ".join(_changes_that_fit(found))
    helps = f"{changes} would fit" if changes else "no pass and no activation checkpointing would help"
    return f"{line}; {helps}"


def _time(found: Plan, planner: "Planner", on: Device) -> str:
    """Return the time of the run, and how it compares with the time that is allowed."""
    if found.run_hours is not None:
        line = f"{duration(found.run_hours)} on {counted(found.n_devices, 'device')} at {found.mfu:.0%} of the peak"
        if found.asked_hours is None:
            return line
        if found.run_hours <= found.asked_hours:
            return f"{line}, within {duration(found.asked_hours)}"
        tokens = found.asked_hours / found.run_hours * found.tokens
        return f"{line}, more than {duration(found.asked_hours)}, which are enough for {amount(tokens)} tokens"
    line = "time needs a device with known FLOPs, or --tflops"
    if found.asked_hours is None:
        return line
    rate = found.training_flops / found.n_devices / found.asked_hours / 3600
    needed = f"{duration(found.asked_hours)} need {rate / 1e12:.3g} TFLOP/s in use on each device"
    known, about = planner.hours_on_known(on), f"about {si(found.device_memory_bytes)}B"
    if not known:
        return f"{needed}; no device known by name has {about}; {line}"
    times = ", ".join(f"{name} in {duration(hours)}" for name, hours in known)
    if known[0][1] > found.asked_hours:
        return f"{needed}; no device known by name with {about} is so fast; {times}; {line}"
    return f"{needed}; with {about}, {times}; {line}"


def _part_table(found: Plan) -> Table:
    """Memory of a device by part."""
    keys = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "cast_weight_bytes", "activation_bytes")
    rows = [[each.part, amount(each.params), *(bytes_of(getattr(each, key)) for key in keys)] for each in found.parts]
    totals = [sum(getattr(each, key) for each in found.parts) for key in keys]
    rows += [[], ["all of it", amount(found.params), *map(bytes_of, totals)]]
    memory = found.memory
    rows.append([f"at the peak ({part_name(memory.moment)})", "", *(bytes_of(getattr(memory, key)) for key in keys)])
    header = ["", "params", "weights", "gradients", "optimizer", "in bf16", "activations"]
    teacher = f" and {si(memory.teacher_bytes)}B of the teacher" if memory.teacher_bytes else ""
    more = f"{si(memory.root_bytes + memory.buffer_bytes)}B of logits and other buffers{teacher}"
    note = f"at the peak also {more}; predicted, not measured"
    caption = f"memory of a device, passes of {counted(found.micro_batch_size, 'sequence')}"
    return Table(caption, header, rows, note=note)


def part_name(name: str) -> str:
    """`layers.0`, as records have it, -> `layer 1`; other names stay."""
    kind, _, index = name.partition(".")
    return f"layer {int(index) + 1}" if kind == "layers" else name


def bytes_of(n_bytes: int) -> str:
    """As `1.50GB`."""
    return f"{si(n_bytes)}B" if n_bytes else "0"
