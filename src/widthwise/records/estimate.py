"""A mean over seeds with its interval, the verdicts on a difference, and tokens and FLOPs to equal loss."""

from collections.abc import Sequence
from typing import Literal, Self

import pydantic

from widthwise.records.record import Known, Record

Verdict = Literal["baseline", "better", "worse", "tie", "cannot tell", "no verdict"]

CONFIDENCE = 0.95
"""Probability that an interval holds the true value; that of all intervals shown, unless a page says otherwise."""
FEWEST_SEEDS = 3
"""With fewer seeds a difference cannot be told from the noise of a seed, whatever the interval."""
NO_VERDICT = "fewer than three seeds, so no verdict"
"""Reason for a missing verdict, with FEWEST_SEEDS in words."""
TIE_MARGIN = 0.01
"""Nats per token; two losses that are surely closer than this count as equal."""


class Estimate(Record):
    """A mean with its interval; no interval (None) if there are too few values for one."""

    mean: Known
    low: Known = None
    high: Known = None
    per_seed: Sequence[Known] = ()
    """One value per seed, in the order of the seeds."""
    df: Known = None
    """Degrees of freedom of the interval, if they differ from the seeds'."""

    def side(self, level: float = 0.0) -> int:
        """Return -1 or 1 if the whole interval is below or above a level; otherwise 0."""
        if self.low is None or self.high is None:
            return 0
        return (self.low > level) - (self.high < level)


class EqualLoss(Record):
    """Tokens and FLOPs that a variant and its baseline need for a held-out loss, paired by seed.

    The loss is the higher of the final losses of the two runs of a seed, so that both reach it: the baseline's where
    the variant ends below it, otherwise the variant's own. A ratio below 1 says that the variant needs less.
    """

    n_reached: int
    """Seeds in which the variant reaches the baseline's final loss."""
    tokens: Estimate
    """Tokens at which it reaches that loss; no mean unless it does with every seed."""
    training_flops: Estimate
    tokens_ratio: Estimate
    """Geometric mean, with Student's t interval of the logarithm over seeds; no mean where a run was below the loss
    before its first validation."""
    training_flops_ratio: Estimate


class OverTokens(Record):
    """A number in the course of training: mean over seeds with its interval."""

    tokens: Sequence[float]
    """Tokens at the measurements, ascending."""
    mean: Sequence[Known]
    low: Sequence[Known]
    high: Sequence[Known]

    @pydantic.model_validator(mode="after")
    def _are_equally_many(self) -> Self:
        if len({len(each) for each in (self.tokens, self.mean, self.low, self.high)}) > 1:
            raise ValueError("tokens, mean, low and high: differ in length")
        return self


class Validations(Record):
    """Number of validations of all runs of a comparison, which equal losses depend on."""

    n_fewest: int
    """Validations of the run that has the fewest, the last one included."""
    n_needed: int
    """With fewer, tokens to equal loss are omitted."""
    final_lr_share: Known = None
    """Learning rate of the last step over the highest, of the run in which it fell most."""

    @property
    def suffice(self) -> bool:
        return self.n_fewest >= self.n_needed
