"""Comparisons of the same variants at several sizes and lengths of training, read and checked; and what they say."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import Literal

from widthwise.config_io import UserError
from widthwise.experiments.statistics import change_between
from widthwise.records.estimate import FEWEST_SEEDS, TIE_MARGIN, EffectChange, Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.record import finite
from widthwise.reports.formats import clean, counted, percentage, si, tick, with_interval
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

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """Those that are compared with the baseline, by name."""
        return {each.name: each for each in self.comparison.variants if each.difference is not None}

    @property
    def draws(self) -> tuple[Sequence[int], str]:
        """Its seeds and their text; equal ones are paired."""
        return self.comparison.seeds, text_key(self.comparison.environment)

    @property
    def seeds(self) -> str:
        """Their number in words: `3 seeds`."""
        return counted(len(self.comparison.seeds), "seed")


@dataclass(frozen=True)
class Effect:
    """The effect of a variant at every scale."""

    name: str
    variants: Sequence[Variant | None]
    """One for each scale; None where the comparison lacks it."""

    @property
    def differences(self) -> list[Estimate | None]:
        """Held-out loss minus the baseline's at each scale."""
        return [each and each.difference for each in self.variants]

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
        names = dict.fromkeys(name for scale in self.each for name in scale.variants)
        return [Effect(name, [scale.variants.get(name) for scale in self.each]) for name in names]

    @cached_property
    def sizes(self) -> dict[int, str]:
        """Parameters -> their name, ascending."""
        return _distinct_names([scale.params for scale in self.each])

    @cached_property
    def lengths(self) -> dict[int, str]:
        """Tokens -> their name, ascending."""
        return _distinct_names([scale.tokens for scale in self.each])

    @cached_property
    def changes(self) -> list[EffectChange]:
        """Those between any two scales of one size or of as many tokens; without any, from each scale to the next."""
        pairs = list(combinations(enumerate(self.each), 2))
        alike = [(a, b) for a, b in pairs if a[1].params == b[1].params or a[1].tokens == b[1].tokens]
        found = []
        for (i, before), (j, after) in alike or pairwise(enumerate(self.each)):
            are_paired = before.draws == after.draws
            for effect in self.effects:
                one, other = effect.differences[i], effect.differences[j]
                if one is not None and other is not None:
                    change = change_between(one, other, are_paired, self.confidence)
                    found.append(EffectChange(variant=effect.name, before=i, after=j, change=change))
        return found

    def name(self, scale: Scale) -> str:
        """Return a name such as `658k parameters and 5.24M tokens`."""
        return f"{self.sizes[scale.params]} parameters and {self.lengths[scale.tokens]} tokens"

    def title(self, change: EffectChange) -> str:
        """Return between what it is, a line each: `1.05M to 6.29M parameters`, `983k tokens`."""
        ends = (self.each[change.before], self.each[change.after])
        sizes = dict.fromkeys(self.sizes[each.params] for each in ends)
        lengths = dict.fromkeys(self.lengths[each.tokens] for each in ends)
        return f"{' to '.join(sizes)} parameters\n{' to '.join(lengths)} tokens"


def _distinct_names(values: Sequence[int]) -> dict[int, str]:
    """Return each number, ascending, with as few digits as distinguish it from the others."""
    distinct = sorted(set(values))
    formats: tuple[Callable[[float], str], ...] = (si, tick, "{:,.0f}".format)
    named = (list(map(form, distinct)) for form in formats)
    return dict(zip(distinct, next(names for names in named if len(set(names)) == len(distinct))))


def read_scales(folders: Sequence[Path]) -> Scales:
    """Read `outcome.json` of each folder; their runs are not needed.

    Raises UserError where one is broken or lacks its number of tokens, where baselines or confidence levels differ,
    where two have the same size and tokens, and for one that has no variant in common with any other.
    """
    scales = []
    for folder in folders:
        comparison = Outcome.read(folder)
        if comparison.kind != "comparison":
            raise UserError(f"{folder}: holds a {comparison.kind}; effects are those of comparisons")
        baseline = comparison.baseline_variant
        tokens = None if baseline is None else baseline.measured_over_seeds("tokens")
        if baseline is None or tokens is None or tokens.mean is None:
            raise UserError(
                f"{folder / Outcome.file_name}: does not say how many tokens {clean(str(comparison.baseline))} was "
                "trained on, as files of older versions do not; the command in it writes it anew from its runs"
            )
        scales.append(Scale(folder, comparison, round(baseline.cost.params["total"]), round(tokens.mean)))
    scales.sort(key=lambda scale: (scale.params, scale.tokens))
    first, of_first = scales[0].folder, scales[0].comparison
    for scale in scales:
        own = scale.comparison
        if own.baseline != of_first.baseline:
            names = f"{clean(str(own.baseline))!r}, that of {first} is {clean(str(of_first.baseline))!r}"
            raise UserError(f"{scale.folder}: its baseline is {names}; effects take one baseline")
        if own.confidence != of_first.confidence:
            levels = f"{percentage(own.confidence)}, those of {first} of {percentage(of_first.confidence)}"
            raise UserError(f"{scale.folder}: its intervals are of {levels}")
    for one, other in pairwise(scales):
        if (one.params, one.tokens) == (other.params, other.tokens):
            raise UserError(
                f"{other.folder}: has the size and tokens of {one.folder} ({one.params:,} parameters, {one.tokens:,} "
                "tokens); effects are shown over different ones"
            )
    for scale in scales:
        others = {name for other in scales if other is not scale for name in other.variants}
        if others.isdisjoint(scale.variants):
            own, theirs = (", ".join(map(clean, names)) or "none" for names in (scale.variants, sorted(others)))
            raise UserError(f"{scale.folder}: has no variant of the others; its own: {own}, theirs: {theirs}")
    return Scales(scales)


