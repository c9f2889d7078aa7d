"""The points of a sweep, before and after."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from widthwise.records.estimate import Estimate
from widthwise.records.sweep import FinishedPoint, Sweep
from widthwise.reports.page.formats import clean, fixed, ratio, si, signed


def workload_line(workload: dict[str, Any]) -> str:
    """The amount of work in one line."""
    points, n_seeds = workload["n_points"], workload["n_seeds"]
    return (
        f"{points} points x {n_seeds} seeds: {workload['n_runs']} runs, "
        f"together about {si(workload['training_flops'])} training FLOPs"
    )


def workload_table(title: str, workload: dict[str, Any]) -> Table:
    """The planned work, point by point. The points of a search are not known in advance: one row represents all."""
    table = Table(title=Text(clean(title)), caption=Text(workload_line(workload)), box=SIMPLE_HEAD)
    table.add_column("point", overflow="fold")
    for name in ("params", "steps", "tokens,\nall seeds", "training FLOPs,\nall seeds"):
        table.add_column(name, justify="right")
    for row in workload["points"]:
        cells = (si(row["params"]), f"{row['steps']:,}", si(row["tokens"]), si(row["training_flops"]))
        table.add_row(clean(row["name"]), *cells)
    return table


def sweep_table(found: Sweep) -> Table:
    """The content of sweep.json, the lowest loss first; what has not finished stands below."""
    baseline = found.baseline
    table = Table(title=Text(clean(found.title)), box=SIMPLE_HEAD, show_edge=False)
    if baseline:
        table.caption = Text(f"{100 * found.confidence:.4g}% intervals; FLOPs and KV: ratio to {clean(baseline)}")
    table.add_column("point", overflow="fold", min_width=12)
    for name in ("loss", "difference", "verdict", "params", "FLOPs", "KV"):
        table.add_column(name, justify="left" if name == "verdict" else "right")
    for point in found.variants:
        table.add_row(*_cells(point))
    for point in found.open_points:
        table.add_row(clean(point.name), point.state)
    return table


def failure_lines(found: Sweep) -> list[str]:
    """Why points failed."""
    return [f"{point.name}: {clean(point.reason or '')}" for point in found.open_points if point.state == "failed"]


def _cells(point: FinishedPoint) -> list[str]:
    return [
        clean(point.name),
        fixed(point.val_loss.mean, 4),
        _difference(point.difference),
        point.verdict or "",
        si(point.cost.params["total"]),
        ratio(point.ratio.get("training_flops"), sign=""),
        ratio(point.ratio.get("kv_bytes"), sign=""),
    ]


def _difference(difference: Estimate | None) -> str:
    if difference is None:
        return ""
    mean = signed(difference.mean, 4)
    if difference.low is None:
        return mean
    return f"{mean} ({signed(difference.low, 3)} to {signed(difference.high, 3)})"
