"""Growth on a report page: question, answer, figures, and tables of the models before and after."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import altair as alt
import numpy as np

from widthwise.records.record import finite
from widthwise.records.run import GrowthRecord, Run
from widthwise.reports import charts
from widthwise.reports.charts import CARD, Figure, Looks
from widthwise.reports.curves import Bundle, Curve, by_step, curve_figure, over_seeds
from widthwise.reports.formats import MISSING, amount, capital, clean, fixed, sequence, shorten, si, signed
from widthwise.reports.page import Code, Section, note, section
from widthwise.reports.table import Table

SHARE_SHOWN = 0.1
"""Steps on each side of a growth in a figure, as a share of the steps of the run."""
FEWEST_STEPS = 12
"""Fewest steps on each side of a growth in a figure."""


class MeasuredGrowth(NamedTuple):
    """A growth with its held-out losses."""

    record: GrowthRecord
    before: float
    after: float


Growths = Mapping[tuple[str, int, str], Sequence[MeasuredGrowth]]
"""Variant, step and event -> a growth for each seed."""


def held_out(run: Run, growth: GrowthRecord) -> tuple[float, float]:
    """Return held-out losses before and after a growth, or NaN. `grow` measures none: use a validation."""
    if growth.event == "growth":
        return finite(growth.loss_before), finite(growth.loss_after)
    validated = by_step(run, "validation", "loss")
    return Curve(validated.x, np.where(validated.x == growth.step, validated.y, np.nan)).last, float("nan")


def growth_section(runs: Mapping[str, Sequence[Run]], looks: Looks) -> Section | None:
    """Return figures and tables; None if no model grew. runs: variant -> a run for each seed."""
    growths: dict[tuple[str, int, str], list[MeasuredGrowth]] = {}
    for name, seeds in runs.items():
        for run in seeds:
            for growth in run.growths:
                measured = MeasuredGrowth(growth, *held_out(run, growth))
                growths.setdefault((name, growth.step, growth.event), []).append(measured)
    if not growths:
        return None
    steps = sorted({step for _, step, _ in growths})
    return section(
        "Growth",
        note("growth"),
        *(_figure(step, runs, growths, looks) for step in steps),
        _table(growths),
        *(
            Code("\n".join(run.certificate.lines()), f"Certificate of {clean(name)}, {clean(run.path)}")
            for name, seeds in runs.items()
            for run in seeds
            if run.certificate
        ),
    )


def growth_question(runs: Mapping[str, Run]) -> str:
    """Return the question that growth answers; "" if no model grew."""
    grown = [shorten(name, 60) for name, run in runs.items() if run.growths]
    if not grown:
        return ""
    verb = "Does" if len(grown) == 1 else "Do"
    return f"{verb} {sequence(grown)} compute the same function after growth, and keep learning?"


def growth_answers(runs: Mapping[str, Run]) -> list[str]:
    """Return a sentence for each certificate, one for each growth, and one for the final result."""
    grown = {name: run for name, run in runs.items() if run.growths}
    return [
        sentence if len(grown) == 1 else f"{shorten(name, 60)}: {sentence}"
        for name, run in grown.items()
        for sentence in _answers(run)
    ]


def _answers(run: Run) -> Iterator[str]:
    if certificate := run.certificate:
        verb = "is preserved" if certificate.is_preserved else "CHANGED"
        yield (
            f"The function {verb}: logits differ by at most {certificate.logit_difference:.1e} (bound "
            f"{certificate.logit_bound:.0e}), gradients of old parameters by {certificate.gradient_difference:.1e} of "
            f"the largest (bound {certificate.gradient_bound:.0e})."
        )
    for growth in run.growths:
        before, after = held_out(run, growth)
        grown = f"Growth after step {growth.step:,}, {_sizes(growth)} parameters"
        if np.isfinite(after):
            losses = f"{fixed(before, 4)} before, {fixed(after, 4)} right after"
            yield f"{grown}: the held-out loss changed by {signed(after - before, 4)} ({losses})."
        elif np.isfinite(before):
            yield f"{grown}: held-out loss {fixed(before, 4)} before."
        else:
            yield f"{grown}; no validation right before it."
    if run.result and run.result.val_loss is not None and run.result.steps:
        yield f"At the end, after step {run.result.steps:,}, the held-out loss is {fixed(run.result.val_loss, 4)}."


def _sizes(growth: GrowthRecord) -> str:
    return f"{amount(growth.params_before)} to {amount(growth.params_after)}"


def _table(growths: Growths) -> Table:
    rows = []
    for (name, step, event), growths_of_seeds in growths.items():
        before, after = mean_losses(growths_of_seeds)
        change = max((growth.after - growth.before for growth in growths_of_seeds), key=abs)
        growth = growths_of_seeds[0].record
        row = [clean(name), f"{step:,}", event, _sizes(growth), si(growth.training_flops)]
        largest = f"{change:+.1e}" if np.isfinite(change) else MISSING
        rows.append([*row, shown_loss(before), shown_loss(after), largest])
    header = ["Variant", "after step", "event", "parameters", "training FLOPs by then", "held-out before", "after"]
    caption = "Growth, mean over seeds" if any(len(seeds) > 1 for seeds in growths.values()) else "Growth"
    return Table(caption, [*header, "largest change"], rows, text_columns={"event"})


def mean_losses(growths: Sequence[MeasuredGrowth]) -> tuple[float, float]:
    """Return mean losses before and after; NaN if a run has none."""
    before, after = np.mean([(growth.before, growth.after) for growth in growths], axis=0).tolist()
    return before, after


def _figure(step: int, runs: Mapping[str, Sequence[Run]], growths: Growths, looks: Looks) -> Figure | None:
    """Return losses near a growth, with squares for held-out losses; None if no curve has a value there.

    It draws the variants that grow at the step, and variants of the size before it that never grow.
    """
    losses: dict[str, tuple[float, float]] = {}
    sizes = set()
    for (name, at_step, _), growths_of_seeds in growths.items():
        if at_step == step:
            losses.setdefault(name, mean_losses(growths_of_seeds))  # `grow` and the recipe can both grow a run here
            sizes |= {growth.record.params_before for growth in growths_of_seeds}
    growing = {name for name, _, _ in growths}
    curves: dict[str, Bundle] = {}
    for name, seeds in runs.items():
        result = seeds[0].result
        has_size = result is not None and result.cost.params["total"] in sizes
        if name in losses or (name not in growing and has_size):
            curves_of_seeds = dict(over_seeds(seeds, "train").seeds)
            last = max(max(curve.x, default=0.0) for curve in curves_of_seeds.values())
            for seed, curve in curves_of_seeds.items():
                is_near = abs(curve.x - step) <= max(FEWEST_STEPS, SHARE_SHOWN * last)
                curves_of_seeds[seed] = Curve(curve.x[is_near], curve.y[is_near])
            curves[name] = Bundle(curves_of_seeds)
    title = f"Loss across the growth after step {step:,}"
    y_title = "training loss; squares: held out"
    figure = curve_figure(f"growth-{step}", title, curves, looks, "step", y_title, growths=[step + 0.5])
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
            chart += marks.encode(x="x:Q", y="y:Q", tooltip=tip, **charts.coloured(figure.legend, channel))
    shown = [
        f"{shorten(name, 40)} {shown_loss(before)} to {shown_loss(after)}" for name, (before, after) in losses.items()
    ]
    label = f"{capital(y_title)}, near step {step}, after which models grow. Held out, before and after: "
    return replace(figure, label=f"{label}{'; '.join(shown)}.", chart=chart)


def shown_loss(loss: float) -> str:
    """Return a loss with four decimals; MISSING if it is not finite."""
    return fixed(loss, 4) if np.isfinite(loss) else MISSING
