"""Comparisons of the same variants at several sizes and lengths of training, read and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.records.comparison import Comparison, Variant
from widthwise.records.estimate import Estimate
from widthwise.reports.page.formats import clean, counted, percentage, si, tick


@dataclass(frozen=True)
class Scale:
    """A comparison, as the scale at which the effects of its variants were measured."""

    folder: Path
    comparison: Comparison
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
    """What a variant changes, at every scale."""

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
        return self.each[0].comparison.baseline

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
    """Reads `comparison.json` of each folder; their runs are not needed.

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
    comparison = Comparison.read(folder)
    baseline = comparison.baseline_variant
    tokens = baseline.measured_over_seeds("tokens")
    if tokens is None or tokens.mean is None:
        raise UserError(
            f"{folder / Comparison.file_name}: does not say how many tokens {clean(comparison.baseline)} was trained "
            "on, as files of older versions do not; the command in it writes it anew from its runs"
        )
    return Scale(folder, comparison, round(baseline.cost.params["total"]), round(tokens.mean))


def _check_alike(first: Scale, other: Scale) -> None:
    own, expected = other.comparison, first.comparison
    if own.baseline != expected.baseline:
        raise UserError(
            f"{other.folder}: its baseline is {clean(own.baseline)!r}, that of {first.folder} is "
            f"{clean(expected.baseline)!r}; effects take one baseline"
        )
    if own.confidence != expected.confidence:
        raise UserError(
            f"{other.folder}: its intervals are of {percentage(own.confidence)}, those of {first.folder} of "
            f"{percentage(expected.confidence)}"
        )


def seed_words(scale: Scale) -> str:
    """`3 seeds`."""
    return counted(len(scale.comparison.seeds), "seed")
