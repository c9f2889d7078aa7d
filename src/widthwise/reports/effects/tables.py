"""The tables of effects: variants by scales, for the page and for LaTeX, and what the comparisons are."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from widthwise.records.comparison import Variant
from widthwise.records.estimate import EqualLoss, Estimate
from widthwise.records.quantities import TITLES
from widthwise.reports.effects.scales import Scale, Scales, seed_words
from widthwise.reports.effects.sentences import words
from widthwise.reports.effects.signs import sign
from widthwise.reports.effects.worth import worth
from widthwise.reports.page.data import text_words
from widthwise.reports.page.formats import MISSING, clean, fixed, interval, percentage, signed
from widthwise.reports.page.table import Table

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
    """What differences are worth in tokens (`worth`); None where no size was trained for two lengths."""
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
    """What a variant needs for the held-out loss of the baseline; None if it was not measured."""
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
