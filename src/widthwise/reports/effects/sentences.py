"""The answer in words: which effects change sign."""

from collections.abc import Iterator

from widthwise.records.estimate import FEWEST_SEEDS
from widthwise.records.record import finite
from widthwise.reports.effects.scales import Effect, Scales
from widthwise.reports.effects.signs import sign, signs
from widthwise.reports.page.formats import clean, fixed, signed
from widthwise.reports.page.html import sequence


def sentences(scales: Scales) -> Iterator[str]:
    """One for each variant."""
    for effect in scales.effects:
        told = {"changes sign": _changes, "same sign everywhere": _stays, "cannot tell": _cannot_tell}
        yield told[signs(effect.measured)](effect, scales)


def words(effect: Effect) -> str:
    """What a table says of its sign; "everywhere" only of a variant that no comparison lacks."""
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
