"""Results of a search, for the terminal."""

from typing import Any

from rich import box
from rich.table import Table

from widthwise.reports.page.formats import TIMES, fixed, hidden_widths, si, signed

SIZES = {
    "n_\nlayers": lambda row: str(row["n_layers"]),
    "d_\nmodel": lambda row: str(row["d_model"]),
    "FFN\nhidden": lambda row: hidden_widths([row["d_hidden"]] * row["n_blocks"]),
    "heads": lambda row: f"{row['n_heads']}{TIMES}{row['head_dim']}",
    "d/L": lambda row: fixed(row["aspect"], 0),
    "ratio": lambda row: fixed(row["ratio"], 3),
}
TOTALS = {
    "att.\nshare": lambda row: fixed(row["attention_params"] / row["layer_params"], 2),
    "layer\nparams": lambda row: si(row["layer_params"]),
    "params": lambda row: si(row["params"]),
    "FLOPs": lambda row: si(row["flops"]),
    "KV\nbytes": lambda row: si(row["kv_bytes"]),
    "act.\nbytes": lambda row: si(row["activation_bytes"]),
    "res.\nadds": lambda row: str(row["n_residual_additions"]),
}
"""Column -> how it is read from a candidate, or from the baseline."""


def search_table(summary: dict[str, Any], base: str) -> Table:
    """The baseline and, below it, the candidates of a `SearchResult.summary` with the Pareto front marked."""
    n_found, n_shown = summary["n_found"], len(summary["candidates"])
    budget = f"{summary['match']} {si(summary['budget'])}, within {100 * summary['tolerance']:g}%"
    table = Table(
        title=f"{budget}: {n_found:,} found" + (f", the first {n_shown}" if n_shown < n_found else ""),
        caption=f"* on the Pareto front of {', '.join(summary['costs'])}\n"
        f"base: {base}; forward FLOPs and bytes per token, at {summary['seq_len']:,} tokens",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("", min_width=4)
    for name in (*SIZES, *TOTALS, "miss"):
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    totals = [read(summary["baseline"]) for read in TOTALS.values()]
    table.add_row("base", *[""] * len(SIZES), *totals, "")
    for row in summary["candidates"]:
        cells = [read(row) for read in (*SIZES.values(), *TOTALS.values())]
        table.add_row("*" if row["is_pareto"] else "", *cells, f"{signed(100 * row['miss'], 2)}%")
    return table
