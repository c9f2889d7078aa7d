"""Results of comparisons and sweeps, in words."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from widthwise.experiments.experiment import Experiment
from widthwise.experiments.outcome import SeedRuns, windows
from widthwise.experiments.statistics import paired_difference, verdict
from widthwise.records.estimate import CONFIDENCE, NO_VERDICT, TIE_MARGIN, EqualLoss, Estimate, Validations, Verdict
from widthwise.records.outcome import OpenPoint, Trend, Variant
from widthwise.records.quantities import OF_HELD_OUT, QUANTITY, TITLES
from widthwise.records.record import finite

PHRASES = {
    "better": "reaches a held-out loss {size:.4f} nats below {baseline}",
    "worse": "ends at a held-out loss {size:.4f} nats above {baseline}",
    "tie": "ties with {baseline}: its held-out loss differs by {mean:+.4f} nats",
    "cannot tell": "differs from {baseline} by {mean:+.4f} nats of held-out loss, but {n} cannot tell that from luck",
    "no verdict": f"differs from {{baseline}} by {{mean:+.4f}} nats of held-out loss: {NO_VERDICT}",
}

MOST_SENTENCES = 2
"""Largest number of variants that get a sentence each; more are grouped by verdict."""
VERDICT_PHRASES: Mapping[Verdict, str] = {
    "better": "{count} {has} a lower held-out loss than {baseline}",
    "worse": "{count} {has} a higher held-out loss than {baseline}",
    "tie": f"{{count}} {{has}} the held-out loss of {{baseline}} to within {TIE_MARGIN} nats",
    "cannot tell": "{count} {has} a held-out loss that {n} cannot tell from that of {baseline}",
    "no verdict": f"{NO_VERDICT[0].upper()}{NO_VERDICT[1:]} on {{count}} beside {{baseline}}",
}
"""Statement on the variants of a verdict, in order."""


def comparison_sentences(variants: Sequence[Variant], baseline: str) -> Iterator[str]:
    """Yield the differences to the baseline: a sentence for each of a few variants, or else for each verdict.

    The sentence of a verdict names its variants with their differences and intervals, the lowest loss first.
    """
    compared = [(variant, variant.difference) for variant in variants if variant.difference is not None]
    if len(compared) <= MOST_SENTENCES:
        yield from (difference_sentence(*each, baseline) for each in compared)
        return
    for found, phrase in VERDICT_PHRASES.items():
        group = [each for each in compared if (each[0].verdict or "cannot tell") == found]
        if group:
            count, has = f"{len(group)} of {len(compared)} variants", "has" if len(group) == 1 else "have"
            n = seeds(max(len(difference.per_seed) for _, difference in group))
            yield f"{phrase.format(count=count, has=has, baseline=baseline, n=n)}: {_differences(group)}."


def _differences(group: Sequence[tuple[Variant, Estimate]]) -> str:
    """Return every variant with its difference and interval; the first one names the unit and the confidence."""
    (first, difference), *others = sorted(group, key=lambda each: (each[1].mean is None, each[1].mean))
    found = [f"{first.name} ({finite(difference.mean):+.4f} nats, {interval(difference)})"]
    for variant, difference in others:
        numbers = filter(None, [f"{finite(difference.mean):+.4f}", ends_of(difference)])
        found.append(f"{variant.name} ({', '.join(numbers)})")
    return ", ".join(found)


def difference_sentence(variant: Variant, difference: Estimate, baseline: str) -> str:
    """Return the difference of a variant to the baseline with its interval and the ratios of costs; the differences
    of further held-out losses, and tokens and FLOPs to equal loss."""
    phrase = difference_phrase(difference, variant.verdict or "cannot tell", baseline)
    titles = {"params": "parameters", "training_flops": "training FLOPs", "kv_bytes": "KV cache"}
    found = [
        f"{finite(variant.ratio[key]):.3f} of the {title}" for key, title in titles.items() if key in variant.ratio
    ]
    sentences = [f"{variant.name} {phrase} ({interval(difference)}), at {', '.join(found[:-1])} and {found[-1]}."]
    for name, loss in OF_HELD_OUT.items():
        if further := variant.differences.get(name):
            sentences.append(f"Its {loss.title} differs by {finite(further.mean):+.4f} nats ({interval(further)}).")
        if equal := variant.at_equal_loss.get(name):
            sentences.append(equal_loss_sentence(loss.title, equal, baseline))
    return " ".join(sentences)


def difference_phrase(difference: Estimate, found: Verdict, baseline: str) -> str:
    mean, n = finite(difference.mean), seeds(len(difference.per_seed))
    return PHRASES[found].format(size=abs(mean), mean=mean, baseline=baseline, n=n)


def equal_loss_sentence(loss: str, found: EqualLoss, baseline: str) -> str:
    """Return the tokens and FLOPs of a variant, `It`, relative to the baseline at equal loss. loss: its title."""
    n_seeds = len(found.tokens_ratio.per_seed)
    reached = f"It reaches {baseline}'s final {loss}"
    if found.tokens_ratio.mean is None:
        if 0 < found.n_reached < n_seeds:
            return (
                f"With some seed the {loss} was passed before the first validation, so the number of tokens is unknown."
            )
        early = reached if found.n_reached else f"{baseline} reaches the {loss} it ends with"
        return f"{early} before the first validation, so the number of tokens is unknown."
    needs = " and ".join(
        f"{finite(ratio.mean):.3f} times the {title} ({interval(ratio, n_decimals=3, sign='')})"
        for title, ratio in (("tokens", found.tokens_ratio), ("training FLOPs", found.training_flops_ratio))
    )
    if found.n_reached == n_seeds:
        return f"{reached} with {needs}."
    if found.n_reached == 0:
        return f"It does not reach {baseline}'s final {loss}: for the one it ends with, it takes {needs}."
    return (
        f"{reached} with {found.n_reached} of {n_seeds} seeds; for the higher of the two final losses it takes {needs}."
    )


def too_few_validations(validations: Validations | None) -> list[str]:
    """Return a sentence if runs were validated too rarely for statements on equal loss; none otherwise."""
    if validations is None or validations.suffice:
        return []
    n, needed = validations.n_fewest, validations.n_needed
    return [f"Tokens to equal loss omitted: needs {needed} validations of every run (train.validate_every), got {n}."]


def interval(estimate: Estimate, confidence: float = CONFIDENCE, n_decimals: int = 4, sign: str = "+") -> str:
    """Return "95% interval -0.1 to +0.1". sign: "" for a number that is not a difference."""
    ends = ends_of(estimate, n_decimals, sign)
    return f"{100 * confidence:.4g}% interval {ends}" if ends else "one seed gives no interval"


def ends_of(estimate: Estimate, n_decimals: int = 4, sign: str = "+") -> str:
    """Return "-0.1 to +0.1"; "" without an interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:{sign}.{n_decimals}f} to {estimate.high:{sign}.{n_decimals}f}"


