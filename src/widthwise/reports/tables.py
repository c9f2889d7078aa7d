"""Tables of several reports and verbs: costs, layers, environments, progress, inspections, planned work, searches."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import groupby
from typing import Any

from widthwise.config_io import refusing
from widthwise.records.cost import CostSummary
from widthwise.records.outcome import Variant
from widthwise.records.quantities import MODEL_COSTS, QUANTITIES, QUANTITY, RUN_COSTS, SHAPE_COSTS, ModelCost
from widthwise.records.run import ListedRun, RunResult
from widthwise.reports.formats import MISSING, TIMES, clean, duration, fixed, hidden_widths, plain, shown, si, signed
from widthwise.reports.table import Table, by_column

SMALLEST_MISS = 0.001
"""Smallest relative distance from the uniform model that an inspection shows."""
INSPECTED_SIZES = ("layer", "d_model", "n_heads", "n_kv_heads", "head_dim")
LAYER_COSTS = {cost.name.replace("flops", "forward_flops"): cost for cost in SHAPE_COSTS}
"""Key of a layer in an inspection -> quantity. Layers lack quantities of whole models."""
WORKLOAD = [QUANTITY[name] for name in ("params", "steps", "tokens", "training_flops")]
SEARCHED_SIZES = {
    "n_\nlayers": lambda row: str(row["n_layers"]),
    "d_\nmodel": lambda row: str(row["d_model"]),
    "FFN\nhidden": lambda row: hidden_widths([row["d_hidden"]] * row["n_blocks"]),
    "heads": lambda row: f"{row['n_heads']}{TIMES}{row['head_dim']}",
    "d/L": lambda row: fixed(row["aspect"], 0),
    "ratio": lambda row: fixed(row["ratio"], 3),
}
"""Title -> function that returns the cell of a candidate."""


def cost_table(models: Mapping[str, Variant | RunResult]) -> Table:
    """Return costs of models and their training: a row for each known quantity, a column for each model."""
    columns: dict[str, dict[str, str]] = {name: {} for name in models}
    for quantity in QUANTITIES:
        values = {name: quantity.value(model) for name, model in models.items()}
        is_cost = isinstance(quantity, ModelCost) or quantity.name in RUN_COSTS
        if is_cost and any(value is not None for value in values.values()):
            for name, value in values.items():
                columns[name][quantity.title] = shown(value, quantity)
    return by_column("Cost of each model", columns, "Quantity")


def layer_table(name: str, cost: CostSummary) -> Table:
    """Return sizes by layer. Equal consecutive layers share a row."""
    header = ["Layer", "width", "n_heads", "n_kv_heads", "head_dim", "FFN hidden"]
    hidden = [hidden_widths(widths) for widths in cost.hidden_widths]
    columns = [cost.widths, cost.n_heads, cost.n_kv_heads, cost.head_dim, hidden]
    layers = [[plain(column[i]) if column else MISSING for column in columns] for i in range(len(cost.widths))]
    rows: list[list[str]] = []
    last = 0
    for sizes, group in groupby(layers):
        first = last + 1
        last += len(list(group))
        rows.append([str(first) if first == last else f"{first} to {last}", *sizes])
    return Table(f"Layers of {clean(name)}", header, rows)


def environment_table(environment: Mapping[str, Any], name: str = "") -> Table:
    """Return machine and versions. name: name of the run, if runs differ."""
    title = f"Machine and versions of {clean(name)}" if name else "Machine and versions"
    with refusing("environment: is nested too deeply", RecursionError):
        return by_column(title, {"Value": {key: plain(value) for key, value in _flattened(environment)}})


def _flattened(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys and values; nested keys are `outer.inner`."""
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def progress_table(listed: Mapping[str, ListedRun], caption: str | None = None) -> Table:
    """Return a table with the last records of each run."""
    rows = [
        [
            clean(name),
            run.state,
            (MISSING if run.step is None else f"{run.step:,}") + (f"/{run.n_steps:,}" if run.n_steps else ""),
            fixed(run.loss, 4),
            fixed(run.val_loss, 4),
            si(run.tokens_per_second),
            duration(None if run.age_seconds is None else run.age_seconds / 3600),
            MISSING if run.n_bytes is None else f"{si(run.n_bytes)}B",
        ]
        for name, run in listed.items()
    ]
    header = ["Run", "State", "Step", "Loss", "Held-out loss", "Tokens/s", "Age", "Size"]
    so_far = f"So far, as of {datetime.now():%Y-%m-%d %H:%M:%S}; age: of the last record"
    return Table(caption or so_far, header, rows, text_columns=["State"])


