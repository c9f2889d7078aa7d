"""The tables of an inspection, which `inspect` prints and the explorer shows."""

from typing import Any

from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_MODELS, SHAPE_COSTS
from widthwise.reports.formats import hidden_widths, plain, shown, si, signed
from widthwise.reports.table import Table

SMALLEST_MISS = 0.001
SIZES = ("layer", "d_model", "n_heads", "n_kv_heads", "head_dim")
LAYER_COSTS = {"forward_flops" if cost.name == "flops" else cost.name: cost for cost in SHAPE_COSTS}
"""Key of a layer in an inspection -> quantity. Layers lack quantities of whole models."""


def layer_table(summary: dict[str, Any]) -> Table:
    """Return the sizes and costs of every layer of an inspection."""
    costs = {name: quantity for name, quantity in LAYER_COSTS.items() if name in summary["layers"][0]}
    sizes = (*SIZES, "window") if "window" in summary["layers"][0] else SIZES
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


def cost_table(summary: dict[str, Any]) -> Table:
    """Return the costs of the model and its baseline in an inspection, without rows of zeros."""
    model = CostSummary.model_validate(summary)
    baseline = CostSummary.model_validate(summary["baseline"]) if "baseline" in summary else None
    header = ["", f"model\n{_kind(model)}", *([f"baseline\n{_kind(baseline)}", "ratio"] if baseline else [])]
    rows: list[list[str]] = []
    for quantity in OF_MODELS.values():
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
