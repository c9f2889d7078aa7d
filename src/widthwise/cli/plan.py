"""`widthwise plan`: what fits on a device, how long it takes, and what could be trained there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.terminal import say, say_json, say_next, say_next_with_out, say_tables
from widthwise.config_io import UserError
from widthwise.files import write_atomic
from widthwise.records.cost import Plan
from widthwise.reports.formats import counted, duration, si
from widthwise.reports.table import Table
from widthwise.yaml_io import dump_yaml, recipe_path

DEVICE, WITHOUT = "Device", "Without a recipe"


def plan(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [OVERRIDES]...", help="Recipe, and changes, such as train.steps=2000."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="Variant or point of a recipe with a compare or sweep section.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(rich_help_panel=DEVICE, help="A name, such as rtx4090, or a memory, such as 24GB.")
    ] = None,
    n_devices: Annotated[int, typer.Option(rich_help_panel=DEVICE, help="How many train together.")] = 1,
    days: Annotated[float | None, typer.Option(rich_help_panel=DEVICE, help="How long the run may take.")] = None,
    mfu: Annotated[
        float | None, typer.Option(rich_help_panel=DEVICE, help="Share of the peak that training uses; default: 0.4.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(rich_help_panel=DEVICE, help="Memory of any other device, such as 24GB.")
    ] = None,
    tflops: Annotated[
        float | None, typer.Option(rich_help_panel=DEVICE, help="Its dense bf16 peak, in 10^12 FLOP/s.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(rich_help_panel=DEVICE, help="Between it and its memory, such as 1TB/s.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(rich_help_panel=WITHOUT, help="x, diamond, growing, narrowing or uniform; default: uniform."),
    ] = None,
    params: Annotated[
        str | None, typer.Option(rich_help_panel=WITHOUT, help="Parameters, such as 350M; default: what the law says.")
    ] = None,
    tokens_per_param: Annotated[
        float | None, typer.Option(rich_help_panel=WITHOUT, help="Tokens of the law; default: 20.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(rich_help_panel=WITHOUT, help="Where to write the recipe that is proposed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict memory by part, what fits, hours and data of a recipe on a device; or propose a recipe for a device.

    Examples: `widthwise plan configs/x_200m.yaml --device rtx4090 --days 10`;
    `widthwise plan --params 350M --device 24GB`
    """
    from widthwise.experiments.recipes import read_one
    from widthwise.recipe.design import Family, ShapeRequest, parse_quantity, shape_section
    from widthwise.runs.plan import LAW_TOKENS_PER_PARAM, Planner
    from widthwise.runs.proposal import Request, propose
    from widthwise.training.devices import Device

    recipe, overrides = _recipe_and_overrides(arguments or [])
    on = Device.from_options(device, memory, tflops, bandwidth, mfu)
    for option, value in (("--days", days), ("--n-devices", n_devices), ("--tokens-per-param", tokens_per_param)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{option}: got {value:g}; must be above 0")
    without = {"--shape": shape, "--params": params, "--tokens-per-param": tokens_per_param, "--out": out}
    proposal = None
    if recipe is not None:
        if given := [option for option, value in without.items() if value is not None]:
            raise UserError(f"{given[0]}: goes without a recipe")
        planned = read_one(recipe, overrides, variant)
    elif variant is not None:
        raise UserError(f"--variant: got {variant!r}; goes with a recipe")
    else:
        if out is not None and out.exists():
            raise UserError(f"{out}: exists already; choose another --out")
        asked_shape = shape_section(ShapeRequest(kind=shape or "uniform"))
        law = LAW_TOKENS_PER_PARAM if tokens_per_param is None else tokens_per_param
        n_params = None if params is None else parse_quantity(params, "--params")
        family = Family(overrides, asked_shape, n_devices)
        proposal = propose(Request(on, n_devices, days, law, n_params), family)
        if out is not None:
            write_atomic(out, dump_yaml(proposal.data))
        planned = proposal.recipe
    planner = Planner(planned, n_devices)
    found = planner.plan(on, days)
    if as_json:
        say_json(found if proposal is None else {**found.to_data(), "law": proposal.law, "recipe": proposal.data})
    else:
        if proposal is not None:
            say(f"proposed: {proposal.law}")
        show_plan(found, planner.hours_on_known(on) if found.run_hours is None and days is not None else ())
        if proposal is not None:
            say("", dump_yaml(proposal.data) if out is None else f"wrote {out}")
        if any(setup.micro_batch_size for setup in found.setups):
            _say_next(found, recipe or out, [*overrides] if recipe else [], variant)
    if all(setup.micro_batch_size is None for setup in found.setups):
        hint = f"; try train.shards={n_devices}" if planned.train.shards < n_devices else ""
        raise UserError(f"--device: not one sequence at a time fits into the {si(on.memory_bytes)}B of {on.name}{hint}")


def _recipe_and_overrides(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """The first argument is a recipe unless it is a change. Raises UserError for a number of parameters."""
    from widthwise.recipe.design import is_quantity

    if arguments and "=" not in arguments[0]:
        if is_quantity(arguments[0]) and not recipe_path(arguments[0]).exists():
            raise UserError(
                f"{arguments[0]}: no such recipe; for a model of so many parameters, give --params {arguments[0]}"
            )
        return Path(arguments[0]), arguments[1:]
    return None, arguments


def show_plan(found: Plan, known: Sequence[tuple[str, float]]) -> None:
    """Prints a plan: the answer, memory by part, what fits, time and data, and what is odd.

    known: names of devices with about as much memory as one whose FLOPs are not known, and hours on each, fastest
    first.
    """
    say(verdict(found), "")
    say_tables(part_table(found), setup_table(found))
    data = found.data
    say(
        f"training: {si(found.tokens)} tokens ({found.tokens_per_param:.3g} per parameter) in {found.steps:,} steps, "
        f"{found.training_flops:.3g} FLOPs; {_time(found, known)}",
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


def verdict(found: Plan) -> str:
    """Return in one line if it fits."""
    there = f"{found.device} has {si(found.device_memory_bytes)}B"
    needs = (
        f"needs {si(found.memory.total_bytes)}B of memory with passes of {counted(found.micro_batch_size, 'sequence')}"
    )
    answer = "fits" if found.fits else "does not fit"
    line = f"{answer}: a model of {si(found.params)} parameters {needs}; {there}"
    if found.fits:
        return line
    changes = " ".join(_changes_that_fit(found))
    helps = f"{changes} would fit" if changes else "no pass and no activation checkpointing would help"
    return f"{line}; {helps}"


def _time(found: Plan, known: Sequence[tuple[str, float]]) -> str:
    if found.run_hours is None:
        line = "time needs a device with known FLOPs, or --tflops"
        if found.asked_hours is None:
            return line
        rate = found.training_flops / found.n_devices / found.asked_hours / 3600
        needed = f"{duration(found.asked_hours)} need {rate / 1e12:.3g} TFLOP/s in use on each device"
        return f"{needed}; {_known(found, known)}; {line}"
    where = counted(found.n_devices, "device")
    line = f"{duration(found.run_hours)} on {where} at {found.mfu:.0%} of the peak"
    if found.asked_hours is None:
        return line
    if found.run_hours <= found.asked_hours:
        return f"{line}, within {duration(found.asked_hours)}"
    part = found.asked_hours / found.run_hours
    return f"{line}, more than {duration(found.asked_hours)}, which are enough for {si(part * found.tokens)} tokens"


def _known(found: Plan, known: Sequence[tuple[str, float]]) -> str:
    """Return True if devices with about this memory are fast enough."""
    about = f"about {si(found.device_memory_bytes)}B"
    if not known:
        return f"no device known by name has {about}"
    assert found.asked_hours is not None
    times = ", ".join(f"{name} in {duration(hours)}" for name, hours in known)
    if known[0][1] > found.asked_hours:
        return f"no device known by name with {about} is so fast; {times}"
    return f"with {about}, {times}"


def part_table(found: Plan) -> Table:
    """Memory of a device by part."""
    keys = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "cast_weight_bytes", "activation_bytes")
    rows = [[each.part, si(each.params), *(_bytes(getattr(each, key)) for key in keys)] for each in found.parts]
    totals = [sum(getattr(each, key) for each in found.parts) for key in keys]
    rows += [[], ["all of it", si(found.params), *map(_bytes, totals)]]
    memory = found.memory
    there = [memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes, memory.cast_weight_bytes]
    rows += [[f"at the peak ({memory.moment})", "", *map(_bytes, [*there, memory.activation_bytes])]]
    header = ["", "params", "weights", "gradients", "optimizer", "in bf16", "activations"]
    more = memory.root_bytes + memory.buffer_bytes
    note = f"at the peak also {si(more)}B of logits and other buffers; predicted, not measured"
    return Table(
        f"memory of a device, passes of {counted(found.micro_batch_size, 'sequence')}", header, rows, note=note
    )


def setup_table(found: Plan) -> Table:
    """The largest pass that fits with each kind of activation checkpointing."""
    header = ["activation checkpointing", "largest micro_batch_size", "memory", "time of the run"]
    rows = [
        [
            each.activation_checkpointing,
            str(each.micro_batch_size or "none"),
            _bytes(each.memory.total_bytes),
            duration(each.run_hours),
        ]
        for each in found.setups
    ]
    return Table(f"what fits into {found.device}", header, rows)


def _bytes(n_bytes: int) -> str:
    return f"{si(n_bytes)}B" if n_bytes else "0"
