"""Growth and cuts on a report page: questions, answers, figures, and tables of the models before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import altair as alt
import numpy as np

from widthwise.files import read_text
from widthwise.records.record import finite
from widthwise.records.resizing import SHRUNK, Shrinking
from widthwise.records.run import GrowthRecord, Run
from widthwise.reports import charts
from widthwise.reports.charts import CARD, Figure, Looks
from widthwise.reports.curves import Bundle, Curve, by_step, curve_figure, over_seeds
from widthwise.reports.formats import MISSING, amount, capital, clean, distance, fixed, ratio, shorten, si, signed
from widthwise.reports.page import Code, Part, Section, note, section
from widthwise.reports.shapes import size_figure
from widthwise.reports.table import Table

SHARE_SHOWN = 0.1
"""Steps on each side of a growth in a figure, as a share of the steps of the run."""
FEWEST_STEPS = 12
"""Fewest steps on each side of a growth in a figure."""
SIZES = {"d_model": "d_model", "n_kv_heads": "KV heads", "n_hidden": "hidden units", "n_experts": "experts"}
"""Field of `LayerCut` -> its title."""
BEFORE = "before the cut"
"""Name of the line of the original model."""


Growths = Mapping[tuple[str, int, str], Sequence[GrowthRecord]]
"""Variant, step and event -> a growth for each seed."""


def growth_section(runs: Mapping[str, Sequence[Run]], looks: Looks) -> Section | None:
    """Return figures and tables; None if no model grew. runs: variant -> a run for each seed."""
    growths: dict[tuple[str, int, str], list[GrowthRecord]] = {}
    for name, seeds in runs.items():
        for run in seeds:
            for growth in run.growths:
                growths.setdefault((name, growth.step, growth.event), []).append(growth)
    if not growths:
        return None
    steps = sorted({step for _, step, _ in growths})
    return section(
        "Growth",
        note("growth"),
        *(_growth_figure(step, runs, growths, looks) for step in steps),
        _growth_table(growths),
        *(
            Code("\n".join(run.certificate.lines()), f"Certificate of {clean(name)}, {clean(run.path)}")
            for name, seeds in runs.items()
            for run in seeds
            if run.certificate
        ),
    )


def growth_answers(runs: Mapping[str, Run]) -> list[str]:
    """Return sentences on the certificate, the growths and the final loss of every run that grew."""
    grown = {name: run for name, run in runs.items() if run.growths}
    lines = []
    for name, run in grown.items():
        sentences = []
        if certificate := run.certificate:
            verb = "is preserved" if certificate.is_preserved else "CHANGED"
            sentences.append(
                f"The function {verb}: logits differ by at most {certificate.logit_difference:.1e} (bound "
                f"{certificate.logit_bound:.0e}), gradients of old parameters by {certificate.gradient_difference:.1e} "
                f"of the largest (bound {certificate.gradient_bound:.0e})."
            )
        for growth in run.growths:
            before, after = mean_losses([growth])
            growth_words = f"Growth after step {growth.step:,}, {_sizes(growth)} parameters"
            if np.isfinite(after):
                losses = f"{fixed(before, 4)} before, {fixed(after, 4)} right after"
                change = signed(after - before, 4)
                sentences.append(f"{growth_words}: the held-out loss changed by {change} ({losses}).")
            elif np.isfinite(before):
                sentences.append(f"{growth_words}: held-out loss {fixed(before, 4)} before.")
            else:
                sentences.append(f"{growth_words}; no validation right before it.")
        if run.result and run.result.val_loss is not None and run.result.steps:
            loss = fixed(run.result.val_loss, 4)
            sentences.append(f"At the end, after step {run.result.steps:,}, the held-out loss is {loss}.")
        start = "" if len(grown) == 1 else f"{shorten(name, 60)}: "
        lines += [start + sentence for sentence in sentences]
    return lines


def _sizes(growth: GrowthRecord) -> str:
    return f"{amount(growth.params_before)} to {amount(growth.params_after)}"


def _growth_table(growths: Growths) -> Table:
    rows = []
    for (name, step, event), growths_of_seeds in growths.items():
        before, after = mean_losses(growths_of_seeds)
        changes = [finite(growth.loss_after) - finite(growth.loss_before) for growth in growths_of_seeds]
        change = max(changes, key=abs)
        growth = growths_of_seeds[0]
        row = [clean(name), f"{step:,}", event, _sizes(growth), si(growth.training_flops)]
        largest = f"{change:+.1e}" if np.isfinite(change) else MISSING
        rows.append([*row, shown_loss(before), shown_loss(after), largest])
    header = ["Variant", "after step", "event", "parameters", "training FLOPs by then", "held-out before", "after"]
    caption = "Growth, mean over seeds" if any(len(seeds) > 1 for seeds in growths.values()) else "Growth"
    return Table(caption, [*header, "largest change"], rows, text_columns={"event"})


def mean_losses(growths: Sequence[GrowthRecord]) -> tuple[float, float]:
    """Return the mean held-out losses before and after growths, one for each seed; NaN if a seed has none."""
    losses = [(finite(growth.loss_before), finite(growth.loss_after)) for growth in growths]
    before, after = np.mean(losses, axis=0).tolist()
    return before, after


def _growth_figure(step: int, runs: Mapping[str, Sequence[Run]], growths: Growths, looks: Looks) -> Figure | None:
    """Return losses near a growth, with squares for held-out losses; None if no curve has a value there.

    It draws the variants that grow at the step, and variants of the size before it that never grow.
    """
    losses: dict[str, tuple[float, float]] = {}
    sizes = set()
    for (name, at_step, _), growths_of_seeds in growths.items():
        if at_step == step:
            losses.setdefault(name, mean_losses(growths_of_seeds))  # `grow` and the recipe can both grow a run here
            sizes |= {growth.params_before for growth in growths_of_seeds}
    growing = {name for name, _, _ in growths}
    curves: dict[str, Bundle] = {}
    for name, seeds in runs.items():
        result = seeds[0].result
        has_size = result is not None and result.cost.params["total"] in sizes
        if name in losses or (name not in growing and has_size):
            curves_of_seeds = dict(over_seeds(seeds, "train").curves)
            last = max(max(curve.x, default=0.0) for curve in curves_of_seeds.values())
            for seed, curve in curves_of_seeds.items():
                is_near = abs(curve.x - step) <= max(FEWEST_STEPS, SHARE_SHOWN * last)
                curves_of_seeds[seed] = Curve(curve.x[is_near], curve.y[is_near], growths=[step + 0.5])
            curves[name] = Bundle(curves_of_seeds)
    title = f"Loss across the growth after step {step:,}"
    y_title = "training loss; squares: held out"
    figure = curve_figure(f"growth-{step}", title, curves, looks, "step", y_title)
    if figure is None:
        return None
    chart = figure.chart
    assert isinstance(chart, alt.LayerChart)
    for i, (moment, channel, fill) in enumerate((("before", "stroke", CARD), ("after", "fill", alt.Undefined))):
        squares = [
            {"name": clean(name), "line": f"held out, {moment}", "x": step + i, "y": ends[i]}
            for name, ends in losses.items()
            if np.isfinite(ends[i])
        ]
        if squares:
            marks = charts.chart(squares).mark_point(shape="square", size=70, strokeWidth=1.6, fill=fill)
            tip = charts.tips(name="|variant", line="", x=",.0f|step", y=".4f")
            chart += marks.encode(x="x:Q", y="y:Q", tooltip=tip, **charts.name_encodings(figure.legend, channel))
    shown = {name: f"{shown_loss(before)} to {shown_loss(after)}" for name, (before, after) in losses.items()}
    start = f"{capital(y_title)}, near step {step}, after which models grow. Held out, before and after:"
    return replace(figure, label=charts.text_alternative(start, shown), chart=chart)


def shown_loss(loss: float) -> str:
    """Return a loss with four decimals; MISSING if it is not finite."""
    return fixed(loss, 4) if np.isfinite(loss) else MISSING


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
                lines.append(f"{start}{time} it is {distance(change)} the loss before the cut.")
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
        x = np.append(0.0, curves[name].x)
        y = np.append(cut.loss_after, curves[name].y)
        curves[name] = replace(curves[name], x=x, y=y)
    losses = {cut.loss_before for cut in cuts.values()}
    if len(losses) == 1:
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