Signs = Literal["same sign everywhere", "changes sign", "cannot tell"]


def sign(difference: Estimate) -> int:
    """Return -1 or 1 where all of its interval lies below or above 0; otherwise 0.

    0 also with fewer seeds than a verdict takes, whatever the interval.
    """
    return 0 if len(difference.per_seed) < FEWEST_SEEDS else side(difference)


def side(estimate: Estimate, level: float = 0.0) -> int:
    """Return -1 or 1 where all of its interval lies below or above a level; otherwise 0."""
    if estimate.low is None or estimate.high is None:
        return 0
    return (estimate.low > level) - (estimate.high < level)


def signs(differences: Sequence[Estimate]) -> Signs:
    """Judge whether an effect changes sign: only if two intervals exclude 0 on different sides.

    It has the same sign everywhere if there are two differences or more and every interval excludes 0 on one side.
    differences: those that were measured.
    """
    found = {sign(each) for each in differences}
    if {-1, 1} <= found:
        return "changes sign"
    return "same sign everywhere" if len(differences) > 1 and 0 not in found else "cannot tell"


def words(effect: Effect) -> str:
    """Return the sign in words; "everywhere" only of a variant that no comparison lacks."""
    found = signs(effect.measured)
    if found == "same sign everywhere" and None in effect.differences:
        return "same sign wherever it was measured"
    return found


def sentences(scales: Scales) -> Iterator[str]:
    """Yield a sentence for each variant."""
    for effect in scales.effects:
        difference = f"Its loss minus that of {clean(scales.baseline)} is {described(effect, scales)}."
        yield f"{clean(effect.name)}: {words(effect)}. {difference}"


def described(effect: Effect, scales: Scales) -> str:
    """Return the difference and its interval at every scale."""
    pairs = zip(scales.each, effect.differences)
    parts = [f"{with_interval(each, 4) if each else 'not measured'} at {scales.name(scale)}" for scale, each in pairs]
    return "; ".join(parts)


LARGEST_EXPONENT = 700.0
"""Beyond 709 a power of e is more than a float can hold."""


def worth(effect: Effect, scales: Scales) -> list[Estimate | None]:
    """Return for each scale what the effect is worth in tokens there, as `tokens_ratio`; None without a difference or a
    slope.

    Each length of training has a schedule of its own, so that losses are compared where the learning rate has fallen;
    but two lengths make a line of what is a curve.
    """
    pairs = zip(effect.differences, slopes(scales))
    return [None if each is None or slope is None else tokens_ratio(each, slope) for each, slope in pairs]


def tokens_ratio(difference: Estimate, slope: float) -> Estimate:
    """Return a variant's tokens over those with which the baseline would have its loss: exp(difference / slope).

    difference: held-out loss minus the baseline's, in nats; slope: as `slopes` gives it, taken as exact.
    """
    values = (difference.mean, difference.low, difference.high, *difference.per_seed)
    ratios = (None if each is None else math.exp(min(each / slope, LARGEST_EXPONENT)) for each in values)
    mean, low, high, *per_seed = ratios
    return Estimate(mean=mean, low=low, high=high, per_seed=per_seed)


def slopes(scales: Scales) -> list[float | None]:
    """Return for each scale the nats by which the baseline's loss falls while its tokens grow by a factor of e.

    Between this length and the next shorter one of the same size, or else the next longer one. None where there is no
    other length on the same text, or the two losses are as good as equal.
    """
    alike: dict[tuple[int, str], list[Scale]] = {}
    for scale in scales.each:
        alike.setdefault((scale.params, text_key(scale.comparison.environment)), []).append(scale)
    found = {}
    for lengths in alike.values():
        for short, long in pairwise(lengths):
            baselines = (each.comparison.baseline_variant for each in (short, long))
            losses = (finite(each and each.val_loss.mean) for each in baselines)
            fall = next(losses) - next(losses)
            slope = fall / math.log(long.tokens / short.tokens) if fall > TIE_MARGIN else None
            found |= {long.folder: slope, short.folder: found.get(short.folder, slope)}
    return [found.get(scale.folder) for scale in scales.each]
