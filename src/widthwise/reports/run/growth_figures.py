"""The figures of growth: the loss around each growth, for models that grew and models that did not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.record import finite
from widthwise.records.run import GrowthRecord, Run
from widthwise.reports.page.curves import Curve, by_step, mean_over_seeds
from widthwise.reports.page.formats import MISSING, capital, fixed, shorten
from widthwise.reports.page.html import Panel
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, SEED_ALPHA, SEED_WIDTH
from widthwise.reports.page.svg import CARD, INK, Style, draw, line_legend
from widthwise.reports.page.ticks import number_axis

SHARE_SHOWN = 0.1
"""Share of a run's steps that a figure shows on each side of a growth."""
FEWEST_STEPS = 12
"""Fewest steps shown on each side of a growth."""


@dataclass(frozen=True)
class MeasuredGrowth:
    """A growth with its held-out losses."""

    record: GrowthRecord
    before: float
    after: float


def measured_growths(runs: Sequence[Run]) -> dict[int, list[MeasuredGrowth]]:
    """Step -> the growths at this step, one per run."""
    found: dict[int, list[MeasuredGrowth]] = {}
    for run in runs:
        for growth in run.growths:
            found.setdefault(growth.step, []).append(MeasuredGrowth(growth, *held_out(run, growth)))
    return found


def held_out(run: Run, growth: GrowthRecord) -> tuple[float, float]:
    """Held-out losses before and after; NaN if not measured. Commands measure none, but the source run may have."""
    if growth.event == "growth":
        return finite(growth.loss_before), finite(growth.loss_after)
    validated = by_step(run, "validation", "loss")
    return Curve(validated.x, np.where(validated.x == growth.step, validated.y, np.nan)).last, float("nan")


@dataclass(frozen=True)
class _Line:
    """A variant near a growth."""

    name: str
    style: Style
    seeds: list[Curve]
    """Training loss by step."""
    seed_numbers: list[int | None]
    losses: tuple[float, float] | None
    """Held-out losses before and after, means over seeds; None if this variant did not grow there."""


def lines_at(
    step: int,
    runs: Mapping[str, Sequence[Run]],
    growths: Mapping[str, Mapping[int, Sequence[MeasuredGrowth]]],
    styles: Mapping[str, Style],
) -> list[_Line]:
    """The variants that grew at a step, and those that kept the size they had before it."""
    sizes = {growth.record.params_before for own in growths.values() for growth in own.get(step, ())}
    lines = []
    for name, own in runs.items():
        here = growths[name].get(step)
        cost = own[0].cost
        if here is None and (growths[name] or cost is None or cost.params["total"] not in sizes):
            continue
        curves = [by_step(run, "train", "loss") for run in own]
        reach = max(FEWEST_STEPS, SHARE_SHOWN * max(max(curve.x, default=0.0) for curve in curves))
        seeds = [_near(curve, step, reach) for curve in curves]
        seed_numbers = [run.result.seed if run.result else None for run in own]
        lines.append(_Line(name, styles[name], seeds, seed_numbers, _first_losses(here) if here else None))
    return lines


def _first_losses(here: Sequence[MeasuredGrowth]) -> tuple[float, float]:
    """Mean losses around the first event: one command may follow another at the same step."""
    return mean_losses([growth for growth in here if growth.record.event == here[0].record.event])


def _near(curve: Curve, step: int, reach: float) -> Curve:
    kept = np.abs(curve.x - step) <= reach
    return Curve(curve.x[kept], curve.y[kept])


def mean_losses(growths: Sequence[MeasuredGrowth]) -> tuple[float, float]:
    """Mean losses before and after; NaN if a run has none."""
    return (
        float(np.mean([growth.before for growth in growths])),
        float(np.mean([growth.after for growth in growths])),
    )


def growth_panels(step: int, lines: Sequence[_Line]) -> list[Panel]:
    """The losses; and, if a model with the same seeds did not grow, their difference to its losses."""
    found = [Panel(f"Loss across the growth after step {step:,}", _figure(f"growth-{step}", step, lines, LOSS))]
    stayed = next((line for line in lines if line.losses is None), None)
    paired = [line for line in lines if stayed and line.seed_numbers == stayed.seed_numbers]
    if stayed is None or len(paired) == 1:
        return found
    name = shorten(stayed.name, 22)
    above = [_above(stayed, line) for line in paired]
    title, y_label = f"The same minus the loss of {name}", f"minus that of {name}"
    return [*found, Panel(title, _figure(f"growth-{step}-above", step, above, y_label))]


LOSS = "training loss; squares: held out"


def _above(stayed: _Line, line: _Line) -> _Line:
    """Until it grew, a model was the one that stayed: the held-out loss before is that of both."""
    losses = None if line.losses is None else (0.0, line.losses[1] - line.losses[0])
    seeds = [_difference(own, of_stayed) for own, of_stayed in zip(line.seeds, stayed.seeds)]
    return replace(line, seeds=seeds, losses=losses)


def _difference(curve: Curve, other: Curve) -> Curve:
    """The difference of two curves at the steps that both have."""
    steps = np.intersect1d(curve.x, other.x)
    return Curve(steps, curve.y[np.isin(curve.x, steps)] - other.y[np.isin(other.x, steps)])


def _figure(key: str, step: int, lines: Sequence[_Line], y_label: str) -> Markup:
    def paint(axes: Axes) -> None:
        axes.axvline(step + 0.5, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        for line in lines:
            _paint(axes, step, line)
        axes.set_xlabel("step")
        axes.set_ylabel(y_label)
        number_axis(axes.xaxis, 6, whole=True)
        number_axis(axes.yaxis, 8)
        axes.grid(axis="y")
        axes.tick_params(length=0)

    losses = "; ".join(
        f"{shorten(line.name, 40)} {shown_loss(line.losses[0])} to {shown_loss(line.losses[1])}"
        for line in lines
        if line.losses is not None
    )
    label = f"{capital(y_label)}, near step {step}, after which models grow. Held out, before and after: {losses}."
    return draw(key, label, INCHES, paint, line_legend({line.name: line.style for line in lines}))


def _paint(axes: Axes, step: int, line: _Line) -> None:
    colour = line.style.colour
    if len(line.seeds) > 1:
        for curve, seed in zip(line.seeds, line.seed_numbers):
            label = named(line.name, "an unfinished run" if seed is None else f"seed {seed}")
            axes.plot(curve.x, curve.y, color=colour, linewidth=SEED_WIDTH, alpha=SEED_ALPHA, label=label)
    mean = mean_over_seeds(line.seeds)
    axes.plot(mean.x, mean.y, color=colour, linestyle=line.style.dash, linewidth=1.9, label=named(line.name))
    if line.losses is not None:
        before, after = line.losses
        look = {"color": CARD, "markeredgecolor": colour, "markersize": 8, "markeredgewidth": 1.6}
        axes.plot(step, before, "s", label=named(line.name, "held out, before"), **look)
        look = {"color": colour, "markeredgecolor": CARD, "markersize": 6.5, "zorder": 4}
        axes.plot(step + 1, after, "s", label=named(line.name, "held out, after"), **look)


def shown_loss(loss: float) -> str:
    """With four decimals, or as missing."""
    return fixed(loss, 4) if np.isfinite(loss) else MISSING
