"""Options and tables of the verbs that train many runs."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import typer

from widthwise.cli.terminal import say, say_json, say_tables, table_console
from widthwise.config_io import UserError
from widthwise.records.quantities import QUANTITY
from widthwise.reports.page.formats import clean, fixed, shown, si, signed
from widthwise.reports.page.table import Table

WORKERS = "Workers"
WORKLOAD = [QUANTITY[name] for name in ("params", "steps", "tokens", "training_flops")]
COSTS = [
    QUANTITY[name]
    for name in (
        *("params", "layer_params", "active_params", "flops"),
        *("kv_bytes", "activation_bytes", "tokens", "training_flops"),
    )
]
TITLES = {"layer_params": "layer\nparams", "active_params": "active", "training_flops": "training\nFLOPs"}

Row = Literal["point", "variant"]
"""What a line of the workload's table is called."""

MatchOption = Annotated[
    str | None,
    typer.Option(
        help="What must match the baseline: params, layer_params (attention and feed-forward), active_params, flops, "
        "flops_causal, kv_bytes, training_flops, none."
    ),
]
AdjustOption = Annotated[
    str | None,
    typer.Option(help="What is changed of all others until it matches: ffn, d_model or shape; in turn: d_model,ffn."),
]
JobsOption = Annotated[
    str,
    typer.Option(
        "--jobs",
        rich_help_panel=WORKERS,
        help="Runs trained at the same time on this machine; auto: as many as it has cores, or GPUs, for.",
    ),
]
WorkerOption = Annotated[
    bool,
    typer.Option(
        "--worker",
        rich_help_panel=WORKERS,
        help="Do not wait for runs that other workers hold: end when there is nothing left to begin.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the planned work, and train nothing.")]


def jobs_asked(text: str) -> int | None:
    """ "2" -> 2, "auto" -> None. Raises UserError."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--jobs: got {text!r}; must be auto or a number of at least 1")
    return int(text)


def show_workload(
    workload: dict[str, Any], title: str, row: Row, adjustment_lines: Iterable[str], as_json: bool
) -> None:
    """Print a table of the planned work and what was adjusted, or JSON. workload: of `Experiment.workload`."""
    if as_json:
        say_json(workload)
        return
    say_tables(workload_table(workload, title, row))
    for line in adjustment_lines:
        say(line)


def workload_table(workload: dict[str, Any], title: str, row: Row) -> Table:
    """A line for each point or variant. Those of a search are not known in advance: one line represents all."""
    header = [row, *(each.brief_title for each in WORKLOAD)]
    rows = [[clean(each["name"]), *(shown(each[cost.name], cost) for cost in WORKLOAD)] for each in workload["points"]]
    notes = ["tokens and FLOPs of all seeds"]
    if workload["match"]:
        header.append("difference")
        rows = [[*cells, _miss(each["miss"])] for cells, each in zip(rows, workload["points"])]
        notes.append(f"difference: {QUANTITY[workload['match']].title}, from {clean(workload['baseline'])}")
    return Table(clean(title), header, rows, note="\n".join([*notes, workload_line(workload, row)]))


def workload_line(workload: dict[str, Any], row: Row) -> str:
    """The amount of work in one line."""
    return (
        f"{workload['n_points']} {row}s x {workload['n_seeds']} seeds: {workload['n_runs']} runs, "
        f"together about {si(workload['training_flops'])} training FLOPs"
    )


def _miss(miss: float | None) -> str:
    return "" if miss is None else f"{signed(100 * miss, 3)}%"


def show_costs(costs: dict[str, Any], title: str, as_json: bool) -> None:
    """Print a table of what the points of an experiment cost, or JSON. costs: of `Experiment.costs`."""
    if as_json:
        say_json(costs)
        return
    say_tables(costs_table(costs, title))
    console = table_console()
    for row in costs["variants"]:
        if found := row["adjusted"]:
            changes = [f"{each['key']} {each['before']:.7g} -> {each['after']:.7g}" for each in found["changes"]]
            miss = f"{found['match']} missed by {signed(100 * found['miss'], 3)}%"
            console.print(f"{clean(row['name'])}: {', '.join(changes)}, {miss}")
    if costs["n_drawn"]:
        console.print(f"{costs['n_drawn']} further points are drawn when the sweep runs")
    if costs["refusal"]:
        console.print(f"compare refuses this: {clean(costs['refusal'])}")


def costs_table(costs: dict[str, Any], title: str) -> Table:
    """A row for each point, and below every quantity its ratio to the baseline's."""
    rows = [[clean(row["name"]), *(_cell(row, each.name) for each in COSTS)] for row in costs["variants"]]
    note = "FLOPs and bytes per token, tokens and training FLOPs of one run"
    if costs["baseline"] is not None:
        note += f"\nbelow: ratio to {clean(costs['baseline'])}"
    return Table(clean(title), ["", *(TITLES.get(each.name, each.brief_title) for each in COSTS)], rows, note=note)


def _cell(row: dict[str, Any], name: str) -> str:
    value = shown(row[name], QUANTITY[name])
    return value if row["ratio"] is None else f"{value}\n{fixed(row['ratio'][name], 4)}"
