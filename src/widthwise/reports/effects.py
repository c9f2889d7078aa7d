"""The page of several comparisons: which effects change sign; with CSV, LaTeX and `effects.json`."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import altair as alt

from widthwise.records.estimate import Effects, EqualLoss, Estimate
from widthwise.records.outcome import Variant
from widthwise.records.quantities import TITLES
from widthwise.reports import charts
from widthwise.reports.charts import CARD, Figure, limits_of, styles
from widthwise.reports.formats import MISSING, clean, counted, fixed, interval, percentage, sequence, shorten, signed
from widthwise.reports.page import Code, Page, Text, in_words, note, section
from widthwise.reports.scales import Effect, Scale, Scales, seed_words, sentences, sign, signs, words, worth
from widthwise.reports.table import Table, csv_cell, csv_estimate, csv_rows, escaped_row, latex_table
from widthwise.reports.tables import text_key, text_words


def effects_page(scales: Scales) -> Page:
    """Return the page on the effects of variants over sizes and lengths of training."""
    names = [clean(effect.name) for effect in scales.effects]
    texts = {text_key(scale.comparison.environment) for scale in scales.each}
    level, baseline = percentage(scales.confidence), clean(scales.baseline)
    commands = [
        part
        for scale in scales.each
        for part in (Text([clean(str(scale.folder))], is_quiet=False), Code(scale.comparison.command))
    ]
    return Page(
        "effects",
        f"{counted(len(scales.each), 'comparison')} with {baseline}",
        answer(scales),
        lead=_question(scales, names),
        first=effect_figures(scales),
        sections=(
            section(
                "Effects over size and tokens",
                note("effects", baseline=baseline, level=level),
                effect_table(scales),
                note("signs", "several-texts" * (len(texts) > 1)),
                in_words(sentences(scales)),
            ),
            section(
                "Tokens at equal loss",
                equal_loss_table(scales),
                note("equal-loss-of-effects"),
            ),
            section(
                "Differences in tokens",
                worth_table(scales),
                note("worth", baseline=baseline),
            ),
            section("The comparisons", scale_table(scales)),
            section("How to reproduce", *commands),
        ),
        made_from="outcome.json of each folder",
    )


def answer(scales: Scales) -> list[str]:
    """Return which effects change sign, which have one everywhere, and which cannot be told."""
    groups: dict[str, list[str]] = {}
    for effect in scales.effects:
        groups.setdefault(signs(effect.measured), []).append(clean(effect.name))
    phrases = {
        "same sign everywhere": "The same sign at every scale: {}.",
        "changes sign": "The sign changes: {}.",
        "cannot tell": "One cannot tell: {}.",
    }
    return [phrase.format(sequence(groups[found])) for found, phrase in phrases.items() if found in groups]


def effect_figures(scales: Scales) -> list[Figure]:
    """Return a small figure for each variant, with the same axes: over tokens, with a line for each size.

    Over sizes if all have as many tokens. A marker is full where the interval excludes 0; where a variant was not
    measured, its line is interrupted.
    """
    is_over_tokens = len(scales.lengths) > 1 or len(scales.sizes) == 1
    others = scales.sizes if is_over_tokens else scales.lengths
    names = {value: f"{text} {'parameters' if is_over_tokens else 'tokens'}" for value, text in others.items()}
    looks = styles(list(names.values()))
    x_title = "tokens" if is_over_tokens else "parameters"
    ends = limits_of([each for effect in scales.effects for each in effect.measured], [0.0])
    ticks = list(scales.lengths if is_over_tokens else scales.sizes)
    room = (max(ticks) / min(ticks)) ** 0.15 if len(ticks) > 1 else 2.0
    figures = []
    for i, effect in enumerate(scales.effects):
        rows = []
        for scale, each in zip(scales.each, effect.differences):
            at, line = (scale.tokens, scale.params) if is_over_tokens else (scale.params, scale.tokens)
            own = {"name": names[line], "x": float(at), "seeds": seed_words(scale)}
            if each is None:
                rows.append(own | {"mean": None, "low": None, "high": None, "sure": "no"})
            else:
                sure = "yes" if sign(each) else "no"
                rows.append(own | {"mean": each.mean, "low": each.low, "high": each.high, "sure": sure})
        rows.sort(key=lambda row: row["x"])
        across = charts.x("x", x_title, (min(ticks) / room, max(ticks) * room), True, values=ticks, format=".3~s")
        tip = charts.tips(name="|line", x=f",.0f|{x_title}", mean="+.4f", low="+.4f", high="+.4f", seeds="")
        up = charts.y("mean", "difference in nats", ends)
        base = charts.chart(rows).encode(x=across, tooltip=tip)
        hollow = alt.condition("datum.sure == 'yes'", alt.value(1), alt.value(0))
        bars = base.mark_rule(strokeWidth=1.6, opacity=0.55, clip=True)
        ground = base.mark_point(fill=CARD, size=62, stroke=None, clip=True)
        rim = base.mark_point(fill=None, size=62, strokeWidth=1.5, clip=True)
        full = base.mark_point(size=62, clip=True)
        layers = alt.layer(
            charts.line_at(0, "y"),
            base.mark_line(strokeWidth=1.3).encode(y=up, **charts.coloured(looks, "color", "strokeDash")),
            bars.encode(y=charts.y("low", "difference in nats", ends), y2="high:Q", **charts.coloured(looks)),
            ground.encode(y=up, shape=charts.coloured(looks, "shape")["shape"]),
            full.encode(y=up, fillOpacity=hollow, **charts.coloured(looks, "fill", "shape")),
            rim.encode(y=up, **charts.coloured(looks, "stroke", "shape")),
        )
        missing = [
            f"{scales.sizes[scale.params]}, {scales.lengths[scale.tokens]}"
            for scale, each in zip(scales.each, effect.differences)
            if each is None
        ]
        title = clean(effect.name) + (f" (not at {'; '.join(missing)} tokens)" if missing else "")
        pair = f"{shorten(effect.name, 40)} minus that of {shorten(scales.baseline, 40)}"
        label = f"Held-out loss of {pair}, {words(effect)}: "
        label += "; ".join(
            f"not measured at {scales.name(scale)}"
            if each is None
            else f"{signed(each.mean, 4)} ({interval(each, 4, True) or 'no interval'}) at {scales.name(scale)}"
            for scale, each in zip(scales.each, effect.differences)
        )
        figures.append(Figure(f"effects-{i}", title, f"{label}.", layers, looks, height=220, is_small=True))
    return figures


def effects_record(scales: Scales, out: Path) -> Effects:
    """Return the record from which the page in `out` can be made anew."""
    comparisons = [Path(os.path.relpath(scale.folder, out)).as_posix() for scale in scales.each]
    command = shlex.join(["widthwise", "report", *comparisons, "--out", "."])
    return Effects(command=command, comparisons=comparisons, sentence="\n".join(sentences(scales)))


def _question(scales: Scales, names: Sequence[str]) -> str:
    start = "Does the effect" if len(names) == 1 else "Which effects"
    return (
        f"{start} of {sequence(names)} beside {clean(scales.baseline)} change sign with the size of the model or the "
        "tokens it is trained on?"
    )


F = TypeVar("F", Variant, Estimate)
SIGN = "sign"
"""Title of the column that says in words what the differences say together."""


def effect_table(scales: Scales) -> Table:
    """The difference of every variant at every scale, with its interval, and what they say together."""
    rows = [[*_row(effect.name, effect.variants, _difference), words(effect)] for effect in scales.effects]
    caption = (
        f"Held-out loss minus that of {clean(scales.baseline)} in nats, with its {percentage(scales.confidence)} "
        "interval; *: it excludes 0, with three seeds or more"
    )
    return Table(caption, ["Variant", *_titles(scales), SIGN], rows, words={SIGN})


def equal_loss_table(scales: Scales) -> Table | None:
    """Tokens over the baseline's at equal loss; None if no comparison measured them."""
    if not any(each and equal_loss(each) for effect in scales.effects for each in effect.variants):
        return None
    rows = [_row(effect.name, effect.variants, _tokens_ratio) for effect in scales.effects]
    caption = (
        f"Tokens over those of {clean(scales.baseline)} at equal held-out loss, with the "
        f"{percentage(scales.confidence)} interval; below 1 a variant needs fewer"
    )
    return Table(caption, ["Variant", *_titles(scales)], rows)


