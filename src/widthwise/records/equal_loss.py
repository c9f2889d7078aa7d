"""What two variants need for the same held-out loss, and how far apart they are on the way."""

from collections.abc import Sequence
from typing import Self

import pydantic

from widthwise.records.estimate import Estimate
from widthwise.records.record import Known, Record


class EqualLoss(Record):
    """What a variant needs for a held-out loss beside what the baseline needs for it, paired by seed.

    The loss is the higher of the final losses of the two runs of a seed, so that both reach it: the baseline's where
    the variant ends below it, otherwise the variant's own. A ratio below 1 says that the variant needs less.
    """

    n_reached: int
    """Seeds in which the variant reaches the baseline's final loss."""
    tokens: Estimate
    """Tokens at which it does; no mean unless it does with every seed."""
    training_flops: Estimate
    """Training FLOPs at which it does."""
    tokens_ratio: Estimate
    """Geometric mean, with Student's t interval of the logarithm over seeds; no mean where a run was below the loss
    before its first validation."""
    training_flops_ratio: Estimate


class OverTokens(Record):
    """A number in the course of training: mean over seeds with its interval."""

    tokens: Sequence[float]
    """Where it was measured, ascending."""
    mean: Sequence[Known]
    low: Sequence[Known]
    high: Sequence[Known]

    @pydantic.model_validator(mode="after")
    def _are_equally_many(self) -> Self:
        if len({len(each) for each in (self.tokens, self.mean, self.low, self.high)}) > 1:
            raise ValueError("tokens, mean, low and high: differ in length")
        return self


class Validations(Record):
    """What the course of all runs of a comparison can say."""

    n_fewest: int
    """Validations of the run that has the fewest, the last one included."""
    n_needed: int
    """With fewer, nothing is said of equal losses."""
    final_lr_share: Known = None
    """Learning rate of the last step over the highest, of the run in which it fell most."""

    @property
    def suffice(self) -> bool:
        return self.n_fewest >= self.n_needed
