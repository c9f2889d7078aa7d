"""Cost tables for the terminal."""

from typing import Any

from rich import box
from rich.table import Table

from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_MODELS
from widthwise.reports.page.formats import hidden_widths, si, signed

LAYER_HEADERS = (
    "layer",
    "d_model",
    "n_heads",
    "n_kv\n_heads",
    "head\n_dim",
    "FFN\nhidden",
    "params",
    "forward\nFLOPs",
    "KV\nbytes",
    "act.\nbytes",
)


def layer_table(summary: dict[str, Any]) -> Table:
    """The sizes and costs of every layer, from an inspection."""
    table = Table(title="layers (FLOPs and bytes per token)", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in LAYER_HEADERS:
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    for row in summary["layers"]:
        sizes = (row[name] for name in ("layer", "d_model", "n_heads", "n_kv_heads", "head_dim"))
        costs = (row[name] for name in ("params", "forward_flops", "kv_bytes", "activation_bytes"))
        hidden = hidden_widths(row["hidden_widths"])
        table.add_row(*(str(size) for size in sizes), hidden, *(si(cost) for cost in costs))
    return table


def cost_table(summary: dict[str, Any]) -> Table:
    """The whole model beside its baseline, from an inspection. Parts that no model has are left out."""
    own = CostSummary.model_validate(summary)
    baseline = CostSummary.model_validate(summary["baseline"]) if "baseline" in summary else None
    table = Table(title="costs (FLOPs and bytes per token)")
    table.add_column("")
    table.add_column(f"model\n{_kind(own)}", justify="right")
    if baseline:
        table.add_column(f"baseline\n{_kind(baseline)}", justify="right")
        table.add_column("ratio", justify="right")
    for quantity in OF_MODELS.values():
        value, other = quantity.read(own) or 0, (quantity.read(baseline) or 0) if baseline else 0
        if value or other:
            cells = [_exact(other), f"{value / other:.4f}" if other else "-"] if baseline else []
            table.add_row(quantity.title, _exact(value), *cells)
    return table


def budget_line(budget: dict[str, Any]) -> str:
    """How far a designed model is from the budget it was asked to meet, from its inspection."""
    return f"budget: {si(budget['asked'])} {budget['match']}, missed by {signed(100 * budget['miss'], 2)}%"


def _kind(cost: CostSummary) -> str:
    """What kind of model it is: its residual, its shape, its further heads."""
    words = [cost.residual or "", "uniform" if cost.is_uniform else "shaped"]
    if cost.n_mtp_depths:
        words.append(f"mtp {cost.n_mtp_depths}")
    return "\n".join(words)


def _exact(value: float) -> str:
    return f"{value:,.2f}" if value % 1 else f"{value:,.0f}"