def worth_table(scales: Scales) -> Table | None:
    """Return the worth of differences in tokens (`worth`); None where no size was trained for two lengths."""
    found = {effect.name: worth(effect, scales) for effect in scales.effects}
    if not any(each for ratios in found.values() for each in ratios):
        return None
    rows = [_row(name, ratios, _ratio) for name, ratios in found.items()]
    caption = (
        f"Tokens over those with which {clean(scales.baseline)} would have the same loss, as its loss falls between "
        "two lengths of training"
    )
    return Table(caption, ["Variant", *_titles(scales)], rows)


def equal_loss(variant: Variant) -> EqualLoss | None:
    """Return the needs of a variant for the held-out loss of the baseline; None if not measured."""
    return variant.at_equal_loss.get("val_loss")


def scale_table(scales: Scales) -> Table:
    """One row for each comparison: what was compared, at what cost equal, and on which text."""
    rows = [
        [
            clean(str(scale.folder)),
            f"{scale.params:,}",
            f"{scale.tokens:,}",
            ", ".join(map(str, scale.comparison.seeds)),
            _matched(scale),
            text_words(scale.comparison.environment) or MISSING,
        ]
        for scale in scales.each
    ]
    header = ["Folder", "parameters", "tokens", "seeds", "matched in", "text, tokenizer"]
    caption = f"From small to large; parameters and tokens are those of {clean(scales.baseline)}"
    return Table(caption, header, rows, words={"matched in", "text, tokenizer"})


