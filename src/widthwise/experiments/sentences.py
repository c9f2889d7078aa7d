"""Results of comparisons and sweeps, in words."""

from collections.abc import Iterator, Mapping, Sequence

from widthwise.records.comparison import Variant
from widthwise.records.estimate import CONFIDENCE, NO_VERDICT, TIE_MARGIN, EqualLoss, Estimate, Validations, Verdict
from widthwise.records.quantities import OF_HELD_OUT
from widthwise.records.record import finite

PHRASES = {
    "better": "reaches a held-out loss {size:.4f} nats below {baseline}",
    "worse": "ends at a held-out loss {size:.4f} nats above {baseline}",
    "tie": "ties with {baseline}: its held-out loss differs by {mean:+.4f} nats",
    "cannot tell": "differs from {baseline} by {mean:+.4f} nats of held-out loss, but {n} cannot tell that from luck",
    "no verdict": f"differs from {{baseline}} by {{mean:+.4f}} nats of held-out loss: {NO_VERDICT}",
}

MOST_ALONE = 2
"""Variants beside a baseline that get a sentence each; more of them are told by their verdicts."""
GROUPS: Mapping[Verdict, str] = {
    "better": "{count} {has} a lower held-out loss than {baseline}",
    "worse": "{count} {has} a higher held-out loss than {baseline}",
    "tie": f"{{count}} {{has}} the held-out loss of {{baseline}} to within {TIE_MARGIN} nats",
    "cannot tell": "{count} {has} a held-out loss that {n} cannot tell from that of {baseline}",
    "no verdict": f"{NO_VERDICT[0].upper()}{NO_VERDICT[1:]} on {{count}} beside {{baseline}}",
}
"""What the variants of a verdict have in common, in the order in which it is said."""


def comparison_sentences(variants: Sequence[Variant], baseline: str) -> Iterator[str]:
    """How the variants differ from the baseline: a sentence for each of a few, for each verdict where they are more.

    The sentence of a verdict names its variants with their differences and intervals, the lowest loss first.
    """
    compared = [(variant, variant.difference) for variant in variants if variant.difference is not None]
    if len(compared) <= MOST_ALONE:
        yield from (difference_sentence(*each, baseline) for each in compared)
        return
    for verdict, phrase in GROUPS.items():
        group = [each for each in compared if (each[0].verdict or "cannot tell") == verdict]
        if group:
            count, has = f"{len(group)} of {len(compared)} variants", "has" if len(group) == 1 else "have"
            n = seeds(max(len(difference.per_seed) for _, difference in group))
            yield f"{phrase.format(count=count, has=has, baseline=baseline, n=n)}: {_differences(group)}."


def _differences(group: Sequence[tuple[Variant, Estimate]]) -> str:
    """Every variant with its difference and interval; with the first it is said what the numbers are."""
    (first, difference), *others = sorted(group, key=lambda each: (each[1].mean is None, each[1].mean))
    found = [f"{first.name} ({finite(difference.mean):+.4f} nats, {interval(difference)})"]
    for variant, difference in others:
        numbers = filter(None, [f"{finite(difference.mean):+.4f}", ends_of(difference)])
        found.append(f"{variant.name} ({', '.join(numbers)})")
    return ", ".join(found)


def difference_sentence(variant: Variant, difference: Estimate, baseline: str) -> str:
    """The difference of a variant to the baseline with its interval, and the ratios of costs; then, for every held-out
    loss, what is known of it: the difference of a further one, and what both need for the same loss."""
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
    """What a variant, `It`, needs beside the baseline for the same loss. loss: its title."""
    n_seeds = len(found.tokens_ratio.per_seed)
    reached = f"It reaches {baseline}'s final {loss}"
    if found.tokens_ratio.mean is None:
        if 0 < found.n_reached < n_seeds:
            return (
                f"With some seed the {loss} was passed before the first validation, so with how many tokens is unknown."
            )
        early = reached if found.n_reached else f"{baseline} reaches the {loss} it ends with"
        return f"{early} before the first validation, so with how many tokens is unknown."
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
    """A sentence where runs were validated too rarely for statements on equal losses; none otherwise."""
    if validations is None or validations.suffice:
        return []
    n, needed = validations.n_fewest, validations.n_needed
    counted = "one validation" if n == 1 else f"{n} validations"
    return [
        f"With how many tokens the same loss is reached is not said: that takes {needed} validations of every run "
        f"(train.validate_every), and one has {counted}."
    ]


def interval(estimate: Estimate, confidence: float = CONFIDENCE, n_decimals: int = 4, sign: str = "+") -> str:
    """ "95% interval -0.1 to +0.1". sign: "" for what is not a difference."""
    ends = ends_of(estimate, n_decimals, sign)
    return f"{100 * confidence:.4g}% interval {ends}" if ends else "one seed gives no interval"


def ends_of(estimate: Estimate, n_decimals: int = 4, sign: str = "+") -> str:
    """ "-0.1 to +0.1"; "" where there is no interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:{sign}.{n_decimals}f} to {estimate.high:{sign}.{n_decimals}f}"


def seeds(n: int) -> str:
    """ "one seed", "two seeds", "3 seeds"."""
    return {1: "one seed", 2: "two seeds"}.get(n, f"{n} seeds")
