"""The page of several comparisons: which effects change sign; with CSV, LaTeX and `effects.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from widthwise.records.estimate import Effects, EqualLoss, Estimate
from widthwise.records.outcome import Variant
from widthwise.records.quantities import TITLES
from widthwise.reports import charts
from widthwise.reports.charts import CARD, Figure, Plot, limits_of, styles
from widthwise.reports.formats import MISSING, clean, counted, fixed, interval, percentage, sequence, shorten, signed
from widthwise.reports.page import Code, Page, Text, made_anew, note, section
from widthwise.reports.scales import Scales, described, sentences, side, sign, signs, words, worth
from widthwise.reports.table import Table, csv_estimate, csv_rows
from widthwise.reports.tables import text_key, text_words

PHRASES = {
    "same sign everywhere": "The sign is the same at every scale for {}.",
    "changes sign": "The sign changes for {}.",
    "cannot tell": "These comparisons cannot tell for {}.",
}
SIGN = "sign"
"""Title of the column that says in words what the differences say together."""


def effects_page(scales: Scales) -> Page:
    """Return the page on the effects of variants over sizes and lengths of training."""
    names = [clean(effect.name) for effect in scales.effects]
    texts = {text_key(scale.comparison.environment) for scale in scales.each}
    level, baseline = percentage(scales.confidence), clean(scales.baseline)
    groups = {
        found: [clean(each.name) for each in scales.effects if signs(each.measured) == found] for found in PHRASES
    }
    changed = dict.fromkeys(clean(each.variant) for each in scales.changes if side(each.change))
    start = "Does the effect" if len(names) == 1 else "Which effects"
    at_equal_loss = {
        effect.name: [found and found.tokens_ratio for found in map(_equal_loss, effect.variants)]
        for effect in scales.effects
    }
    worths = {effect.name: worth(effect, scales) for effect in scales.effects}
    equal_loss = f"Tokens over those of {baseline} at equal held-out loss, with the {level} interval"
    by_slope = (
        f"Tokens over those with which {baseline} would have the same loss, as its loss falls between two lengths of "
        "training"
    )
    comparisons, commands = list[list[str]](), list[Text | Code]()
    for scale in scales.each:
        own, folder = scale.comparison, clean(str(scale.folder))
        seeds, text = ", ".join(map(str, own.seeds)), text_words(own.environment) or MISSING
        matched = MISSING if own.matched in (None, "none") else TITLES.get(own.matched, clean(own.matched))
        comparisons.append([folder, f"{scale.params:,}", f"{scale.tokens:,}", seeds, matched, text])
        commands += [Text([folder], is_quiet=False), Code(own.command)]
    header = ["Folder", "parameters", "tokens", "seeds", "matched in", "text, tokenizer"]
    caption = f"From small to large; parameters and tokens are those of {baseline}"
    return Page(
        "effects",
        f"{counted(len(scales.each), 'comparison')} with {baseline}",
        [
            *(phrase.format(sequence(groups[found])) for found, phrase in PHRASES.items() if groups[found]),
            f"Between scales the effect changes for {sequence([*changed])}."
            if changed
            else "No effect is seen to change between two scales.",
        ],
        lead=f"{start} of {sequence(names)} beside {baseline} change sign with the size of the model or the tokens it "
        "is trained on?",
        first=effect_figures(scales),
        sections=(
            section(
                "Effects over size and tokens",
                note("effects", baseline=baseline, level=level),
                effect_table(scales),
                note("signs", "several-texts" * (len(texts) > 1)),
            ),
            section("Changes of effects", change_table(scales), note("changes")),
            section(
                "Tokens at equal loss",
                _ratio_table(f"{equal_loss}; below 1 a variant needs fewer", scales, at_equal_loss),
                note("equal-loss-of-effects"),
            ),
            section("Differences in tokens", _ratio_table(by_slope, scales, worths), note("worth", baseline=baseline)),
            section("The comparisons", Table(caption, header, comparisons, words={"matched in", "text, tokenizer"})),
            section("How to reproduce", *commands),
        ),
        made_from="outcome.json of each folder",
        files={"table.csv": csv_text(scales), "table.tex": latex_text(scales)},
        record=lambda out: effects_record(scales, out),
    )


def effect_figures(scales: Scales) -> list[Figure]:
    """Return a small figure for each variant, with the same axes: over tokens, with a line for each size.

    Over sizes if all have as many tokens. A marker is full where the interval excludes 0; where a variant was not
    measured, its line is interrupted.
    """
    is_over_tokens = len(scales.lengths) > 1 or len(scales.sizes) == 1
    x_title, per_line = ("tokens", "parameters") if is_over_tokens else ("parameters", "tokens")
    places, others = (scales.lengths, scales.sizes) if is_over_tokens else (scales.sizes, scales.lengths)
    names = {value: f"{text} {per_line}" for value, text in others.items()}
    looks, ticks = styles(list(names.values())), list(places)
    ends = limits_of([each for effect in scales.effects for each in effect.measured], [0.0])
    room = (max(ticks) / min(ticks)) ** 0.15 if len(ticks) > 1 else 2.0
    across = charts.x("x", x_title, (min(ticks) / room, max(ticks) * room), True, values=ticks, format=".3~s")
    tip = charts.tips(name="|line", x=f",.0f|{x_title}", y="+.4f|mean", low="+.4f", high="+.4f", seeds="")
    plot = Plot(across, "difference in nats", looks, tip, ends)
    is_sure = {"fillOpacity": alt.condition("datum.sure", alt.value(1), alt.value(0))}
    figures = []
    for i, effect in enumerate(scales.effects):
        rows, missing = list[dict[str, Any]](), []
        for scale, each in zip(scales.each, effect.differences):
            at, line = (scale.tokens, scale.params) if is_over_tokens else (scale.params, scale.tokens)
            known = Estimate(mean=None) if each is None else each
            row = {"name": names[line], "x": float(at), "seeds": scale.seeds, "sure": sign(known) != 0}
            rows.append(row | charts.ends_of(known))
            if each is None:
                missing.append(f"{scales.sizes[scale.params]}, {scales.lengths[scale.tokens]}")
        rows.sort(key=lambda row: row["x"])
        layers = alt.layer(
            charts.line_at(0, "y"),
            plot.lines(rows, strokeWidth=1.3),
            plot.bars(rows),
            plot.points(rows, "shape", fill=CARD, stroke=None),
            plot.points(rows, "fill", "shape").encode(**is_sure),
            plot.points(rows, "stroke", "shape", fill=None, strokeWidth=1.5),
        )
        title = clean(effect.name) + (f" (not at {'; '.join(missing)} tokens)" if missing else "")
        pair = f"{shorten(effect.name, 40)} minus that of {shorten(scales.baseline, 40)}"
        label = f"Held-out loss of {pair}, {words(effect)}: {described(effect, scales)}."
        figures.append(Figure(f"effects-{i}", title, label, layers, looks, height=220, is_small=True))
    return figures


def effects_record(scales: Scales, out: Path) -> Effects:
    """Return the record from which the page in `out` can be made anew."""
    comparisons, command = made_anew([scale.folder for scale in scales.each], out)
    sentence = "\n".join(sentences(scales))
    return Effects(command=command, comparisons=comparisons, sentence=sentence, changes=scales.changes)


def effect_table(scales: Scales) -> Table:
    """Return the difference of every variant at every scale, with its interval, and what they say together."""
    rows = []
    for effect in scales.effects:
        cells = [_cell(each, 4, True, "*" if each and sign(each) else "") for each in effect.differences]
        rows.append([clean(effect.name), *cells, words(effect)])
    caption = (
        f"Held-out loss minus that of {clean(scales.baseline)} in nats, with its {percentage(scales.confidence)} "
        "interval; *: it excludes 0, with three seeds or more"
    )
    return Table(caption, ["Variant", *_titles(scales), SIGN], rows, words={SIGN})


def change_table(scales: Scales) -> Table | None:
    """Return the change of every effect between scales, with its interval; None where no two have a variant."""
    cells = dict[str, dict[str, str]]()
    for each in scales.changes:
        title = f"{scales.title(each)}\n{'paired' if each.change.per_seed else 'independent'}"
        cells.setdefault(title, {})[each.variant] = _cell(each.change, 4, True, "*" * abs(side(each.change)))
    names = dict.fromkeys(each.variant for each in scales.changes)
    rows = [[clean(name), *(own.get(name, MISSING) for own in cells.values())] for name in names]
    level = f"with its {percentage(scales.confidence)} interval; *: it excludes 0"
    caption = f"Change of the difference to {clean(scales.baseline)} in nats, {level}"
    return Table(caption, ["Variant", *cells], rows) if rows else None


def _ratio_table(caption: str, scales: Scales, ratios: Mapping[str, Sequence[Estimate | None]]) -> Table | None:
    """Return the ratios of every variant at every scale; None without any."""
    if not any(each for own in ratios.values() for each in own):
        return None
    rows = [[clean(name), *(_cell(each, 3) for each in own)] for name, own in ratios.items()]
    return Table(caption, ["Variant", *_titles(scales)], rows)


def _titles(scales: Scales) -> list[str]:
    return [
        f"{scales.sizes[scale.params]} parameters\n{scales.lengths[scale.tokens]} tokens\n{scale.seeds}"
        for scale in scales.each
    ]


def _cell(estimate: Estimate | None, n_decimals: int, is_signed: bool = False, mark: str = "") -> str:
    """Return a mean with its mark, and below it the interval."""
    if estimate is None:
        return MISSING
    mean, ends = (signed if is_signed else fixed)(estimate.mean, n_decimals), interval(estimate, n_decimals, is_signed)
    return mean + mark + (f"\n{ends}" if ends else "")


def _equal_loss(variant: Variant | None) -> EqualLoss | None:
    """Return the needs of a variant for the held-out loss of the baseline; None if not measured."""
    return variant and variant.at_equal_loss.get("val_loss")


def csv_text(scales: Scales) -> str:
    """Return a row for each variant at each scale, at full precision; one without numbers for a variant it lacks."""
    rows: list[dict[str, object]] = []
    for effect in scales.effects:
        measured = zip(scales.each, effect.variants, effect.differences, worth(effect, scales))
        for scale, variant, difference, by_slope in measured:
            needed = _equal_loss(variant)
            rows.append(
                {
                    "variant": effect.name,
                    "comparison": str(scale.folder),
                    "baseline": scales.baseline,
                    "params": scale.params,
                    "tokens": scale.tokens,
                    "n_seeds": len(scale.comparison.seeds),
                    **csv_estimate("difference", difference),
                    **csv_estimate("tokens_at_equal_loss", needed and needed.tokens_ratio),
                    **csv_estimate("training_flops_at_equal_loss", needed and needed.training_flops_ratio),
                    **csv_estimate("tokens_by_slope", by_slope),
                    "sign": words(effect),
                }
            )
    return csv_rows(rows[0], (row.values() for row in rows))


def latex_text(scales: Scales) -> str:
    """Return the table of a paper."""
    table = effect_table(scales)
    return table.latex(f"{table.caption}.")
