"""Results of comparisons and sweeps, in words."""

from widthwise.experiments.runs import CONFIDENCE
from widthwise.records.comparison import Variant
from widthwise.records.estimate import Estimate, Verdict
from widthwise.records.record import finite

PHRASES = {
    "better": "reaches a held-out loss {size:.4f} nats below {baseline}",
    "worse": "ends at a held-out loss {size:.4f} nats above {baseline}",
    "tie": "ties with {baseline}: its held-out loss differs by {mean:+.4f} nats",
    "cannot tell": "differs from {baseline} by {mean:+.4f} nats of held-out loss, but {n} cannot tell that from luck",
    "no verdict": "differs from {baseline} by {mean:+.4f} nats of held-out loss: fewer than three seeds, so no verdict",
}


def difference_sentence(variant: Variant, difference: Estimate, baseline: str) -> str:
    """A sentence with the difference of a variant to the baseline, its interval, and the ratios of costs."""
    phrase = difference_phrase(difference, variant.verdict or "cannot tell", baseline)
    ratio = variant.ratio
    return (
        f"{variant.name} {phrase} ({interval(difference)}), at {ratio['params']:.3f} of the parameters, "
        f"{ratio['training_flops']:.3f} of the training FLOPs and {ratio['kv_bytes']:.3f} of the KV cache."
    )


def difference_phrase(difference: Estimate, found: Verdict, baseline: str) -> str:
    mean, n = finite(difference.mean), seeds(len(difference.per_seed))
    return PHRASES[found].format(size=abs(mean), mean=mean, baseline=baseline, n=n)


def interval(estimate: Estimate, confidence: float = CONFIDENCE) -> str:
    """ "95% interval -0.1 to +0.1"."""
    if estimate.low is None or estimate.high is None:
        return "one seed gives no interval"
    return f"{100 * confidence:.4g}% interval {estimate.low:+.4f} to {estimate.high:+.4f}"


def seeds(n: int) -> str:
    """ "one seed", "two seeds", "3 seeds"."""
    return {1: "one seed", 2: "two seeds"}.get(n, f"{n} seeds")
