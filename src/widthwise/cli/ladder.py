"""The options of `widthwise sweep --ladder`, and its plan on the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from widthwise.cli.terminal import say_json, table_console
from widthwise.config_io import UserError
from widthwise.experiments.ladder import Device, LadderPlan, ladder_workload, read_ladder
from widthwise.reports.page.formats import MISSING, si

DEFAULT_MFU = 0.4
DURATIONS = ((24.0, "d"), (1.0, "h"), (1 / 60, "min"), (1 / 3600, "s"))
"""Hours per unit, and the unit's name."""


def clock_asked(
    device: str | None, mfu: float | None, flops_per_second: float | None, is_wanted: bool
) -> Device | None:
    """The device for which hours are counted, if any. Raises UserError if options conflict."""
    given = {"--device": device, "--mfu": mfu, "--flops-per-second": flops_per_second}
    named = [option for option, value in given.items() if value is not None]
    if named and not is_wanted:
        raise UserError(f"{named[0]}: goes with --ladder --dry-run, which counts hours by it")
    if mfu is not None and device is None:
        raise UserError(f"--mfu: got {mfu:g}; it is a share of the peak of a --device")
    if device is not None and flops_per_second is not None:
        raise UserError("--flops-per-second: conflicts with --device; give one of the two")
    if flops_per_second is not None:
        return Device.at_rate(flops_per_second)
    return None if device is None else Device.named(device, DEFAULT_MFU if mfu is None else mfu)


def ladder_asked(recipe: Path, overrides: Sequence[str], asked: Mapping[str, Any]) -> LadderPlan:
    """asked: the sweep options of the command line. Raises UserError for those that a ladder does not have."""
    if other := sorted(set(asked) - {"seeds"}):
        raise UserError(f"--ladder: the ladder section of the recipe says what to train; leave out {', '.join(other)}")
    return read_ladder(recipe, overrides, asked.get("seeds", ()))


def show_ladder(plan: LadderPlan, clock: Device | None, as_json: bool) -> None:
    """Prints the planned work."""
    workload = ladder_workload(plan, clock)
    if as_json:
        say_json(workload)
    else:
        table_console().print(ladder_table(workload))


def ladder_table(workload: dict[str, Any]) -> Table:
    """One row per point, for one run of it, from `experiments.ladder.ladder_workload`."""
    n_seeds = len(workload["seeds"])
    table = Table(
        title=f"{workload['title']}: {workload['n_runs']} runs, {n_seeds} of each line",
        caption=_caption(workload),
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("")
    for name in ("params", "layer\nparams", "average\nwidth", "tokens", "steps", "training\nFLOPs", "time"):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    for row in workload["points"]:
        sizes = (si(row[key]) for key in ("params", "layer_params", "average_width", "tokens"))
        table.add_row(row["name"], *sizes, f"{row['steps']:,}", si(row["training_flops"]), duration(row["hours"]))
    table.add_section()
    table.add_row("all seeds", *[""] * 5, si(workload["training_flops"]), duration(workload["hours"]))
    return table


def duration(hours: float | None) -> str:
    """Hours in the largest unit that gives at least one."""
    if hours is None:
        return MISSING
    size, unit = next((each for each in DURATIONS if hours >= each[0]), DURATIONS[-1])
    return f"{hours / size:,.3g} {unit}"


def _caption(workload: dict[str, Any]) -> str:
    tokens, counted = workload["tokens_per_param"], workload["count"].replace("params", "parameter").replace("_", " ")
    rule = (
        "steps as the recipe says" if tokens is None else f"{tokens:g} tokens per {counted} of a rung's first variant"
    )
    device = "time needs --device or --flops-per-second" if workload["device"] is None else workload["device"]
    return f"{rule}\n{device}"
