"""An inspection as tables: what `inspect` prints and the explorer shows."""

from typing import Any

from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_MODELS, SHAPE_COSTS
from widthwise.reports.formats import hidden_widths, shown, si, signed
from widthwise.reports.table import Table

SMALLEST_MISS = 0.001
SIZES = ("layer", "d_model", "n_heads", "n_kv_heads", "head_dim")
LAYER_COSTS = {"forward_flops" if each.name == "flops" else each.name: each for each in SHAPE_COSTS}
"""Cost of a layer in an inspection -> its quantity; a row lacks costs of whole models."""


def layer_table(summary: dict[str, Any]) -> Table:
    """Return the sizes and costs of every layer, from an inspection."""
    costs = {name: each for name, each in LAYER_COSTS.items() if name in summary["layers"][0]}
    rows = [
        [
            *(str(row[name]) for name in SIZES),
            hidden_widths(row["hidden_widths"]),
            *(shown(row[name], quantity) for name, quantity in costs.items()),
        ]
        for row in summary["layers"]
    ]
    header = [*SIZES, "FFN hidden", *(quantity.brief_title for quantity in costs.values())]
    return Table("layers (forward FLOPs and bf16 bytes per token)", header, rows)


def cost_table(summary: dict[str, Any]) -> Table:
    """Return the whole model next to its baseline, from an inspection, without parts that no model has."""
    model = CostSummary.model_validate(summary)
    baseline = CostSummary.model_validate(summary["baseline"]) if "baseline" in summary else None
    header = ["", f"model\n{_kind(model)}", *([f"baseline\n{_kind(baseline)}", "ratio"] if baseline else [])]
    rows: list[list[str]] = []
    for quantity in OF_MODELS.values():
        value, reference = quantity.read(model) or 0, (quantity.read(baseline) or 0) if baseline else 0
        if value or reference:
            cells = [_exact(reference), f"{value / reference:.4f}" if reference else "-"] if baseline else []
            rows.append([quantity.title, _exact(value), *cells])
    return Table("costs", header, rows)


def _kind(cost: CostSummary) -> str:
    """Describe a model: its residual, its shape, its MTP heads."""
    lines = [cost.residual or "", "uniform" if cost.is_uniform else "shaped"]
    if cost.n_mtp_depths:
        lines.append(f"mtp {cost.n_mtp_depths}")
    return "\n".join(lines)


def _exact(value: float) -> str:
    return f"{value:,.2f}" if value % 1 else f"{value:,.0f}"


def budget_lines(summary: dict[str, Any]) -> list[str]:
    """Return the distance of a designed model from its budget, and of a shape from the uniform model it matches if it
    is more than SMALLEST_MISS, from an inspection."""
    misses = [("budget", each) for each in [summary.get("budget")] if each]
    misses += [
        ("uniform model", each) for each in [summary.get("matched")] if each and abs(each["miss"]) > SMALLEST_MISS
    ]
    return [
        f"{name}: {si(each['asked'])} {each['match']}, missed by {signed(100 * each['miss'], 2)}%"
        for name, each in misses
    ]
