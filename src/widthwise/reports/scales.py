"""Comparisons of the same variants at several sizes and lengths of training, read and checked; and what they say."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

from widthwise.config_io import UserError
from widthwise.records.estimate import FEWEST_SEEDS, TIE_MARGIN, Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.record import finite
from widthwise.reports.formats import clean, counted, fixed, percentage, sequence, si, signed, tick
from widthwise.reports.tables import text_key


@dataclass(frozen=True)
class Scale:
    """A comparison, as the scale at which the effects of its variants were measured."""

    folder: Path
    comparison: Outcome
    params: int
    """All parameters of the baseline."""
    tokens: int
    """Tokens that the baseline was trained on."""

    @property
    def names(self) -> list[str]:
        """The variants that are compared with the baseline."""
        return [each.name for each in self.comparison.variants if each.difference is not None]

    def variant(self, name: str) -> Variant | None:
        """The one of that name; None if it is not compared here."""
        found = (each for each in self.comparison.variants if each.name == name and each.difference is not None)
        return next(found, None)


@dataclass(frozen=True)
class Effect:
    """The effect of a variant at every scale."""

    name: str
    variants: Sequence[Variant | None]
    """One for each scale; None where the comparison lacks it."""

    @property
    def differences(self) -> list[Estimate | None]:
        """Held-out loss minus the baseline's at each scale."""
        return [None if each is None else each.difference for each in self.variants]

    @property
    def measured(self) -> list[Estimate]:
        """The differences that there are."""
        return [each for each in self.differences if each is not None]


@dataclass(frozen=True)
class Scales:
    """Comparisons with one baseline, from small to large."""

    each: Sequence[Scale]

    @property
    def baseline(self) -> str:
        return str(self.each[0].comparison.baseline)

    @property
    def confidence(self) -> float:
        return self.each[0].comparison.confidence

    @cached_property
    def effects(self) -> list[Effect]:
        """One for each variant beside the baseline that any comparison has, in the order in which they first appear."""
        names = dict.fromkeys(name for scale in self.each for name in scale.names)
        return [Effect(name, [scale.variant(name) for scale in self.each]) for name in names]

    @cached_property
    def sizes(self) -> dict[int, str]:
        """Parameters -> as they are called, ascending."""
        return told_apart([scale.params for scale in self.each])

    @cached_property
    def lengths(self) -> dict[int, str]:
        """Tokens -> as they are called, ascending."""
        return told_apart([scale.tokens for scale in self.each])

    def name(self, scale: Scale) -> str:
        """`658k parameters and 5.24M tokens`."""
        return f"{self.sizes[scale.params]} parameters and {self.lengths[scale.tokens]} tokens"


def told_apart(values: Sequence[int]) -> dict[int, str]:
    """Each with as few digits as tell it apart from the others, ascending."""
    distinct = sorted(set(values))
    ways: tuple[Callable[[float], str], ...] = (si, tick, "{:,.0f}".format)
    named = ([way(value) for value in distinct] for way in ways)
    return dict(zip(distinct, next(names for names in named if len(set(names)) == len(distinct))))


def read_scales(folders: Sequence[Path]) -> Scales:
    """Reads `outcome.json` of each folder; their runs are not needed.

    Raises UserError where one is broken or does not say its tokens, where baselines or confidence levels differ, where
    two have the same size and tokens, and for one that has no variant in common with any other.
    """
    scales = sorted(map(_scale, folders), key=lambda scale: (scale.params, scale.tokens))
    for scale in scales[1:]:
        _check_alike(scales[0], scale)
    for one, other in pairwise(scales):
        if (one.params, one.tokens) == (other.params, other.tokens):
            raise UserError(
                f"{other.folder}: has the size and tokens of {one.folder} ({one.params:,} parameters, {one.tokens:,} "
                "tokens); effects are shown over different ones"
            )
    for scale in scales:
        others = {name for other in scales if other is not scale for name in other.names}
        if others.isdisjoint(scale.names):
            own = ", ".join(map(clean, scale.names)) or "none"
            raise UserError(
                f"{scale.folder}: has no variant of the others; its own: {own}, theirs: "
                f"{', '.join(map(clean, sorted(others))) or 'none'}"
            )
    return Scales(scales)


def _scale(folder: Path) -> Scale:
    comparison = Outcome.read(folder)
    if comparison.kind != "comparison":
        raise UserError(f"{folder}: holds a {comparison.kind}; effects are those of comparisons")
    baseline = comparison.baseline_variant
    tokens = None if baseline is None else baseline.measured_over_seeds("tokens")
    if baseline is None or tokens is None or tokens.mean is None:
        raise UserError(
            f"{folder / Outcome.file_name}: does not say how many tokens {clean(str(comparison.baseline))} was trained "
            "on, as files of older versions do not; the command in it writes it anew from its runs"
        )
    return Scale(folder, comparison, round(baseline.cost.params["total"]), round(tokens.mean))


def _check_alike(first: Scale, other: Scale) -> None:
    own, expected = other.comparison, first.comparison
    if own.baseline != expected.baseline:
        raise UserError(
            f"{other.folder}: its baseline is {clean(str(own.baseline))!r}, that of {first.folder} is "
            f"{clean(str(expected.baseline))!r}; effects take one baseline"
        )
    if own.confidence != expected.confidence:
        raise UserError(
            f"{other.folder}: its intervals are of {percentage(own.confidence)}, those of {first.folder} of "
            f"{percentage(expected.confidence)}"
        )


def seed_words(scale: Scale) -> str:
    """`3 seeds`."""
    return counted(len(scale.comparison.seeds), "seed")


