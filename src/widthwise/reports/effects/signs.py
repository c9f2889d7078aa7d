"""What several differences of one variant say together."""

from collections.abc import Sequence
from typing import Literal

from widthwise.records.estimate import FEWEST_SEEDS, Estimate

Signs = Literal["same sign everywhere", "changes sign", "cannot tell"]


def sign(difference: Estimate) -> int:
    """-1 or 1 where all of its interval lies below or above 0; otherwise 0.

    0 also with fewer seeds than a verdict takes, whatever the interval.
    """
    if difference.low is None or difference.high is None or len(difference.per_seed) < FEWEST_SEEDS:
        return 0
    return (difference.low > 0) - (difference.high < 0)


def signs(differences: Sequence[Estimate]) -> Signs:
    """Whether an effect changes sign: only if two intervals exclude 0 on different sides.

    It has the same sign everywhere if there are two differences or more and every interval excludes 0 on one side.
    differences: those that were measured.
    """
    found = {sign(each) for each in differences}
    if {-1, 1} <= found:
        return "changes sign"
    if len(differences) > 1 and 0 not in found:
        return "same sign everywhere"
    return "cannot tell"
