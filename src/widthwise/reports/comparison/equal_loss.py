"""What variants need for the held-out loss of their baseline, and how far apart they are in training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.comparison import Compared, Variant
from widthwise.records.estimate import Estimate, OverTokens, Validations
from widthwise.records.quantities import OF_HELD_OUT
from widthwise.records.record import finite
from widthwise.reports.page.formats import MISSING, capital, clean, counted, fixed, interval, shorten, si
from widthwise.reports.page.html import Panel, legend, panels
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, label_axes
from widthwise.reports.page.svg import INK, Style, draw, line_legend
from widthwise.reports.page.table import Table

CONSTANT = 0.999
"""Share of the highest learning rate from which the last one counts as the same."""


@dataclass(frozen=True)
class EqualLossSection:
    """The part of a page on equal losses."""

    beside: str
    """What variants are compared with."""
    remarks: Sequence[str]
    figures: Sequence[Panel]
    legend: Sequence[tuple[Markup, str]]
    tables: Sequence[Table]


def equal_loss_section(found: Compared, styles: Mapping[str, Style]) -> EqualLossSection | None:
    """None where nothing is compared, and for files of versions that said nothing of the course of runs.

    styles: of the variants that are drawn; tables have all.
    """
    compared = [
        variant
        for variant in found.variants
        if (baseline := found.baseline_of(variant)) is not None and baseline.name != variant.name
    ]
    words = found.baseline_words
    if found.validations is None or words is None or not compared:
        return None
    drawn = [variant for variant in compared if variant.gap and variant.name in styles]
    tables = [table for name in OF_HELD_OUT if (table := _table(name, compared, words)) is not None]
    return EqualLossSection(
        beside=words,
        remarks=_remarks(found.validations, bool(tables)),
        figures=[panel for name in OF_HELD_OUT for panel in panels(_figures(name, drawn, styles, words))],
        legend=legend({variant.name: styles[variant.name] for variant in drawn}),
        tables=tables,
    )


def _remarks(found: Validations, has_tables: bool) -> list[str]:
    """Whether the validations are enough, and what the learning rate does to the numbers.

    has_tables: whether they are for some pair of variants.
    """
    n = counted(found.n_fewest, "validation")
    enough = f"Each run has {n} or more; between them losses are interpolated over the logarithm of tokens."
    too_few = (
        f"Too few validations: to say with how many tokens a loss is reached takes {found.n_needed} of every run, and "
        f"one has {n}. train.validate_every sets how often a run is validated."
    )
    remarks = [enough if found.suffice else too_few]
    if not has_tables and not found.suffice:
        return remarks
    share = found.final_lr_share
    if share is None:
        return remarks
    if share >= CONSTANT:
        return [*remarks, "The learning rate did not fall, so a loss on the way is that of a run which ends there."]
    return [
        *remarks,
        f"The learning rate fell to {share:.3g} of its highest. A loss on the way is that of a rate which had yet to "
        "fall, and higher than that of a run planned to end there; the run that ends lower would have come to the same "
        "loss with fewer tokens. So ratios of tokens are nearer to 1 than those of runs with a schedule of their own, "
        "and ratios of FLOPs are off by the same factor.",
    ]


def _figures(
    loss: str, compared: Sequence[Variant], styles: Mapping[str, Style], baseline: str
) -> dict[str, Markup | None]:
    """Title -> figure over tokens: the gap of a loss, and the ratio of tokens."""
    title, other = OF_HELD_OUT[loss].title, shorten(baseline, 40)
    gaps = {each.name: each.gap[loss] for each in compared if loss in each.gap}
    ratios = {each.name: each.tokens_ratio[loss] for each in compared if loss in each.tokens_ratio}
    gap_title, ratio_title = f"{capital(title)} minus that of {other}", f"Tokens to the {title} of {other}"
    return {
        gap_title: _figure(f"gap-{loss}", gap_title, "difference in nats", gaps, styles, 0),
        ratio_title: _figure(f"tokens-ratio-{loss}", ratio_title, f"times those of {other}", ratios, styles, 1),
    }


def _figure(
    key: str, title: str, y_label: str, curves: Mapping[str, OverTokens], styles: Mapping[str, Style], equal: float
) -> Markup | None:
    """Means over tokens, with bands over seeds. equal: where nothing differs. None where none has two points."""
    drawn = {name: curve for name, curve in curves.items() if len(curve.tokens) > 1}
    if not drawn:
        return None

    def paint(axes: Axes) -> None:
        axes.axhline(equal, color=INK, linewidth=1)
        for name, curve in drawn.items():
            style = styles[name]
            low, high = (np.array(list(map(finite, ends))) for ends in (curve.low, curve.high))
            label = named(name)
            axes.fill_between(curve.tokens, low, high, color=style.colour, alpha=0.16, linewidth=0, label=label)
            every = max(1, len(curve.tokens) // 8)
            axes.plot(curve.tokens, list(map(finite, curve.mean)), markevery=every, label=label, **style.line)
        axes.set_ylim(*_late_range(list(drawn.values()), equal))
        label_axes(axes, "tokens", y_label, whole=True)

    ends = "; ".join(f"{shorten(name, 40)} {fixed(curve.mean[-1], 4)}" for name, curve in drawn.items())
    label = f"{title}, {y_label}, over tokens. At the end of each line: {ends}."
    return draw(key, label, INCHES, paint, line_legend({name: styles[name] for name in drawn}))


def _late_range(curves: Sequence[OverTokens], equal: float) -> tuple[float, float]:
    """From the lowest to the highest number behind the first tenth of training, and `equal`, with a margin."""
    end = max(curve.tokens[-1] for curve in curves)
    shown = [
        value
        for curve in curves
        for numbers in (curve.mean, curve.low, curve.high)
        for at, value in zip(curve.tokens, numbers)
        if value is not None and at >= 0.1 * end
    ]
    low, high = min([equal, *shown]), max([equal, *shown])
    margin = 0.06 * (high - low) or 0.01
    return low - margin, high + margin


def _table(loss: str, compared: Sequence[Variant], baseline: str) -> Table | None:
    """What each variant needs, one row each; None where nothing is known of this loss."""
    rows = []
    for variant in compared:
        found = variant.at_equal_loss.get(loss)
        if found is None:
            continue
        n_seeds = len(found.tokens_ratio.per_seed)
        row = [clean(variant.name), f"{found.n_reached} of {n_seeds}", si(found.tokens.mean)]
        rows.append([*row, *_ends(found.tokens_ratio), *_ends(found.training_flops_ratio)])
    if not rows:
        return None
    header = ["Variant", "seeds that reach it", "tokens", "tokens, ratio", "interval", "FLOPs, ratio", "interval"]
    return Table(
        f"To the final {OF_HELD_OUT[loss].title} of {clean(baseline)}, and ratios at equal loss",
        header,
        rows,
    )


def _ends(ratio: Estimate) -> list[str]:
    return [fixed(ratio.mean, 3), interval(ratio, 3) or MISSING]
