"""Cost tables for the terminal."""

import sys
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from widthwise.reports.formats import hidden_widths, si

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

TABLE_WIDTH = 100
"""Columns the widest tables need, where no terminal says how many there are."""


def table_console() -> Console:
    """Standard output, wide enough for every table."""
    return Console() if sys.stdout.isatty() else Console(width=TABLE_WIDTH)


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
    """The whole model beside its baseline, from an inspection."""
    baseline = summary.get("baseline")
    table = Table(title="costs (FLOPs and bytes per token)")
    for name in ("", "model", *(("baseline", "ratio") if baseline else ())):
        table.add_column(name, justify="right" if name else "left")
    for name, read in COST_LINES.items():
        cells = [_exact(read(summary))]
        if baseline:
            value, other = read(summary), read(baseline)
            cells += [_exact(other), f"{value / other:.4f}" if other else "-"]
        table.add_row(name, *cells)
    return table


def _exact(value: float) -> str:
    return f"{value:,.2f}" if value % 1 else f"{value:,.0f}"


def _part(part: str) -> Callable[[dict[str, Any]], float]:
    return lambda summary: summary["params"][part]


COST_LINES = {
    "params": _part("total"),
    **{f"  {part}": _part(part) for part in ("embedding", "attention", "ffn", "norm", "residual", "head")},
    "params, layers": lambda summary: sum(summary["params"][part] for part in ("attention", "ffn", "residual")),
    "params, active": _part("active"),
    "average width": lambda summary: summary["average_width"],
    "FLOPs, forward": lambda summary: summary["flops_per_token"]["forward"],
    "FLOPs, forward, causal": lambda summary: summary["flops_per_token"]["forward_causal"],
    "FLOPs, training": lambda summary: summary["flops_per_token"]["training"],
    "KV bytes (bf16)": lambda summary: summary["kv_bytes_per_token"],
    "activation bytes (bf16)": lambda summary: summary["activation_bytes_per_token"],
}