def inspection_layers(summary: dict[str, Any]) -> Table:
    """Return the sizes and costs of every layer of an inspection."""
    costs = {name: quantity for name, quantity in LAYER_COSTS.items() if name in summary["layers"][0]}
    sizes = (*INSPECTED_SIZES, "window") if "window" in summary["layers"][0] else INSPECTED_SIZES
    rows = [
        [
            *(plain(row[name]) for name in sizes),
            hidden_widths(row["hidden_widths"]),
            *(shown(row[name], quantity) for name, quantity in costs.items()),
        ]
        for row in summary["layers"]
    ]
    header = [*sizes, "FFN hidden", *(quantity.brief_title for quantity in costs.values())]
    return Table("layers (forward FLOPs and bf16 bytes per token)", header, rows)


def inspection_costs(summary: dict[str, Any]) -> Table:
    """Return the costs of the model and its baseline in an inspection, without rows of zeros."""
    model = CostSummary.model_validate(summary)
    baseline = CostSummary.model_validate(summary["baseline"]) if "baseline" in summary else None
    header = ["", f"model\n{_kind(model)}"]
    if baseline:
        header += [f"baseline\n{_kind(baseline)}", "ratio"]
    rows: list[list[str]] = []
    for quantity in MODEL_COSTS.values():
        value = quantity.read(model) or 0
        reference = (quantity.read(baseline) or 0) if baseline else 0
        if value or reference:
            row = [quantity.title, _exact(value)]
            if baseline:
                row += [_exact(reference), f"{value / reference:.4f}" if reference else "-"]
            rows.append(row)
    return Table("costs", header, rows)


def _kind(cost: CostSummary) -> str:
    """Return residual, shape and MTP heads of a model, a line each."""
    lines = [cost.residual or "", "uniform" if cost.is_uniform else "shaped"]
    if cost.n_mtp_depths:
        lines.append(f"mtp {cost.n_mtp_depths}")
    return "\n".join(lines)


def _exact(value: float) -> str:
    return f"{value:,.2f}" if value % 1 else f"{value:,.0f}"


def budget_lines(summary: dict[str, Any]) -> list[str]:
    """Return lines on the distance of a model from its budget, and from the uniform model if above SMALLEST_MISS."""
    budgets = {"budget": summary.get("budget"), "uniform model": summary.get("matched")}
    lines = []
    for name, budget in budgets.items():
        if budget and (name == "budget" or abs(budget["miss"]) > SMALLEST_MISS):
            miss = signed(100 * budget["miss"], 2)
            lines.append(f"{name}: {si(budget['asked'])} {budget['match']}, missed by {miss}%")
    return lines


def workload_table(work: dict[str, Any], row: str) -> Table:
    """Return a row for each point of a `Plan.workload`. row: title of the points."""
    notes = ["tokens and FLOPs of all seeds"]
    header = [row, *(cost.brief_title for cost in WORKLOAD)]
    rows = [[clean(point["name"]), *(shown(point[cost.name], cost) for cost in WORKLOAD)] for point in work["points"]]
    if work["match"]:
        notes.append(f"difference: {QUANTITY[work['match']].title}, from {clean(work['baseline'])}")
        header.append("difference")
        for cells, point in zip(rows, work["points"]):
            cells.append("" if point["miss"] is None else f"{signed(100 * point['miss'], 3)}%")
    return Table(clean(work["title"]), header, rows, note="\n".join(notes))


def search_table(summary: dict[str, Any], base: str) -> Table:
    """Return the baseline, then the candidates of a `SearchResult.summary`, with the Pareto front marked."""
    n_shown = len(summary["candidates"])
    title = f"{summary['match']} {si(summary['budget'])}, within {100 * summary['tolerance']:g}%: "
    title += f"{summary['n_found']:,} found"
    if summary["per"]:
        title += f", the best of each {' and '.join(summary['per'])}: {summary['n_kept']}"
    if n_shown < summary["n_kept"]:
        title += f", the first {n_shown}"
    rows = [["base", *[""] * len(SEARCHED_SIZES), ""]]
    for candidate in summary["candidates"]:
        sizes = [read(candidate) for read in SEARCHED_SIZES.values()]
        rows.append(["*" if candidate["is_pareto"] else "", *sizes, f"{signed(100 * candidate['miss'], 2)}%"])
    for row, model in zip(rows, (summary["baseline"], *summary["candidates"])):
        row.append(fixed(model["attention_params"] / model["layer_params"], 2))
        row += [shown(model[cost.name], cost) for cost in SHAPE_COSTS]
        row.append(str(model["n_residual_additions"]))
    return Table(
        title,
        ["", *SEARCHED_SIZES, "miss", "att.\nshare", *(cost.brief_title for cost in SHAPE_COSTS), "res.\nadds"],
        rows,
        note=f"* on the Pareto front of {', '.join(summary['costs'])}\n"
        f"base: {clean(base)}; forward FLOPs and bytes per token, at {summary['seq_len']:,} tokens",
        n_essential=len(SEARCHED_SIZES) + 3,
    )
