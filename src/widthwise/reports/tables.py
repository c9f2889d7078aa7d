"""The tables that several reports show: models, losses, runs, and the text that runs have read."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from widthwise.data.identity import KEY, read_identity
from widthwise.records.cost import CostSummary
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import OF_HELD_OUT, OF_MODELS, OF_RUNS, QUANTITIES, RUN_COSTS, OfModel
from widthwise.records.run import Run, RunResult
from widthwise.reports.formats import MISSING, clean, counted, fixed, hidden_widths, plain, shown, signed
from widthwise.reports.table import Table


def by_row(caption: str, corner: str, cells: Mapping[str, Mapping[str, str]]) -> Table:
    """Return a table of cells by row and column, whose titles are in the order in which they first appear."""
    titles = list(dict.fromkeys(title for row in cells.values() for title in row))
    rows = [[clean(name), *(row.get(title, MISSING) for title in titles)] for name, row in cells.items()]
    return Table(caption, [corner, *map(clean, titles)], rows)


def by_column(caption: str, columns: Mapping[str, Mapping[str, str]], corner: str = "Item") -> Table:
    """Return a table of cells by column and row, which are things of several kinds."""
    titles = dict.fromkeys(title for column in columns.values() for title in column)
    cells = {title: {name: column.get(title, MISSING) for name, column in columns.items()} for title in titles}
    return replace(by_row(caption, corner, cells), sortable=False)


def cost_table(models: Mapping[str, Variant | RunResult]) -> Table:
    """Return costs of models and their training: one row per known quantity, one column per model."""
    counted = [each for each in QUANTITIES if isinstance(each, OfModel) or each.name in RUN_COSTS]
    known = [each for each in counted if any(each.value(model) is not None for model in models.values())]
    columns = {name: {each.title: shown(each.value(model), each) for each in known} for name, model in models.items()}
    return by_column("Cost of each model", columns, "Quantity")


def layer_table(name: str, cost: CostSummary) -> Table:
    """Sizes per layer; neighbouring layers that are equal share a row."""
    header = ["Layer", "width", "n_heads", "n_kv_heads", "head_dim", "FFN hidden"]
    hidden = [hidden_widths(widths) for widths in cost.hidden_widths]
    columns = [cost.widths, cost.n_heads, cost.n_kv_heads, cost.head_dim, hidden]
    layers = [[plain(column[i]) if column else MISSING for column in columns] for i in range(len(cost.widths))]
    rows, last = list[list[str]](), 0
    for sizes, alike in groupby(layers):
        first, last = last + 1, last + len(list(alike))
        rows.append([str(first) if first == last else f"{first} to {last}", *sizes])
    return Table(f"Layers of {clean(name)}", header, rows)


def seed_table(outcome: Outcome) -> Table:
    """Held-out loss and difference of every seed."""
    cells: dict[str, dict[str, str]] = {}
    for each in outcome.variants:
        losses = each.val_loss.per_seed
        differences = [*(each.difference.per_seed if each.difference else ()), *[None] * len(losses)]
        cells[each.name] = {
            f"seed {seed}": fixed(loss, 4) + ("" if difference is None else f" ({signed(difference, 4)})")
            for seed, loss, difference in zip(outcome.seeds, losses, differences)
        }
    return by_row("Held-out loss of each seed (difference to the baseline)", "Variant", cells)


def environment_table(environment: Mapping[str, Any], name: str = "") -> Table:
    """Machine and versions. name: of the run, if runs differ."""
    return settings_table(f"Machine and versions{f' of {clean(name)}' if name else ''}", environment)


def settings_table(title: str, settings: Mapping[str, Any]) -> Table:
    """A row for each value of a mapping, which may be nested."""
    return by_column(title, {"Value": {key: plain(value) for key, value in _flattened(settings)}})


def _flattened(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as `outer.inner`."""
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def run_table(named: Mapping[str, Run]) -> Table:
    """Results, one row per run; multi-token prediction has a separate table.

    An unfinished run shows only its number of steps.
    """
    columns = [OF_RUNS[name] for name in OF_RUNS if name == "val_loss" or name not in OF_HELD_OUT]
    cells: dict[str, dict[str, str]] = {}
    for name, run in named.items():
        if (result := run.result) is None:
            last = max((record["step"] for record in run.metrics), default=0)
            cells[name] = {"seed": MISSING, "status": "unfinished", OF_RUNS["steps"].title: str(last)}
        else:
            cells[name] = {"seed": plain(result.seed), "status": clean(result.status)}
            cells[name] |= {each.title: shown(each.of_run(result), each) for each in (*columns, OF_MODELS["params"])}
    return by_row("Results", "Run", cells)


