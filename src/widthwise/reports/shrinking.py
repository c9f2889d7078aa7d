"""The loss, the savings and the sizes after a cut, on the terminal and on the page of the run."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from widthwise.files import read_text
from widthwise.records.run import Run
from widthwise.records.shrinking import SHRUNK, Shrinking
from widthwise.reports.charts import Looks
from widthwise.reports.curves import Curve, by_step
from widthwise.reports.formats import capital, clean, fixed, ratio, shorten, si, signed
from widthwise.reports.page import Code, Part, Section, note, section
from widthwise.reports.shapes import size_figure
from widthwise.reports.table import Table

SIZES = {"d_model": "d_model", "n_kv_heads": "KV heads", "n_hidden": "hidden units", "n_experts": "experts"}
"""Field of `LayerCut` -> its title."""
BEFORE = "before the cut"
"""Name of the line of the original model."""
QUESTION = "What did the cut cost, and what does training give back?"


def shrinking_answer(cut: Shrinking) -> list[str]:
    """Return sentences on the FLOPs and the loss right after the cut."""
    share = cut.after.flops_per_token / cut.before.flops_per_token
    lines = [
        f"{clean(cut.source)} is cut to {share:.3f} of its FLOPs.",
        f"The held-out loss changes by {signed(cut.loss_after - cut.loss_before, 4)} nats before any healing.",
        f"The most likely token stays the same at {cut.agreement:.1%} of positions.",
    ]
    if cut.not_turned is not None:
        lines.append(f"The stream was not turned: {cut.not_turned}.")
    return lines


def cut_answers(runs: Mapping[str, Run]) -> list[str]:
    """Return sentences on the cut of every run and its healing."""
    lines = []
    for name, run in runs.items():
        if (cut := run.shrinking) is not None:
            start = "" if len(runs) == 1 else f"{shorten(name, 60)}: "
            lines += [start + line for line in shrinking_answer(cut)]
            if not (healing := by_step(run, "validation", "loss")).is_empty:
                change = healing.last - cut.loss_before
                time = "After healing" if run.result else "So far in healing"
                end = f"{fixed(abs(change), 4)} nats {'below' if change < 0 else 'above'} the loss before the cut"
                lines.append(f"{start}{time} it is {end}.")
    return lines


def cut_section(runs: Mapping[str, Run], looks: Looks) -> Section | None:
    """Return figures and tables of every run that was cut; None without a cut."""
    parts: list[Part] = []
    for i, (name, run) in enumerate(runs.items()):
        if (cut := run.shrinking) is None:
            continue
        parts += [cut_table(cut, run), shrinking_table(cut)]
        for size, title in SIZES.items():
            pairs = [layer[size] for layer in cut.layers]
            if any(before != after for before, after in pairs):
                parts.append(size_figure(f"cut-{i}-{size}", f"{capital(title)} of every layer", pairs, looks[name]))
        if (recipe := Path(run.path) / f"{SHRUNK}.yaml").is_file():
            parts.append(Code(read_text(recipe), f"Recipe of a model of this shape, {clean(run.path)}/{recipe.name}"))
    return section("Cut", note("cut"), *parts)


def held_out_curves(runs: Mapping[str, Run]) -> dict[str, Curve]:
    """Return the held-out loss of runs by step; curves of runs that were cut start with the loss right after the cut.

    If all cuts have the same loss before, the curve BEFORE shows it.
    """
    curves = {name: by_step(run, "validation", "loss") for name, run in runs.items()}
    cuts = {name: run.shrinking for name, run in runs.items() if run.shrinking and not curves[name].is_empty}
    for name, cut in cuts.items():
        curves[name] = Curve(np.append(0.0, curves[name].x), np.append(cut.loss_after, curves[name].y))
    if len(losses := {cut.loss_before for cut in cuts.values()}) == 1:
        ends = np.array([0.0, max(curves[name].x[-1] for name in cuts)])
        curves[BEFORE] = Curve(ends, np.repeat([*losses], 2))
    return curves


def cut_table(cut: Shrinking, run: Run | None = None) -> Table:
    """Return loss, agreement and costs before and after the cut. run: adds the loss after healing."""
    losses = {"held-out loss": cut.loss_after}
    if run is not None and not (healing := by_step(run, "validation", "loss")).is_empty:
        losses[f"held-out loss after {healing.x[-1]:,.0f} steps of healing"] = healing.last
    before = fixed(cut.loss_before, 4)
    rows = [[name, before, fixed(loss, 4), signed(loss - cut.loss_before, 4)] for name, loss in losses.items()]
    rows.append([f"same most likely token, of {cut.n_tokens:,} positions", "", f"{cut.agreement:.1%}", ""])
    costs = {
        "parameters": (cut.before.params, cut.after.params),
        "forward FLOPs per token": (cut.before.flops_per_token, cut.after.flops_per_token),
        "KV bytes per token": cut.kv_bytes,
    }
    rows += [[title, si(old), si(new), ratio(new / old)] for title, (old, new) in costs.items()]
    header = ["", "before", "after", "change"]
    return Table(f"What the cut of {clean(cut.source)} cost and saved", header, rows, sortable=False)


def shrinking_table(cut: Shrinking) -> Table:
    """Return the sizes of every layer before and after the cut, with the energy kept and the score lost."""
    # Sizes that are 1 in every layer, such as experts, are omitted.
    sizes = {size: title for size, title in SIZES.items() if any(layer[size][0] > 1 for layer in cut.layers)}
    rows = []
    for number, layer in enumerate(cut.layers, start=1):
        pairs = (layer[key] for key in sizes)
        changes = [f"{before} → {after}" if before != after else str(before) for before, after in pairs]
        energy = " ".join(f"{share:.3f}" for share in layer.energy_kept)
        rows.append([str(number), *changes, energy, f"{layer.lost:.2g}"])
    header = ["layer", *sizes.values(), "energy kept\n(attention, FFN)", "score lost"]
    return Table(f"Layers of {clean(cut.source)} before and after the cut", header, rows)
