"""A cut as an answer and a table: what `shrink` prints."""

from widthwise.records.shrinking import LayerCut, Shrinking
from widthwise.reports.formats import signed
from widthwise.reports.table import Table


def shrinking_answer(found: Shrinking) -> list[str]:
    """Return what the cut cost and saved, a sentence each."""
    before, after = found.before, found.after
    flops, params = after.flops_per_token / before.flops_per_token, after.params / before.params
    lines = [
        f"{found.source} at {flops:.3f} of its FLOPs and {params:.3f} of its parameters: before any healing the "
        f"held-out loss changes by {signed(found.loss_after - found.loss_before, 4)} nats, to {found.loss_after:.4f}.",
        f"The most likely token stays the same at {found.agreement:.1%} of {found.n_tokens:,} positions.",
    ]
    if found.not_turned is not None:
        lines.append(f"The stream was not turned: {found.not_turned}.")
    return lines


def shrinking_table(found: Shrinking) -> Table:
    """Return the sizes of every layer before and after the cut, and what of each was lost."""
    rows = [[str(i), *_cells(layer)] for i, layer in enumerate(found.layers, start=1)]
    header = ["layer", "d_model", "KV heads", "hidden units", "energy kept\n(attention, FFN)", "score lost"]
    return Table(f"layers of {found.source} before and after the cut", header, rows)


def _cells(layer: LayerCut) -> list[str]:
    sizes = (layer.d_model, layer.n_kv_heads, layer.n_hidden)
    changes = [f"{before} → {after}" if before != after else str(before) for before, after in sizes]
    return [*changes, " ".join(f"{share:.3f}" for share in layer.energy_kept), f"{layer.lost:.2g}"]
