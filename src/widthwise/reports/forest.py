"""The forest plot: the difference of each model from a baseline, with its interval and the value of each seed."""

from collections.abc import Mapping

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


def difference_figure(outcome: Outcome) -> Figure | None:
    """Return the differences in held-out loss, lowest first, coloured by verdict; None without differences.

    Intervals that leave the axis end in an arrow. With fewer than FEWEST_SEEDS seeds there are no intervals.
    """
    differences = {variant.name: variant.difference for variant in outcome.variants if variant.difference is not None}
    if not differences:
        return None
    verdicts = {variant.name: variant.verdict for variant in outcome.variants}
    has_intervals = len(next(iter(differences.values())).per_seed) >= FEWEST_SEEDS
    low, high = charts.limits_of(list(differences.values()), [0.0])
    means = []
    seeds = []
    arrows = []
    for name, difference in sorted(differences.items(), key=lambda item: finite(item[1].mean)):
        row = {"name": clean(name), "verdict": verdicts[name], "colour": VERDICT_COLOURS.get(verdicts[name], MUTED)}
        ends = charts.ends_of(difference)
        means.append(row | ends | {"numbers": _numbers(difference)})
        for seed, value in zip(outcome.seeds, difference.per_seed):
            seeds.append(row | {"seed": seed, "difference": finite(value)})
        if has_intervals and ends["low"] < low:
            arrows.append(row | {"end": low, "shape": "triangle-left"})
        if has_intervals and ends["high"] > high:
            arrows.append(row | {"end": high, "shape": "triangle-right"})
    baseline = shorten(outcome.baseline_words or "its baseline", 30)
    title = [f"nats above {baseline}: left of 0 is better"]
    if not has_intervals:
        title.append("too few seeds for intervals")
    across = charts.x("y", title, (low, high), format="+.3~f", grid=True)
    up = alt.Y("name:N", sort=[row["name"] for row in means], title=None)
    mark_colour = alt.Color("colour:N", scale=None)
    tip = charts.tips(name="|variant", y="+.4f|mean", low="+.4f", high="+.4f", verdict="")
    layers = [charts.line_at(0, "x")]
    if has_intervals:
        bars = charts.chart(means).mark_rule(strokeWidth=2.6, clip=True)
        layers.append(bars.encode(x=alt.X("low:Q"), x2="high:Q", y=up, color=mark_colour))
    ticks = charts.chart(seeds).mark_tick(thickness=1.4, size=9, yOffset=9, clip=True)
    seed_tip = charts.tips(name="|variant", seed="", difference="+.4f")
    layers.append(ticks.encode(x="difference:Q", y=up, tooltip=seed_tip, color=mark_colour))
    if arrows:
        heads = charts.chart(arrows).mark_point(size=70)
        shape = alt.Shape("shape:N", scale=None)
        layers.append(heads.encode(x="end:Q", y=up, color=mark_colour, shape=shape))
    layers.append(charts.chart(means).mark_point(size=95).encode(x=across, y=up, tooltip=tip, color=mark_colour))
    layers.append(charts.beside(means, up, "numbers", dy=-6))
    label = charts.described(
        f"Difference in held-out loss to {baseline}:",
        {name: with_interval(difference, 4) for name, difference in differences.items()},
    )
    caption = f"Held-out loss minus the loss of {baseline}"
    height = 40 + _ROW * len(differences)
    return Figure("differences", caption, label, alt.layer(*layers), height=height)


def _numbers(difference: Estimate) -> str:
    """Return the mean, and below it the interval, if known."""
    lines = [signed(difference.mean, 3)]
    if difference.low is not None and difference.high is not None:
        lines.append(f"[{signed(difference.low, 3)}, {signed(difference.high, 3)}]")
    return "\n".join(lines)
