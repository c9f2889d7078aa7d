"""`widthwise fit`: scaling laws with intervals, and what one group of models saves over another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from widthwise.cli.terminal import say, say_json, table_console

if TYPE_CHECKING:
    from rich.table import Table

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
    y: Annotated[str, typer.Option(help="val_loss, train_loss, val_bits_per_byte, or a column.")] = "val_loss",
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

    Example: `widthwise fit benchmarks/papers/variable_width_table_2.csv --x pflops_days --y loss --group model
    --baseline transformer`
    """
    from widthwise.experiments.scaling.fitting import fit_groups, gather
    from widthwise.experiments.scaling.points import Axes
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.environment import command_line

    title = "-".join(path.stem if path.suffix == ".csv" else path.resolve().name for path in paths)
    folder = out or Path("runs") / f"fit-{title}-{y}-{x}"
    check_kind(folder, "scaling.json")
    scaling = fit_groups(gather(paths, Axes(x, y, group_by), baseline), title, command_line(), law)
    files = [scaling.write(folder), *write_report([folder])]
    if as_json:
        say_json(scaling)
        return
    console = table_console()
    console.print(_fit_table(scaling))
    if scaling.savings:
        console.print(_saving_table(scaling))
    for line in (*_doubts(scaling), *scaling.sentence.splitlines()):
        console.print(line)
    for file in files:
        say(f"wrote {file}")


def _fit_table(scaling: "ScalingLaws") -> "Table":
    from rich import box
    from rich.table import Table

    from widthwise.reports.page.formats import fixed

    table = Table(
        title=f"{scaling.title}: {scaling.y} over {scaling.x}",
        caption=f"* the law of the answer; low, high: {100 * scaling.confidence:g}% interval;\n"
        "left out: rms at each point of the curve through the others",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("law")
    for name in ("", "value", "low", "high", "rms", "left out", "R²"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in scaling.groups:
        table.add_section()
        table.add_row(f"{group.name}, {len(group.points)} points")
        for kind, found in group.laws:
            symbols = found.parameters
            columns = [
                "\n".join(_number(getattr(each, end), n_digits) for each in symbols.values())
                for end, n_digits in (("mean", 5), ("low", 4), ("high", 4))
            ]
            numbers = (fixed(getattr(found, key), 4) for key in ("rms", "leave_one_out_rms", "r_squared"))
            mark = " *" if kind == group.chosen else ""
            table.add_row(f"  {kind}{mark}", "\n".join(symbols), *columns, *numbers)
    return table


def _doubts(scaling: "ScalingLaws") -> list[str]:
    """Why laws could not be fitted, or are unreliable."""
    return [
        f"{group.name}: {kind}: {found.reason}."
        for group in scaling.groups
        for kind, found in group.laws
        if found.reason
    ]


def _number(value: float | None, n_digits: int) -> str:
    from widthwise.reports.page.formats import MISSING, minus

    return MISSING if value is None else minus(f"{value:.{n_digits}g}")


def _saving_table(scaling: "ScalingLaws") -> "Table":
    from rich import box
    from rich.table import Table

    from widthwise.reports.page.formats import MISSING

    def share(value: float | None) -> str:
        return MISSING if value is None else f"{value:.1%}"

    table = Table(title=f"{scaling.x} for {scaling.baseline}'s {scaling.y}", box=box.SIMPLE_HEAD)
    for name in ("group", "law", "against", "at", scaling.y):
        table.add_column(name)
    for name in ("needs", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in scaling.savings:
        ratio, at = each.ratio, each.at
        ends = f"{share(ratio.low)} to {share(ratio.high)}"
        against = f"the {each.kind}"
        table.add_row(each.group, each.fit, against, at.name, f"{at.y:.4g}", share(ratio.mean), ends)
    return table