Signs = Literal["same sign everywhere", "changes sign", "cannot tell"]


def sign(difference: Estimate) -> int:
    """-1 or 1 where all of its interval lies below or above 0; otherwise 0.

    0 also with fewer seeds than a verdict takes, whatever the interval.
    """
    if difference.low is None or difference.high is None or len(difference.per_seed) < FEWEST_SEEDS:
        return 0
    return (difference.low > 0) - (difference.high < 0)


def signs(differences: Sequence[Estimate]) -> Signs:
    """Judge whether an effect changes sign: only if two intervals exclude 0 on different sides.

    It has the same sign everywhere if there are two differences or more and every interval excludes 0 on one side.
    differences: those that were measured.
    """
    found = {sign(each) for each in differences}
    if {-1, 1} <= found:
        return "changes sign"
    if len(differences) > 1 and 0 not in found:
        return "same sign everywhere"
    return "cannot tell"


def sentences(scales: Scales) -> Iterator[str]:
    """One for each variant."""
    for effect in scales.effects:
        told = {"changes sign": _changes, "same sign everywhere": _stays, "cannot tell": _cannot_tell}
        yield told[signs(effect.measured)](effect, scales)


def words(effect: Effect) -> str:
    """Return the sign in words; "everywhere" only of a variant that no comparison lacks."""
    found = signs(effect.measured)
    if found == "same sign everywhere" and None in effect.differences:
        return "same sign wherever it was measured"
    return found


def _changes(effect: Effect, scales: Scales) -> str:
    lower, higher = (
        sequence(
            [
                f"{scales.name(scale)} ({signed(difference.mean, 4)})"
                for scale, difference in zip(scales.each, effect.differences)
                if difference is not None and sign(difference) == side
            ]
        )
        for side in (-1, 1)
    )
    return (
        f"{clean(effect.name)} changes sign: its loss is lower than that of {clean(scales.baseline)} at {lower}, and "
        f"higher at {higher}."
    )


def _stays(effect: Effect, scales: Scales) -> str:
    measured = effect.measured
    side = "lower" if sign(measured[0]) < 0 else "higher"
    sizes = sorted(abs(finite(each.mean)) for each in measured)
    lacking = "" if len(measured) == len(scales.each) else f" that have it, of {len(scales.each)},"
    return (
        f"{clean(effect.name)}: {words(effect)}. Its loss is {side} than that of {clean(scales.baseline)} in all "
        f"{len(measured)} comparisons{lacking} by {fixed(sizes[0], 4)} to {fixed(sizes[-1], 4)} nats."
    )


def _cannot_tell(effect: Effect, _: Scales) -> str:
    measured, name = effect.measured, clean(effect.name)
    if len(measured) == 1:
        return f"{name}: cannot tell, as only one comparison has it."
    surely = [sign(each) for each in measured if sign(each)]
    side = f", with a {'lower' if surely[0] < 0 else 'higher'} loss" if surely else ""
    n_few = sum(len(each.per_seed) < FEWEST_SEEDS for each in measured)
    few = f"; {n_few} of fewer than {FEWEST_SEEDS} seeds count for nothing" if n_few else ""
    verb = "excludes" if len(surely) < 2 else "exclude"
    return f"{name}: cannot tell. {len(surely) or 'None'} of its {len(measured)} intervals {verb} 0{side}{few}."


LARGEST_EXPONENT = 700.0
"""Beyond 709 a power of e is more than a float can hold."""


def worth(effect: Effect, scales: Scales) -> list[Estimate | None]:
    """For each scale what the effect is worth in tokens there, as `tokens_ratio`; None without a difference or a slope.

    Each length of training has a schedule of its own, so that losses are compared where the learning rate has fallen;
    but two lengths make a line of what is a curve.
    """
    pairs = zip(effect.differences, slopes(scales))
    return [None if each is None or slope is None else tokens_ratio(each, slope) for each, slope in pairs]


def tokens_ratio(difference: Estimate, slope: float) -> Estimate:
    """A variant's tokens over those with which the baseline would have its loss: exp(difference / slope).

    difference: held-out loss minus the baseline's, in nats; slope: as `slopes` gives it, taken as exact.
    """

    def ratio(value: float | None) -> float | None:
        return None if value is None else math.exp(min(value / slope, LARGEST_EXPONENT))

    return Estimate(
        mean=ratio(difference.mean),
        low=ratio(difference.low),
        high=ratio(difference.high),
        per_seed=[ratio(value) for value in difference.per_seed],
    )


def slopes(scales: Scales) -> list[float | None]:
    """For each scale the nats by which the baseline's loss falls while its tokens grow by a factor of e.

    Between this length and the next shorter one of the same size, or else the next longer one. None where there is no
    other length on the same text, or the two losses are as good as equal.
    """
    return [_slope(scale, _neighbour(scale, scales)) for scale in scales.each]


def _neighbour(scale: Scale, scales: Scales) -> Scale | None:
    text = text_key(scale.comparison.environment)
    others = [
        other
        for other in scales.each
        if other.params == scale.params and text_key(other.comparison.environment) == text
    ]
    place = others.index(scale)
    return others[place - 1] if place else next(iter(others[1:]), None)


def _slope(scale: Scale, other: Scale | None) -> float | None:
    if other is None:
        return None
    short, long = sorted((scale, other), key=lambda each: each.tokens)
    fall = _loss(short) - _loss(long)
    return fall / math.log(long.tokens / short.tokens) if fall > TIE_MARGIN else None


def _loss(scale: Scale) -> float:
    baseline = scale.comparison.baseline_variant
    return finite(baseline and baseline.val_loss.mean)
