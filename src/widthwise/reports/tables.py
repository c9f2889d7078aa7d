"""Tables of several reports: costs, layers, environments, data, and the progress of runs."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import groupby
from typing import Any

from widthwise.data.identity import KEY, read_identity
from widthwise.records.cost import CostSummary
from widthwise.records.outcome import Variant
from widthwise.records.quantities import QUANTITIES, RUN_COSTS, OfModel
from widthwise.records.run import ListedRun, Run, RunResult
from widthwise.reports.formats import MISSING, clean, counted, duration, fixed, hidden_widths, plain, shown, si
from widthwise.reports.table import Table, by_column


def cost_table(models: Mapping[str, Variant | RunResult]) -> Table:
    """Return costs of models and their training: a row for each known quantity, a column for each model."""
    columns: dict[str, dict[str, str]] = {name: {} for name in models}
    for quantity in QUANTITIES:
        values = {name: quantity.value(model) for name, model in models.items()}
        is_cost = isinstance(quantity, OfModel) or quantity.name in RUN_COSTS
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


def data_table(named: Mapping[str, Run]) -> Table:
    """Return one column if all runs used the same data, otherwise a column for each run."""
    columns = {name: _data_of(run) for name, run in named.items()}
    first = next(iter(columns.values()), {})
    return by_column("Data", {"Value": first} if all(column == first for column in columns.values()) else columns)


def _data_of(run: Run) -> dict[str, str]:
    """Return title -> property of the data of a run. Unknown properties are omitted."""
    column = {}
    if run.environment.get(KEY):
        rows = read_identity(run.environment, f"{run.path}/environment.json").rows()
        column = {item: clean(text) for item, text in rows.items()}
    result = run.result
    if result is None:
        return column
    data = result.data
    if data is not None:
        column["training text"] = f"{counted(data.n_train_tokens, 'token')}, {counted(data.n_train_bytes, 'byte')}"
    if result.tokens:
        column["read in training"] = counted(result.tokens, "token")
        if data is not None:
            column["read in training"] += f", {result.tokens / data.n_train_tokens:.3g} times the training text"
    if data is not None:
        n_tokens = counted(data.n_held_out_tokens, "token")
        column["held-out text"] = f"{n_tokens}, {counted(data.n_held_out_bytes, 'byte')}"
    if result.n_val_tokens:
        windows = f"{counted(len(result.val_window_losses), 'window')} of {result.cost.seq_len:,}, from the start"
        column["read for the held-out loss"] = f"{counted(result.n_val_tokens, 'token')}: {windows}"
    return column
