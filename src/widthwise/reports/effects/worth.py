"""What effects are worth in tokens, by the loss of the baseline at two lengths of training.

Each length has a schedule of its own, so that losses are compared where the learning rate has fallen; but two lengths
make a line of what is a curve.
"""

import math

from widthwise.records.estimate import TIE_MARGIN, Estimate
from widthwise.records.record import finite
from widthwise.reports.effects.scales import Effect, Scale, Scales
from widthwise.reports.page.data import text_key

LARGEST_EXPONENT = 700.0
"""Beyond 709 a power of e is more than a float can hold."""


def worth(effect: Effect, scales: Scales) -> list[Estimate | None]:
    """For each scale what the effect is worth there, as `tokens_ratio`; None without a difference or a slope."""
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
    return finite(scale.comparison.baseline_variant.val_loss.mean)
