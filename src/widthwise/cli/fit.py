"""`widthwise fit`: scaling laws with intervals, and what one group of models saves over another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from widthwise.cli.terminal import progress_console, say, say_json, say_tables, table_console
from widthwise.reports.formats import MISSING, clean, fixed, minus, percentage
from widthwise.reports.table import Table

if TYPE_CHECKING:
    from widthwise.records.scaling import ScalingLaws


def fit(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Folders of comparisons or sweeps, run directories, or your own .csv tables."),
    ],
    x: Annotated[
        str,
        typer.Option(help="training_flops, tokens, params, layer_params, average_width, kv_bytes ..., or a column."),
    ] = "training_flops",
    y: Annotated[
        str, typer.Option(help="val_loss, val_loss_next_2, train_loss, val_bits_per_byte, or a column.")
    ] = "val_loss",
    group_by: Annotated[
        str | None,
        typer.Option("--group", "--group-by", help="One curve for each value of this column or recipe key."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="The group that others are compared with; default: the baseline of the comparisons."),
    ] = None,
    law: Annotated[
        str | None,
        typer.Option(
            help="power, power_irreducible or log_linear; default: the one that predicts left-out points best."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/fit-NAMES-Y-X.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print scaling.json.")] = False,
) -> None:
    """Fit the loss as a function of compute, parameters or width, with intervals; say what a group saves at equal loss.

    Example: `widthwise fit configs/papers/points/variable_width_table_2.csv --x pflops_days --y loss --group model
    --baseline transformer`
    """
    from widthwise.cli.progress import shown_progress
    from widthwise.experiments.fitting import fit_groups
    from widthwise.experiments.scaling_points import Axes, gather
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.environment import command_line

    title = "-".join(path.stem if path.suffix == ".csv" else path.resolve().name for path in paths)
    folder = out or Path("runs") / f"fit-{title}-{y}-{x}"
    check_kind(folder, "scaling.json")
    gathered = gather(paths, Axes(x, y, group_by), baseline)
    with shown_progress(progress_console()) as observer:
        scaling = fit_groups(gathered, title, command_line(), law, observer)
    files = [scaling.write(folder), *write_report([folder])]
    if as_json:
        say_json(scaling)
        return
    say_tables(_fit_table(scaling), *([_saving_table(scaling)] if scaling.savings else []))
    console = table_console()
    for line in (*_doubts(scaling), *scaling.sentence.splitlines()):
        console.print(line)
    for file in files:
        say(f"wrote {file}")


def _fit_table(scaling: "ScalingLaws") -> Table:
    rows: list[list[str]] = []
    for group in scaling.groups:
        rows += [[]] * bool(rows) + [[f"{clean(group.name)}, {len(group.points)} points"]]
        for kind, found in group.fits.items():
            errors = [fixed(getattr(found, key), 4) for key in ("rms", "leave_one_out_rms", "r_squared")]
            name = f"  {kind} *" if kind == group.chosen else f"  {kind}"
            symbols = [
                [symbol, *(_number(value, n) for value, n in ((each.mean, 5), (each.low, 4), (each.high, 4)))]
                for symbol, each in found.parameters.items()
            ]
            first, *others = symbols or [[""] * 4]
            rows += [[name, *first, *errors], *(["", *other] for other in others)]
    note = f"* the law of the answer; low, high: {percentage(scaling.confidence)} interval;\n"
    return Table(
        f"{clean(scaling.title)}: {clean(scaling.y)} over {clean(scaling.x)}",
        ["law", "", "value", "low", "high", "rms", "left out", "R²"],
        rows,
        note=f"{note}left out: rms at each point of the curve through the others",
    )


def _doubts(scaling: "ScalingLaws") -> list[str]:
    """Why laws could not be fitted, or are unreliable."""
    return [
        f"{group.name}: {kind}: {found.reason}."
        for group in scaling.groups
        for kind, found in group.fits.items()
        if found.reason
    ]


def _number(value: float | None, n_digits: int) -> str:
    return MISSING if value is None else minus(f"{value:.{n_digits}g}")


def _saving_table(scaling: "ScalingLaws") -> Table:
    rows = []
    for each in scaling.savings:
        ends = f"{_share(each.ratio.low)} to {_share(each.ratio.high)}"
        against = [each.fit, f"the {each.kind}", clean(each.at.name)]
        rows.append([clean(each.group), *against, f"{each.at.y:.4g}", _share(each.ratio.mean), ends])
    title = f"{clean(scaling.x)} for {clean(scaling.baseline or '')}'s {clean(scaling.y)}"
    words = ("law", "against", "at")
    return Table(title, ["group", *words, clean(scaling.y), "needs", "interval"], rows, words=words)


def _share(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1%}"
