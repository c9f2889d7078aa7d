"""The forest plot: the difference of each model from a baseline, with its interval and the value of each seed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt

from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.records.outcome import Outcome
from widthwise.records.record import finite
from widthwise.reports import charts
from widthwise.reports.charts import MUTED, Figure, colour
from widthwise.reports.formats import clean, shorten, signed, with_interval

_ROW = 34
"""Pixels of a row, with two lines of text at its right end."""
VERDICT_COLOURS: Mapping[str | None, str] = {"better": colour("good"), "worse": colour("bad")}
"""Verdict -> colour; other verdicts are grey."""


class Effect(NamedTuple):
    """A row of the plot."""

    name: str
    difference: Estimate
    verdict: str | None


def difference_figure(outcome: Outcome) -> Figure | None:
    """Return the differences in held-out loss; None without differences.

    With fewer than FEWEST_SEEDS seeds there are no intervals.
    """
    baseline = shorten(outcome.baseline_words or "its baseline", 30)
    title = [f"nats above {baseline}: left of 0 is better"]
    has_intervals = len(outcome.seeds) >= FEWEST_SEEDS
    if not has_intervals:
        title.append("too few seeds for intervals")
    effects = []
    for variant in outcome.variants:
        if (difference := variant.difference) is not None:
            if not has_intervals:
                difference = difference.with_changes(low=None, high=None)
            effects.append(Effect(variant.name, difference, variant.verdict))
    caption = f"Held-out loss minus the loss of {baseline}"
    return forest("differences", caption, effects, title, n_decimals=3, seeds=outcome.seeds)


def forest(
    key: str, caption: str, effects: Sequence[Effect], x_title: list[str], n_decimals: int, seeds: Sequence[int] = ()
) -> Figure | None:
    """Return a row for each effect, lowest first, coloured by verdict; None without effects.

    Intervals that leave the axis end in an arrow. x_title: lines of the title of the axis. n_decimals: of the numbers
    at the right. seeds: of the values per seed.
    """
    if not effects:
        return None
    low, high = limits_of([effect.difference for effect in effects], [0.0])
    has_intervals = any(effect.difference.low is not None for effect in effects)
    means = []
    values = []
    arrows = []
    for name, difference, verdict in sorted(effects, key=lambda effect: finite(effect.difference.mean)):
        row = {"name": clean(name), "verdict": verdict, "colour": VERDICT_COLOURS.get(verdict, MUTED)}
        ends = ends_of(difference)
        numbers = signed(difference.mean, n_decimals)
        if difference.low is not None and difference.high is not None:
            numbers += f"\n[{signed(difference.low, n_decimals)}, {signed(difference.high, n_decimals)}]"
        means.append(row | ends | {"numbers": numbers})
        for seed, value in zip(seeds, difference.per_seed):
            values.append(row | {"seed": seed, "difference": finite(value)})
        if has_intervals and ends["low"] < low:
            arrows.append(row | {"end": low, "shape": "triangle-left"})
        if has_intervals and ends["high"] > high:
            arrows.append(row | {"end": high, "shape": "triangle-right"})
    across = charts.x("y", x_title, (low, high), format="+.3~f", grid=True)
    up = alt.Y("name:N", sort=[row["name"] for row in means], title=None)
    mark_colour = alt.Color("colour:N", scale=None)
    tip = charts.tips(name="|variant", y="+.4f|mean", low="+.4f", high="+.4f", verdict="")
    layers = [charts.line_at(0, "x")]
    if has_intervals:
        bars = charts.chart(means).mark_rule(strokeWidth=2.6, clip=True)
        layers.append(bars.encode(x=alt.X("low:Q"), x2="high:Q", y=up, color=mark_colour))
    if values:
        ticks = charts.chart(values).mark_tick(thickness=1.4, size=9, yOffset=9, clip=True)
        seed_tip = charts.tips(name="|variant", seed="", difference="+.4f")
        layers.append(ticks.encode(x="difference:Q", y=up, tooltip=seed_tip, color=mark_colour))
    if arrows:
        heads = charts.chart(arrows).mark_point(size=70)
        shape = alt.Shape("shape:N", scale=None)
        layers.append(heads.encode(x="end:Q", y=up, color=mark_colour, shape=shape))
    layers.append(charts.chart(means).mark_point(size=95).encode(x=across, y=up, tooltip=tip, color=mark_colour))
    layers.append(charts.beside(means, up, "numbers", dy=-6))
    differences = {effect.name: with_interval(effect.difference, n_decimals + 1) for effect in effects}
    label = charts.described(f"{caption}:", differences)
    return Figure(key, caption, label, alt.layer(*layers), height=40 + _ROW * len(effects))


def ends_of(estimate: Estimate) -> dict[str, float]:
    """Return the columns of a mean and its interval; NaN if unknown."""
    return {"y": finite(estimate.mean), "low": finite(estimate.low), "high": finite(estimate.high)}


def limits_of(estimates: Sequence[Estimate], marks: Sequence[float] = ()) -> tuple[float, float]:
    """Return the ends of an axis of means with intervals. Long intervals are clipped so that means stay separate.

    marks: other values on the axis. At least one mean or mark is needed.
    """
    values = [*(estimate.mean for estimate in estimates if estimate.mean is not None), *marks]
    low = min(values)
    high = max(values)
    room = (high - low) or 0.01
    lowest = min([low, *(estimate.low for estimate in estimates if estimate.low is not None)])
    highest = max([high, *(estimate.high for estimate in estimates if estimate.high is not None)])
    return max(lowest, low - room) - 0.08 * room, min(highest, high + room) + 0.08 * room
