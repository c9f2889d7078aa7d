"""Options, planned work and results on the terminal, shared by the verbs that train many runs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from widthwise.cli.progress import TrackerName, training_progress
from widthwise.cli.terminal import say, say_json, say_tables, table_console
from widthwise.config_io import UserError
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import QUANTITY
from widthwise.reports.formats import clean, duration, fixed, interval, percentage, ratio, shown, si, signed
from widthwise.reports.main_table import doubts, marked
from widthwise.reports.table import Table
from widthwise.run_dir import RunFailed
from widthwise.training.launch import is_silent

if TYPE_CHECKING:
    from widthwise.experiments.experiment import Experiment

WORKERS = "Workers"
LOSS, DIFFERENCE, PARAMS = (QUANTITY[name] for name in ("val_loss", "difference", "params"))
RATIOS = [QUANTITY[name] for name in ("training_flops", "kv_bytes")]
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
"""Name of a line of the workload's table."""

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


def run_and_report(
    plan: "Experiment",
    folder: Path,
    as_json: bool,
    jobs: str = "auto",
    track: Sequence[TrackerName] | None = None,
    is_worker: bool = False,
    storage: str | None = None,
    study: str | None = None,
) -> None:
    """Train the runs of an experiment, show their progress, and print the result.

    jobs, track, storage, study: as the verbs take them. is_worker: end when there is nothing left to begin, though
    others have not finished. Raises RunFailed where all points failed.
    """
    from widthwise.experiments.jobs import Jobs
    from widthwise.experiments.running import expected_seconds, run_experiment
    from widthwise.experiments.scheduler import HeldElsewhere
    from widthwise.reports.answers import answer
    from widthwise.reports.main_table import comparison_table
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.environment import command_line

    # A comparison may stand in the folder of a run: `train x.yaml`, then `compare x.yaml`.
    if plan.axes is not None:
        check_kind(folder, Outcome.file_name)
    at_a_time = Jobs.of([plan.reference, *plan.recipes.values()], plan.n_points * len(plan.seeds), jobs_asked(jobs))
    with training_progress(track) as observer:
        amount = plan.in_words if plan.axes is None else workload_line(plan.workload(), "point")
        if plan.axes is None and (seconds := expected_seconds(plan, folder, at_a_time)):
            amount += f"; about {duration(seconds / 3600)} here, by a measured step of each variant"
        for line in (amount, *plan.adjustment_lines):
            observer.message(line)
        try:
            found = run_experiment(
                plan, folder, command_line(), observer, at_a_time, not is_worker, storage_url=storage, study_name=study
            )
        except HeldElsewhere as left:
            observer.message(str(left))
            return
    if is_silent():
        return
    files = write_report([folder])
    if as_json:
        say_json(found)
    else:
        table_console().print("\n".join(answer(found)))
        say_tables(sweep_table(found) if found.axes else comparison_table(found))
        failed = [point for point in found.open_points if point.state == "failed"]
        reasons = [f"{point.name}: {clean(point.reason or '')}" for point in failed]
        say(*reasons, *(f"wrote {file}" for file in reversed(files)))  # the page comes last
    if found.study is not None and not found.study.n_finished:
        raise RunFailed(f"{folder}: all {found.study.n_failed} points failed")


def sweep_table(found: Outcome) -> Table:
    """The points of a sweep, the lowest loss first; what has not finished stands below."""
    rows = [_cells(point) for point in found.variants] + [[clean(each.name), each.state] for each in found.open_points]
    header = ["point", LOSS.brief_title, DIFFERENCE.title, "verdict", PARAMS.brief_title]
    header += [each.brief_title for each in RATIOS]
    note = ""
    if found.baseline_words:
        ratios = " and ".join(each.brief_title for each in RATIOS)
        note = f"{percentage(found.confidence)} intervals; {ratios}: ratio to {clean(found.baseline_words)}"
    return Table(clean(found.title), header, rows, words={"verdict"}, note="\n".join([note, *doubts(found)]).strip())


def _cells(point: Variant) -> list[str]:
    ends = interval(point.difference, 3, with_sign=True) if point.difference else ""
    difference = shown(point.difference.mean, DIFFERENCE) if point.difference else ""
    return [
        marked(point),
        shown(point.val_loss.mean, LOSS),
        f"{difference} ({ends})" if ends else difference,
        point.verdict or "",
        shown(PARAMS.value(point), PARAMS),
        *(ratio(point.ratio.get(each.name), sign="") for each in RATIOS),
    ]


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