def source_table(results: Mapping[str, RunResult]) -> Table | None:
    """Held-out losses by source of the data, one row per run on a mixture."""
    found = {name: result.val_losses for name, result in results.items() if result.val_losses}
    cells = {name: {source: fixed(own[source], 4) for source in sorted(own)} for name, own in found.items()}
    return by_row("Held-out loss by source of the data", "Run", cells) if cells else None


def mtp_table(results: Mapping[str, RunResult]) -> Table | None:
    """Held-out losses of multi-token prediction, one row per run that has it."""
    found = {name: result.val_mtp_losses for name, result in results.items() if result.val_mtp_losses}
    cells = {
        name: {f"{k} after the next": fixed(loss, 4) for k, loss in enumerate(losses, 1)}
        for name, losses in found.items()
    }
    return by_row("Held-out loss of the further heads, by the token they predict", "Run", cells) if cells else None


def data_table(named: Mapping[str, Run]) -> Table | None:
    """One column if all runs have read the same, otherwise one per run; None where nothing is recorded."""
    columns = {name: dict(_items(run)) for name, run in named.items()}
    if not any(columns.values()):
        return None
    first, *others = columns.values()
    return by_column("Data", {"Value": first} if all(other == first for other in others) else columns)


def text_words(environment: Mapping[str, Any]) -> str:
    """The corpus and the tokenizer, of the environment of a run or comparison: `books, bpe-4096`."""
    if not environment.get(KEY):
        return ""
    return ", ".join(map(clean, read_identity(environment, "environment").rows().values()))


def text_key(environment: Mapping[str, Any]) -> str:
    """Return a key that is equal for environments with the same text and tokenizer, for any names."""
    return read_identity(environment, "environment").content_key() if environment.get(KEY) else ""


def loss_words(result: RunResult) -> str:
    """On how much text the held-out loss was measured: ` over 2,048 of 137,669 held-out tokens`, or nothing."""
    if not result.n_val_tokens:
        return ""
    if result.data is None:
        return f" over {result.n_val_tokens:,} held-out tokens"
    return f" over {result.n_val_tokens:,} of {result.data.n_held_out_tokens:,} held-out tokens"


def _items(run: Run) -> Iterator[tuple[str, str]]:
    if run.environment.get(KEY):
        for item, words in read_identity(run.environment, f"{run.path}/environment.json").rows().items():
            yield item, clean(words)
    result = run.result
    if result is None:
        return
    data = result.data
    if data is not None:
        yield "training text", _amount(data.n_train_tokens, data.n_train_bytes)
    if result.tokens:
        passes = f", {result.tokens / data.n_train_tokens:.3g} times the training text" if data else ""
        yield "read in training", f"{counted(result.tokens, 'token')}{passes}"
    if data is not None:
        yield "held-out text", _amount(data.n_held_out_tokens, data.n_held_out_bytes)
    if result.n_val_tokens:
        windows = f"{counted(len(result.val_window_losses), 'window')} of {result.cost.seq_len:,}, from the start"
        yield "read for the held-out loss", f"{counted(result.n_val_tokens, 'token')}: {windows}"


def _amount(n_tokens: int, n_bytes: int) -> str:
    return f"{counted(n_tokens, 'token')}, {counted(n_bytes, 'byte')}"
