"""Growth of models in the course of their runs: the loss across it, and what it was before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from widthwise.reports.curves import Curve, by_step, mean_over_seeds
from widthwise.reports.formats import clean, fixed, shorten, si, tick
from widthwise.reports.html import Panel, legend
from widthwise.reports.records import Growth, Run, finite
from widthwise.reports.svg import CARD, INK, Style, draw
from widthwise.reports.tables import Table

SHARE_SHOWN = 0.1
"""Of the steps of a run, on each side of a growth."""
FEWEST_STEPS = 12
"""On each side."""


@dataclass(frozen=True)
class GrowthSection:
    """What the page shows of growth."""

    figures: list[Panel]
    legend: list[tuple[Markup, str]]
    table: Table


@dataclass(frozen=True)
class _Line:
    """A variant near a growth."""

    name: str
    style: Style
    seeds: list[Curve]
    """Training loss by step."""
    losses: tuple[float, float] | None
    """Held out, before and after, means over seeds; None where this variant did not grow there."""


def growth_section(runs: Mapping[str, Sequence[Run]], styles: Mapping[str, Style]) -> GrowthSection | None:
    """None where no model grew. runs: by variant, one a seed."""
    growths = {name: _growths(own) for name, own in runs.items()}
    steps = sorted({step for own in growths.values() for step in own})
    if not steps:
        return None
    lines = {step: _lines(step, runs, growths, styles) for step in steps}
    shown = {line.name for own in lines.values() for line in own}
    return GrowthSection(
        [panel for step in steps for panel in _panels(step, lines[step])],
        legend({name: styles[name] for name in runs if name in shown}),
        _table(growths),
    )


def _growths(runs: Sequence[Run]) -> dict[int, list[Growth]]:
    """Step -> what happened there in each run."""
    found: dict[int, list[Growth]] = {}
    for run in runs:
        for growth in run.result.growth if run.result else ():
            found.setdefault(growth.step, []).append(growth)
    return found


def _lines(
    step: int,
    runs: Mapping[str, Sequence[Run]],
    growths: Mapping[str, Mapping[int, list[Growth]]],
    styles: Mapping[str, Style],
) -> list[_Line]:
    """What grew there, and what stayed as small as that was."""
    sizes = {growth.params_before for own in growths.values() for growth in own.get(step, ())}
    lines = []
    for name, own in runs.items():
        here = growths[name].get(step)
        cost = own[0].cost
        if here is None and (growths[name] or cost is None or cost.params["total"] not in sizes):
            continue
        reach = max(FEWEST_STEPS, SHARE_SHOWN * max(finite(run.result.steps) if run.result else 0 for run in own))
        seeds = [_near(by_step(run, "train", "loss"), step, reach) for run in own]
        lines.append(_Line(name, styles[name], seeds, None if here is None else _mean_losses(here)))
    return lines


def _near(curve: Curve, step: int, reach: float) -> Curve:
    kept = np.abs(curve.x - step) <= reach
    return Curve(curve.x[kept], curve.y[kept])


def _mean_losses(growths: Sequence[Growth]) -> tuple[float, float]:
    before, after = ([finite(getattr(growth, key)) for growth in growths] for key in ("loss_before", "loss_after"))
    return float(np.mean(before)), float(np.mean(after))


def _panels(step: int, lines: Sequence[_Line]) -> list[Panel]:
    """The losses; and, where a model stayed as it was, what they are above its own on the same batches."""
    found = [Panel(f"Loss across the growth after step {step:,}", _figure(f"growth-{step}", step, lines, LOSS))]
    stayed = next((line for line in lines if line.losses is None), None)
    if stayed is None:
        return found
    name = shorten(stayed.name, 22)
    above = [_above(stayed, line) for line in lines]
    title, y_label = f"The same minus the loss of {name}", f"training loss minus that of {name}"
    return [*found, Panel(title, _figure(f"growth-{step}-above", step, above, y_label))]


LOSS = "training loss; squares: held-out loss"


def _above(stayed: _Line, line: _Line) -> _Line:
    """Until it grew, a model was the one that stayed: the held-out loss before is that of both."""
    losses = None if line.losses is None else (0.0, line.losses[1] - line.losses[0])
    seeds = [_difference(own, of_stayed) for own, of_stayed in zip(line.seeds, stayed.seeds)]
    return replace(line, seeds=seeds, losses=losses)


def _difference(curve: Curve, other: Curve) -> Curve:
    """At the steps that both have."""
    steps = np.intersect1d(curve.x, other.x)
    return Curve(steps, curve.y[np.isin(curve.x, steps)] - other.y[np.isin(other.x, steps)])


def _figure(key: str, step: int, lines: Sequence[_Line], y_label: str) -> Markup:
    def paint(axes: Axes) -> None:
        axes.axvline(step + 0.5, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        for line in lines:
            _paint(axes, step, line)
        axes.set_xlabel("step")
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        axes.grid(axis="y")
        axes.tick_params(length=0)

    held_out = "; ".join(
        f"{shorten(line.name, 40)} {fixed(line.losses[0], 4)} to {fixed(line.losses[1], 4)}"
        for line in lines
        if line.losses is not None
    )
    label = (
        f"{y_label.capitalize()}, near step {step}, after which models grow. Held out, before and after: {held_out}."
    )
    return draw(key, label, (5.4, 3.4), paint)


def _paint(axes: Axes, step: int, line: _Line) -> None:
    colour = line.style.colour
    if len(line.seeds) > 1:
        for curve in line.seeds:
            axes.plot(curve.x, curve.y, color=colour, linewidth=0.7, alpha=0.35)
    mean = mean_over_seeds(line.seeds)
    axes.plot(mean.x, mean.y, color=colour, linestyle=line.style.dash, linewidth=1.9)
    if line.losses is not None:
        before, after = line.losses
        axes.plot(step, before, "s", color=CARD, markeredgecolor=colour, markersize=8, markeredgewidth=1.6)
        axes.plot(step + 1, after, "s", color=colour, markersize=6.5, markeredgecolor=CARD, zorder=4)


def _table(growths: Mapping[str, Mapping[int, list[Growth]]]) -> Table:
    rows = []
    for name, own in growths.items():
        for step, here in own.items():
            before, after = _mean_losses(here)
            changes = [finite(growth.loss_after) - finite(growth.loss_before) for growth in here]
            rows.append(
                [
                    clean(name),
                    f"{step:,}",
                    f"{si(here[0].params_before)} to {si(here[0].params_after)}",
                    si(here[0].training_flops),
                    fixed(before, 4),
                    fixed(after, 4),
                    f"{max(changes, key=abs):+.1e}",
                ]
            )
    header = ["Variant", "after step", "parameters", "training FLOPs by then", "held-out before", "after"]
    return Table("Growth, mean over seeds", [*header, "largest change"], rows)
