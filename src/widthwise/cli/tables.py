"""Cost tables for the terminal."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.table import Table

from widthwise.model.config import PARTS
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
    """The whole model and its baseline, from an inspection. Parts that neither has are left out."""
    baseline = summary.get("baseline")
    table = Table(title="costs (FLOPs and bytes per token)")
    table.add_column("")
    table.add_column(f"model\n{_kind(summary)}", justify="right")
    if baseline:
        table.add_column(f"baseline\n{_kind(baseline)}", justify="right")
        table.add_column("ratio", justify="right")
    for name, read in COST_LINES.items():
        value, other = read(summary), read(baseline) if baseline else 0
        if value or other:
            cells = [_exact(other), f"{value / other:.4f}" if other else "-"] if baseline else []
            table.add_row(name, _exact(value), *cells)
    return table


def budget_line(budget: dict[str, Any]) -> str:
    """How far a designed model is from the budget it was asked to meet, from its inspection."""
    return f"budget: {si(budget['asked'])} {budget['match']}, missed by {signed(100 * budget['miss'], 2)}%"


def _kind(summary: dict[str, Any]) -> str:
    """The kind of model: its residual, its shape, its multi-token prediction."""
    words = [summary["residual"], "uniform" if len(set(summary["widths"])) == 1 else "shaped"]
    if summary["n_mtp_depths"]:
        words.append(f"mtp {summary['n_mtp_depths']}")
    return "\n".join(words)


def _exact(value: float) -> str:
    return f"{value:,.2f}" if value % 1 else f"{value:,.0f}"


def _params(part: str) -> Callable[[dict[str, Any]], float]:
    return lambda summary: summary["params"][part]


def _flops(part: str) -> Callable[[dict[str, Any]], float]:
    return lambda summary: summary["flops_by_part"][part]


MODEL_PARTS = tuple(part for part in PARTS if part != "mtp")

COST_LINES = {
    "params": _params("total"),
    **{f"  {part}": _params(part) for part in MODEL_PARTS},
    "  mtp (training)": _params("mtp"),
    "params, layers": lambda summary: sum(summary["params"][part] for part in ("attention", "ffn", "residual")),
    "params, active": _params("active"),
    "average width": lambda summary: summary["average_width"],
    "stream width": lambda summary: summary["stream_width"],
    "virtual width": lambda summary: summary["virtual_width"],
    "FLOPs, forward": lambda summary: summary["flops_per_token"]["forward"],
    **{f"  {part} FLOPs": _flops(part) for part in MODEL_PARTS},
    "FLOPs, forward, causal": lambda summary: summary["flops_per_token"]["forward_causal"],
    "FLOPs, training": lambda summary: summary["flops_per_token"]["training"],
    "  mtp FLOPs": lambda summary: summary["flops_per_token"]["training_mtp"],
    "KV bytes (bf16)": lambda summary: summary["kv_bytes_per_token"],
    "activation bytes (bf16)": lambda summary: summary["activation_bytes_per_token"],
}
