"""What runs have read: their text, and how much of it training and the held-out loss saw."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from widthwise.records.run import Run, RunResult
from widthwise.reports.page.formats import MISSING, clean, counted
from widthwise.reports.page.table import Table


def data_table(named: Mapping[str, Run]) -> Table | None:
    """One column if all runs have read the same, otherwise one per run; None where nothing is recorded."""
    columns = {name: dict(_items(run)) for name, run in named.items()}
    titles = list(dict.fromkeys(title for column in columns.values() for title in column))
    if not titles:
        return None
    first, *others = columns.values()
    if all(other == first for other in others):
        columns = {"Value": first}
    rows = [[title, *(column.get(title, MISSING) for column in columns.values())] for title in titles]
    return Table("Data", ["Item", *map(clean, columns)], rows, sortable=False)


def text_words(environment: Mapping[str, Any]) -> str:
    """The corpus and the tokenizer, of the environment of a run or comparison: `books, bpe-4096`."""
    identity = environment.get("data")
    return ", ".join(words for _, words in _identity(identity)) if isinstance(identity, Mapping) else ""


def text_key(environment: Mapping[str, Any]) -> str:
    """Equal where two environments read the same text with the same tokenizer, whatever their files are called.

    Names count only in records of older versions, which have no checksum beside them.
    """
    return json.dumps(_without_names(environment.get("data")), sort_keys=True)


def loss_words(result: RunResult) -> str:
    """On how much text the held-out loss was measured: ` over 2,048 of 137,669 held-out tokens`, or nothing."""
    if not result.n_val_tokens:
        return ""
    if result.data is None:
        return f" over {result.n_val_tokens:,} held-out tokens"
    return f" over {result.n_val_tokens:,} of {result.data.n_held_out_tokens:,} held-out tokens"


def _items(run: Run) -> Iterator[tuple[str, str]]:
    identity = run.environment.get("data")
    if isinstance(identity, Mapping):
        yield from _identity(identity)
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


def _identity(identity: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The names in the `data` of a run's environment, those of a mixture with their weights."""
    sources, corpus, tokenizer = (identity.get(key) for key in ("sources", "corpus", "tokenizer"))
    if isinstance(corpus, Mapping) and corpus.get("name"):
        yield "corpus", clean(str(corpus["name"]))
    if isinstance(sources, Mapping):
        weights = {name: source.get("weight") for name, source in sources.items() if isinstance(source, Mapping)}
        yield "corpora and their weights", clean(", ".join(f"{name}: {weight}" for name, weight in weights.items()))
    if isinstance(tokenizer, Mapping) and tokenizer.get("spec"):
        yield "tokenizer", clean(str(tokenizer["spec"]))


def _without_names(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    named = {name for name, checksum in (("spec", "id"), ("name", "fingerprint")) if checksum in value}
    return {key: _without_names(each) for key, each in value.items() if key not in named}


def _amount(n_tokens: int, n_bytes: int) -> str:
    return f"{counted(n_tokens, 'token')}, {counted(n_bytes, 'byte')}"
