"""The options of `widthwise sweep --ladder`, and its plan on the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from widthwise.cli.terminal import say, say_json, say_tables
from widthwise.config_io import UserError
from widthwise.experiments.experiment import Experiment
from widthwise.experiments.ladder import ladder_workload, read_ladder
from widthwise.records.quantities import QUANTITY
from widthwise.reports.page.formats import clean, duration, shown
from widthwise.reports.page.table import Table
from widthwise.runs.devices import DEVICES, Device

COLUMNS = [QUANTITY[name] for name in ("params", "layer_params", "average_width", "tokens", "steps", "training_flops")]


def clock_asked(
    device: str | None, mfu: float | None, flops_per_second: float | None, days: float | None, is_wanted: bool
) -> Device | None:
    """The device for which hours are counted, if any. Raises UserError if options conflict."""
    given = {"--device": device, "--mfu": mfu, "--flops-per-second": flops_per_second, "--days": days}
    named = [option for option, value in given.items() if value is not None]
    if named and not is_wanted:
        raise UserError(f"{named[0]}: goes with --ladder --dry-run, which counts hours by it")
    if mfu is not None and device is None:
        raise UserError(f"--mfu: got {mfu:g}; it is a share of the peak of a --device")
    if device is not None and flops_per_second is not None:
        raise UserError("--flops-per-second: conflicts with --device; give one of the two")
    if days is not None and not days > 0:
        raise UserError(f"--days: got {days:g}; must be above 0")
    if days is not None and device is None and flops_per_second is None:
        raise UserError(f"--days: got {days:g}; it needs a --device or --flops-per-second")
    if flops_per_second is not None:
        return Device.at_rate(flops_per_second)
    if device is None:
        return None
    found = Device.named(device, mfu, DEVICES, "; for any other device give --flops-per-second")
    return replace(found, name=found.speed)


def ladder_asked(recipe: Path, overrides: Sequence[str], asked: Mapping[str, Any]) -> Experiment:
    """asked: the sweep options of the command line. Raises UserError for those that a ladder does not have."""
    if other := sorted(set(asked) - {"seeds"}):
        raise UserError(f"--ladder: the ladder section of the recipe says what to train; leave out {', '.join(other)}")
    return read_ladder(recipe, overrides, asked.get("seeds", ()))


def show_ladder(plan: Experiment, clock: Device | None, days: float | None, as_json: bool) -> None:
    """Prints the planned work. days: what a run may take."""
    workload = ladder_workload(plan, clock, days)
    if as_json:
        say_json(workload)
    else:
        say_tables(ladder_table(workload))
        for line in plan.adjustment_lines:
            say(line)
        for each in workload["remarks"]:
            say(f"remark: {each}")


def ladder_table(workload: dict[str, Any]) -> Table:
    """One row per point, for one run of it, from `experiments.ladder.ladder_workload`."""
    total = shown(workload["training_flops"], COLUMNS[-1])
    rows = [
        [row["name"], *(shown(row[each.name], each) for each in COLUMNS), duration(row["hours"])]
        for row in workload["points"]
    ]
    rows += [[], ["all seeds", *[""] * (len(COLUMNS) - 1), total, duration(workload["hours"])]]
    title = f"{clean(workload['title'])}: {workload['n_runs']} runs, {len(workload['seeds'])} of each line"
    return Table(title, ["", *(each.brief_title for each in COLUMNS), "time"], rows, note=_note(workload))


def _note(workload: dict[str, Any]) -> str:
    tokens, counted = workload["tokens_per_param"], workload["count"].replace("params", "parameter").replace("_", " ")
    rule = (
        "steps as the recipe says" if tokens is None else f"{tokens:g} tokens per {counted} of a rung's first variant"
    )
    device = "time needs --device or --flops-per-second" if workload["device"] is None else workload["device"]
    return f"{rule}\n{device}"
