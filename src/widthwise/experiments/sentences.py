"""Results of comparisons and sweeps, in words."""

from widthwise.experiments.runs import CONFIDENCE
from widthwise.records.comparison import Variant
from widthwise.records.estimate import NO_VERDICT, Estimate, Verdict
from widthwise.records.quantities import OF_HELD_OUT, QUANTITY
from widthwise.records.record import finite

PHRASES = {
    "better": "reaches a held-out loss {size:.4f} nats below {baseline}",
    "worse": "ends at a held-out loss {size:.4f} nats above {baseline}",
    "tie": "ties with {baseline}: its held-out loss differs by {mean:+.4f} nats",
    "cannot tell": "differs from {baseline} by {mean:+.4f} nats of held-out loss, but {n} cannot tell that from luck",
    "no verdict": f"differs from {{baseline}} by {{mean:+.4f}} nats of held-out loss: {NO_VERDICT}",
}


def difference_sentence(variant: Variant, difference: Estimate, baseline: str) -> str:
    """The difference of a variant to the baseline with its interval, the ratios of costs, and further losses."""
    phrase = difference_phrase(difference, variant.verdict or "cannot tell", baseline)
    titles = {"params": "parameters", "training_flops": "training FLOPs", "kv_bytes": "KV cache"}
    further = [
        f" Its {QUANTITY[name].title} differs by {finite(each.mean):+.4f} nats ({interval(each)})."
        for name, each in variant.differences.items()
        if name in OF_HELD_OUT
    ]
    found = [
        f"{finite(variant.ratio[key]):.3f} of the {title}" for key, title in titles.items() if key in variant.ratio
    ]
    costs = f"{', '.join(found[:-1])} and {found[-1]}"
    return f"{variant.name} {phrase} ({interval(difference)}), at {costs}.{''.join(further)}"


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
