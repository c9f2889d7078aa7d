"""The tables of the reports as text cells; the page, LaTeX and the terminal only lay them out."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from widthwise.records.record import Compared, Cost, Estimate
from widthwise.records.run import Result, Run
from widthwise.reports.page.curves import Curve
from widthwise.reports.page.formats import MISSING, clean, fixed, hidden_widths, plain, si, signed


@dataclass(frozen=True)
class Table:
    """A plain table; the first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str] = ()
    """Titles of further columns that hold words, which begin where their title does."""


def cost_table(variants: Sequence[tuple[str, Cost]]) -> Table:
    """Every number of the cost model, one column per variant."""
    parts = sorted({part for _, cost in variants for part in cost.params}, key=_part_order)
    rows = [[f"parameters, {part}", *(si(cost.params.get(part)) for _, cost in variants)] for part in parts]
    for title, value in _COST_ROWS:
        rows.append([title, *(value(cost) for _, cost in variants)])
    return Table("Cost of each model", ["Quantity", *(clean(name) for name, _ in variants)], rows)


_PARTS = ("total", "active", "embedding", "attention", "ffn", "norm", "residual", "head", "mtp")


def _part_order(part: str) -> tuple[int, str]:
    return (_PARTS.index(part) if part in _PARTS else len(_PARTS), part)


_COST_ROWS: tuple[tuple[str, Callable[[Cost], str]], ...] = (
    ("FLOPs per token, forward, full attention", lambda cost: si(cost.flops_per_token.forward)),
    ("FLOPs per token, forward, causal attention", lambda cost: si(cost.flops_per_token.forward_causal)),
    ("FLOPs per token, training", lambda cost: si(cost.flops_per_token.training)),
    ("KV bytes per token", lambda cost: si(cost.kv_bytes_per_token)),
    ("activation bytes per token", lambda cost: si(cost.activation_bytes_per_token)),
    ("d_model", lambda cost: str(cost.d_model)),
    ("average width", lambda cost: fixed(cost.average_width, 1)),
    ("virtual width, times d_model", lambda cost: fixed(cost.virtual_width, 2)),
)


def layer_table(name: str, cost: Cost) -> Table:
    """Sizes per layer; neighbouring layers that are equal share a row."""
    hidden = [hidden_widths(widths) for widths in cost.hidden_widths]
    columns = (cost.widths, cost.n_heads, cost.n_kv_heads, cost.head_dim, hidden)
    rows: list[list[str]] = []
    spans: list[list[int]] = []
    for layer in range(1, len(cost.widths) + 1):
        sizes = [plain(column[layer - 1]) if column else MISSING for column in columns]
        if rows and rows[-1] == sizes:
            spans[-1][1] = layer
        else:
            rows.append(sizes)
            spans.append([layer, layer])
    names = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    header = ["Layer", "width", "n_heads", "n_kv_heads", "head_dim", "FFN hidden"]
    return Table(f"Layers of {clean(name)}", header, [[span, *sizes] for span, sizes in zip(names, rows)])


def seed_table(comparison: Compared) -> Table:
    """Held-out loss and difference of every seed."""
    header = ["Variant", *(f"seed {seed}" for seed in comparison.seeds)]
    rows = []
    for variant in comparison.variants:
        losses = _per_seed(variant.val_loss, len(comparison.seeds))
        differences = _per_seed(variant.difference, len(comparison.seeds))
        shown = [
            fixed(loss, 4) + (f" ({signed(difference, 4)})" if difference is not None else "")
            for loss, difference in zip(losses, differences)
        ]
        rows.append([clean(variant.name), *shown])
    return Table("Held-out loss of each seed (difference to the baseline)", header, rows)


def _per_seed(estimate: Estimate | None, n_seeds: int) -> list[float | None]:
    values = list(estimate.per_seed) if estimate else []
    return (values + [None] * n_seeds)[:n_seeds]


def curve_table(caption: str, curves: Mapping[str, Curve], n_rows: int = 12) -> Table:
    """The numbers behind a figure: the curves' values at up to `n_rows` steps, the last one included."""
    values = {name: dict(zip(curve.x.tolist(), curve.y.tolist())) for name, curve in curves.items()}
    steps = sorted(set().union(*values.values()))
    chosen = sorted({steps[-1 - i * len(steps) // n_rows] for i in range(min(n_rows, len(steps)))})
    rows = [[f"{step:.0f}", *(fixed(own.get(step), 4) for own in values.values())] for step in chosen]
    return Table(caption, ["Step", *map(clean, curves)], rows)


def environment_table(environment: Mapping[str, Any], name: str = "") -> Table:
    """Machine and versions, of the run `name` where several differ."""
    rows = [[clean(key), plain(value)] for key, value in _flattened(environment)]
    return Table(f"Machine and versions{f' of {clean(name)}' if name else ''}", ["Item", "Value"], rows)


def _flattened(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys as `outer.inner`."""
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def run_table(named: Mapping[str, Run]) -> Table:
    """Results, one row per run."""
    header = ["Run", "seed", "status", "steps", "tokens", "train loss", "held-out loss", "perplexity", "bits per byte"]
    return Table(
        "Results", [*header, "tokens/s", "seconds", "parameters"], [_run_row(name, run) for name, run in named.items()]
    )


def mtp_table(results: Mapping[str, Result]) -> Table | None:
    """Held-out losses of the further heads, one row per run that has some."""
    found = {name: result.val_mtp_losses for name, result in results.items() if result.val_mtp_losses}
    if not found:
        return None
    n_depths = max(map(len, found.values()))
    rows = [
        [clean(name), *(fixed(loss, 4) for loss in own), *[MISSING] * (n_depths - len(own))]
        for name, own in found.items()
    ]
    header = ["Run", *(f"{k} after the next" for k in range(1, n_depths + 1))]
    return Table("Held-out loss of the further heads, by the token they predict", header, rows)


def _run_row(name: str, run: Run) -> list[str]:
    result = run.result
    if result is None:
        last = max((record["step"] for record in run.metrics), default=0)
        return [clean(name), MISSING, "unfinished", str(last), *[MISSING] * 8]
    return [
        clean(name),
        plain(result.seed),
        clean(result.status),
        plain(result.steps),
        si(result.tokens),
        fixed(result.train_loss, 4),
        fixed(result.val_loss, 4),
        fixed(result.val_perplexity, 2),
        fixed(result.val_bits_per_byte, 4),
        si(result.tokens_per_second),
        fixed(result.wall_seconds, 1),
        si(result.cost.params["total"]) if result.cost else MISSING,
    ]
