"""The variants of a comparison, or the points of a sweep, before anything is trained."""

from typing import Any

from widthwise.cli.terminal import say_json, say_tables, table_console
from widthwise.records.quantities import QUANTITY
from widthwise.reports.page.formats import clean, fixed, shown, signed
from widthwise.reports.page.table import Table

COLUMNS = [
    QUANTITY[name]
    for name in (
        *("params", "layer_params", "active_params", "flops"),
        *("kv_bytes", "activation_bytes", "tokens", "training_flops"),
    )
]
TITLES = {"layer_params": "layer\nparams", "active_params": "active", "training_flops": "training\nFLOPs"}


def show_variants(summary: dict[str, Any], title: str, as_json: bool) -> None:
    """Prints a table of costs, or JSON. summary: that of `experiments.variants.Variants`."""
    if as_json:
        say_json(summary)
        return
    say_tables(variants_table(summary, title))
    console = table_console()
    for row in summary["variants"]:
        if found := row["adjusted"]:
            changes = [f"{each['key']} {each['before']:.7g} -> {each['after']:.7g}" for each in found["changes"]]
            miss = f"{found['match']} missed by {signed(100 * found['miss'], 3)}%"
            console.print(f"{clean(row['name'])}: {', '.join(changes)}, {miss}")
    if summary["n_drawn"]:
        console.print(f"{summary['n_drawn']} further points are drawn when the sweep runs")
    if summary["refusal"]:
        console.print(f"compare refuses this: {clean(summary['refusal'])}")


def variants_table(summary: dict[str, Any], title: str) -> Table:
    """Costs: a row for each variant, and below every quantity its ratio to the baseline's."""
    rows = [[clean(row["name"]), *(_cell(row, each.name) for each in COLUMNS)] for row in summary["variants"]]
    note = "FLOPs and bytes per token, tokens and training FLOPs of one run"
    if summary["baseline"] is not None:
        note += f"\nbelow: ratio to {clean(summary['baseline'])}"
    return Table(clean(title), ["", *(TITLES.get(each.name, each.brief_title) for each in COLUMNS)], rows, note=note)


def _cell(row: dict[str, Any], name: str) -> str:
    value = shown(row[name], QUANTITY[name])
    return value if row["ratio"] is None else f"{value}\n{fixed(row['ratio'][name], 4)}"