def seeds(n: int) -> str:
    """Return "one seed", "two seeds", "3 seeds"."""
    return {1: "one seed", 2: "two seeds"}.get(n, f"{n} seeds")


TREND_PHRASES = {
    "better": "lowers the {loss} by {size:.4f} nats",
    "worse": "raises the {loss} by {size:.4f} nats",
    "tie": "changes the {loss} by {mean:+.4f} nats, and the whole range surely by less than {margin}",
    "cannot tell": "changes the {loss} by {mean:+.4f} nats, but {n} cannot tell that from luck",
    "no verdict": f"changes the {{loss}} by {{mean:+.4f}} nats: {NO_VERDICT}",
}


def trend_sentence(trend: Trend) -> str:
    slope, values = finite(trend.slope.mean), [point.value for point in trend.points]
    phrase = TREND_PHRASES[trend.verdict].format(
        loss=QUANTITY[trend.of].title,
        size=abs(slope),
        mean=slope,
        margin=TIE_MARGIN,
        n=seeds(len(trend.slope.per_seed)),
    )
    farthest = max(trend.points, key=lambda point: abs(finite(point.residual)))
    fit = "all means are equal"
    if trend.r_squared is not None:
        fit = f"R² is {trend.r_squared:.4f}, and {farthest.variant} lies {farthest.residual:+.4f} nats off the line"
    return (
        f"Each doubling of {trend.over}, from {min(values):,.7g} to {max(values):,.7g}, {phrase} "
        f"({interval(trend.slope)}); {fit}."
    )


SELECTED_PHRASES = {
    "better": "still stands",
    "worse": "still stands",
    "no verdict": f"has {NO_VERDICT}",
}
"""Verdict under the wider interval -> statement on a selected difference; any other: "can be luck"."""


