"""A mean over seeds with its interval, the verdicts on a difference, and tokens and FLOPs to equal loss."""

from collections.abc import Sequence
from typing import Literal, Self

import pydantic

from widthwise.records.record import FiniteOrNone, Record

Verdict = Literal["baseline", "better", "worse", "tie", "cannot tell", "no verdict"]
UNCLEAR: Verdict = "cannot tell"
"""Verdict on a difference whose interval contains 0 and is not within TIE_MARGIN."""

CONFIDENCE = 0.95
"""Confidence level of all intervals, unless a page says otherwise."""
FEWEST_SEEDS = 3
"""With fewer seeds there is no verdict, because a difference may be the noise of a single seed."""
TIE_MARGIN = 0.01
"""Nats per token; two losses are a tie if the interval of their difference is within this margin."""


class Estimate(Record):
    """A mean with its interval; no interval (None) if there are too few values for one."""

    mean: FiniteOrNone
    low: FiniteOrNone = None
    high: FiniteOrNone = None
    per_seed: Sequence[FiniteOrNone] = ()
    """One value per seed, in the order of the seeds."""
    df: FiniteOrNone = None
    """Degrees of freedom of the interval; None for the number of seeds minus 1."""

    def side(self, level: float = 0.0) -> int:
        """Return -1 if the whole interval is below a level, 1 if it is above, otherwise 0. No interval gives 0."""
        if self.low is None or self.high is None:
            return 0
        return (self.low > level) - (self.high < level)


class EqualLoss(Record):
    """Tokens and FLOPs that a variant and its baseline need for a held-out loss, paired by seed.

    The loss is the higher one of the final losses of the two runs of a seed, so that both runs reach it. A ratio below
    1 means that the variant needs less.
    """

    n_reached: int
    """Seeds in which the variant reaches the baseline's final loss."""
    tokens: Estimate
    """Tokens at which the variant reaches that loss; no mean unless every seed reaches it."""
    training_flops: Estimate
    tokens_ratio: Estimate
    """Geometric mean, with Student's t interval of the logarithm over seeds; no mean if a run was below the loss
    before its first validation."""
    training_flops_ratio: Estimate


class OverTokens(Record):
    """A number as a function of the training tokens: mean over seeds with its interval."""

    tokens: Sequence[float]
    """Tokens at the measurements, ascending."""
    mean: Sequence[FiniteOrNone]
    low: Sequence[FiniteOrNone]
    high: Sequence[FiniteOrNone]

    @pydantic.model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len({len(numbers) for numbers in (self.tokens, self.mean, self.low, self.high)}) > 1:
            raise ValueError("tokens, mean, low and high: differ in length")
        return self


class Validations(Record):
    """Validations of the runs of a comparison, from which tokens to equal loss are computed."""

    n_fewest: int
    """Number of validations, including the last one, of the run with the fewest."""
    n_needed: int
    """Least `n_fewest` for tokens to equal loss, which are otherwise omitted."""
    final_lr_share: FiniteOrNone = None
    """Last learning rate divided by the highest one; the smallest ratio of all runs."""

    @property
    def suffice(self) -> bool:
        return self.n_fewest >= self.n_needed