def _matched(scale: Scale) -> str:
    matched = scale.comparison.matched
    return MISSING if matched in (None, "none") else TITLES.get(matched, clean(matched))


def _titles(scales: Scales) -> list[str]:
    return [f"{scales.name(scale)}, {seed_words(scale)}" for scale in scales.each]


def _row(name: str, found: Sequence[F | None], cell: Callable[[F], str]) -> list[str]:
    """The cells of a variant; what a scale lacks is MISSING."""
    return [clean(name), *(MISSING if each is None else cell(each) for each in found)]


def _difference(variant: Variant) -> str:
    assert variant.difference is not None
    mark = "*" if sign(variant.difference) else ""
    return _with_interval(signed(variant.difference.mean, 4) + mark, variant.difference, 4, True)


def _tokens_ratio(variant: Variant) -> str:
    found = equal_loss(variant)
    return MISSING if found is None else _ratio(found.tokens_ratio)


def _ratio(estimate: Estimate) -> str:
    return _with_interval(fixed(estimate.mean, 3), estimate, 3, False)


def _with_interval(text: str, estimate: Estimate, n_decimals: int, is_signed: bool) -> str:
    ends = interval(estimate, n_decimals, is_signed)
    return f"{text}\n{ends}" if ends else text


def csv_text(scales: Scales) -> str:
    """Full precision; where a comparison lacks a variant there is a row without numbers."""
    rows = [
        _csv_row(effect, i, scale, ratio)
        for effect in scales.effects
        for i, (scale, ratio) in enumerate(zip(scales.each, worth(effect, scales)))
    ]
    return csv_rows(rows, list(rows[0]))


def _csv_row(effect: Effect, i: int, scale: Scale, ratio: Estimate | None) -> dict[str, object]:
    variant = effect.variants[i]
    needed = variant and equal_loss(variant)
    row: dict[str, object] = {
        "variant": csv_cell(effect.name),
        "comparison": csv_cell(str(scale.folder)),
        "baseline": csv_cell(str(scale.comparison.baseline)),
        "params": scale.params,
        "tokens": scale.tokens,
        "n_seeds": len(scale.comparison.seeds),
    }
    for name, estimate in (
        ("difference", effect.differences[i]),
        ("tokens_at_equal_loss", needed and needed.tokens_ratio),
        ("training_flops_at_equal_loss", needed and needed.training_flops_ratio),
        ("tokens_by_slope", ratio),
    ):
        row |= csv_estimate(name, estimate)
    return row | {"sign": words(effect)}


def latex_text(scales: Scales) -> str:
    r"""A `table` environment for a paper; needs \usepackage{booktabs} and T1 font encoding."""
    table = effect_table(scales)
    body = [line for row in table.rows for line in _latex_lines(row)]
    return latex_table(f"{table.caption}.", "r" * len(scales.each) + "l", list(_latex_head(scales)), body)


def _latex_head(scales: Scales) -> Iterator[str]:
    """Parameters, tokens and seeds below each other, because columns side by side must be narrow."""
    names = [
        (f"{scales.sizes[scale.params]} parameters", f"{scales.lengths[scale.tokens]} tokens", seed_words(scale))
        for scale in scales.each
    ]
    for first, line, last in zip(("Variant", "", ""), zip(*names), (SIGN, "", "")):
        yield escaped_row([first, *line, last])


def _latex_lines(row: Sequence[str]) -> Iterator[str]:
    """Differences, and below them their intervals."""
    parts = [cell.partition("\n") for cell in row]
    yield escaped_row([value for value, *_ in parts])
    if any(details for *_, details in parts):
        yield escaped_row([details for *_, details in parts])