class SweepSentences:
    """Sentences on the points of a sweep that have finished so far."""

    def __init__(self, plan: Experiment, trained: Mapping[str, SeedRuns], validations: Validations | None):
        """trained: the finished points."""
        self._plan, self._trained, self._validations = plan, trained, validations

    def all(self, points: Sequence[Variant | OpenPoint], n_done: int) -> Iterator[str]:
        """Yield all sentences. n_done: points that have finished or failed, including those that were chosen again."""
        baseline = self._plan.baseline
        finished = [point for point in points if isinstance(point, Variant)]
        ranked = sorted(
            (point for point in finished if point.name != baseline), key=lambda point: finite(point.val_loss.mean)
        )
        if self._plan.baseline_group is not None and any(point.difference for point in finished):
            yield from self._against_group(finished)
        elif baseline in self._trained and ranked:
            yield from self._against_baseline(ranked, str(baseline))
        elif ranked:
            yield from self._without_baseline(ranked)
        if any(point.difference for point in finished):
            yield from too_few_validations(self._validations)
        failed = [point.name for point in points if point.state == "failed"]
        if failed:
            yield f"{len(failed)} of {self._plan.n_points} points failed: {', '.join(failed)}."
        if n_again := n_done - len(finished) - len(failed):
            yield f"{n_again} of {self._plan.n_points} points are what the search had chosen before, and count once."
        if n_open := self._plan.n_points - n_done:
            yield f"{n_open} of {self._plan.n_points} points have not finished."

    def _against_baseline(self, ranked: Sequence[Variant], baseline: str) -> Iterator[str]:
        best, n_candidates = ranked[0], len(ranked)
        if n_candidates > 1:
            yield f"Of {n_candidates} points{self._at_equal} {best.name} has the lowest held-out loss."
        if best.difference is not None:
            yield difference_sentence(best, best.difference, baseline)
        if n_candidates > 1:
            yield self._selection_note(best.name, baseline, n_candidates)
            found = [point.verdict or "cannot tell" for point in ranked]
            counts = ", ".join(f"{found.count(word)} {word}" for word in dict.fromkeys(found))
            yield f"Each for itself beside {baseline}: {counts}."
        yield from self._groups(ranked, baseline)

    def _against_group(self, finished: Sequence[Variant]) -> Iterator[str]:
        """Yield the differences of each group at every size, and then a sentence on every point; none was selected."""
        compared = [(point, point.difference) for point in finished if point.difference is not None]
        for group in dict.fromkeys(point.group for point, _ in compared):
            sizes = [
                f"{', '.join(map(str, point.values.values()))} {finite(difference.mean):+.4f} nats "
                f"({interval(difference)}), {point.verdict or 'cannot tell'}"
                for point, difference in compared
                if point.group == group
            ]
            yield f"{group} beside {self._plan.baseline_group}, size by size: {'; '.join(sizes)}."
        for point, difference in compared:
            yield difference_sentence(point, difference, str(self._plan.baseline_of(point.group, point.values)))

    def _groups(self, ranked: Sequence[Variant], baseline: str) -> Iterator[str]:
        """Yield sentences on whole groups of a grid, whose points no sampler has selected."""
        if self._plan.space is not None:
            return
        for group in filter(None, self._plan.axes or {}):
            names = [point.name for point in ranked if point.group == group]
            if len(names) > 1:
                mean = np.mean([self._windows(name) for name in names], axis=0)
                difference = paired_difference(mean, self._windows(baseline), CONFIDENCE)
                phrase = difference_phrase(difference, verdict(difference), baseline)
                yield f"On average over its {len(names)} points {group} {phrase} ({interval(difference)})."

    def _without_baseline(self, ranked: Sequence[Variant]) -> Iterator[str]:
        best, *others = ranked
        loss = finite(best.val_loss.mean)
        yield f"{best.name} has the lowest held-out loss of {len(ranked)} points{self._at_equal}, {loss:.4f} nats."
        if others:
            second = others[0].name
            difference = self._difference(best.name, second, CONFIDENCE)
            phrase = difference_phrase(difference, verdict(difference), second)
            yield f"Beside the next best it {phrase} ({interval(difference)})."
            yield self._selection_note(best.name, second, len(ranked))

    @property
    def _at_equal(self) -> str:
        """Phrase " at equal parameters"; "" if nothing is matched."""
        matched = self._plan.match
        return "" if matched == "none" else f" at equal {TITLES.get(matched, matched)}"

    def _difference(self, name: str, other: str, confidence: float) -> Estimate:
        return paired_difference(self._windows(name), self._windows(other), confidence)

    def _windows(self, name: str) -> np.ndarray:
        return windows(self._trained[name].results)

    def _selection_note(self, best: str, other: str, n_candidates: int) -> str:
        """Return a note that the best of many is partly the luckiest, with an interval for all at once (Bonferroni)."""
        confidence = 1 - (1 - CONFIDENCE) / n_candidates
        wide = self._difference(best, other, confidence)
        outcome = SELECTED_PHRASES.get(verdict(wide), "can be luck")
        return (
            f"As the best of {n_candidates} points looked at it looks better than it is; with an interval widened for "
            f"that many (Bonferroni), its difference to {other} {outcome} ({interval(wide, confidence)})."
        )
