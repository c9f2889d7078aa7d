"""Results of comparisons and sweeps, in words."""

from widthwise.records.comparison import Variant
from widthwise.records.equal_loss import EqualLoss, Validations
from widthwise.records.estimate import CONFIDENCE, NO_VERDICT, Estimate, Verdict
from widthwise.records.quantities import OF_HELD_OUT
from widthwise.records.record import finite

PHRASES = {
    "better": "reaches a held-out loss {size:.4f} nats below {baseline}",
    "worse": "ends at a held-out loss {size:.4f} nats above {baseline}",
    "tie": "ties with {baseline}: its held-out loss differs by {mean:+.4f} nats",
    "cannot tell": "differs from {baseline} by {mean:+.4f} nats of held-out loss, but {n} cannot tell that from luck",
    "no verdict": f"differs from {{baseline}} by {{mean:+.4f}} nats of held-out loss: {NO_VERDICT}",
}


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
    if estimate.low is None or estimate.high is None:
        return "one seed gives no interval"
    low, high = (f"{end:{sign}.{n_decimals}f}" for end in (estimate.low, estimate.high))
    return f"{100 * confidence:.4g}% interval {low} to {high}"


def seeds(n: int) -> str:
    """ "one seed", "two seeds", "3 seeds"."""
    return {1: "one seed", 2: "two seeds"}.get(n, f"{n} seeds")
