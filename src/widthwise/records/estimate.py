"""A mean over seeds with its interval, and the verdicts on a difference."""

from collections.abc import Sequence
from typing import Literal

from widthwise.records.record import Known, Record

Verdict = Literal["baseline", "better", "worse", "tie", "cannot tell", "no verdict"]

CONFIDENCE = 0.95
"""How often an interval holds what it estimates; that of all that are shown, unless a page says otherwise."""
FEWEST_SEEDS = 3
"""With fewer seeds a difference cannot be told from the noise of a seed, whatever the interval."""
NO_VERDICT = "fewer than three seeds, so no verdict"
"""Why there is none, with FEWEST_SEEDS in words."""
TIE_MARGIN = 0.01
"""Nats per token; two losses that are surely closer than this count as equal."""


class Estimate(Record):
    """A mean with its interval; no interval (None) if there are too few values for one."""

    mean: Known
    low: Known = None
    high: Known = None
    per_seed: Sequence[Known] = ()
    """One value per seed, in the order of the seeds."""
