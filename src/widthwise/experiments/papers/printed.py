"""What a paper prints of a quantity: a number, whose digits say how exactly it is known, or a word."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.records.paper import Answer
from widthwise.records.record import finite

UNITS = {"": 1, "%": Decimal("0.01"), "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
ROUNDING = 1e-12
"""The largest change that counts as none."""
_FORM = re.compile(r"([+-]?\d+(?:\.\d+)?)([%KMBT]?)")


@dataclass(frozen=True)
class Printed:
    """A number ("113M", "3.430", "-3.2%") or a word of WORDS; without text nothing, so that the quantity is only
    measured."""

    text: str = ""
    number: float | None = None
    half_unit: float = 0.0
    """Half a unit of the last printed digit: what rounding may have taken away or added."""
    is_difference: bool = False
    """Whether it is about the difference to the baseline."""
    judge: Callable[[Estimate], Answer] | None = None
    """Of a word: answers whether what was measured at another size is as it says."""

    def agrees_with(self, counted: float) -> bool | None:
        """Return whether a number counted at the paper's size, rounded to the printed digits, is the printed one; a tie
        may be rounded either way. None for a word."""
        if self.number is None:
            return None
        slack = 1e-9 * max(abs(self.number), self.half_unit)
        return abs(counted - self.number) <= self.half_unit + slack

    def reproduced_by(self, measured: Estimate) -> Answer | None:
        """Return whether what was measured at another size is as a word says; None for numbers, which depend on the
        size."""
        return None if self.judge is None else self.judge(measured)


def _is_above_zero(sign: int, measured: Estimate) -> Answer:
    """Judge by the interval of the difference to the baseline, where there are seeds enough to say so."""
    if len(measured.per_seed) < FEWEST_SEEDS:
        return "cannot tell"
    low, high = sorted(sign * finite(end) for end in (measured.low, measured.high))
    return "yes" if low > 0 else "no" if high < 0 else "cannot tell"


def _is_zero(measured: Estimate) -> Answer:
    return "yes" if all(abs(finite(change)) <= ROUNDING for change in measured.per_seed) else "no"


WORDS: Mapping[str, Printed] = {
    "higher": Printed("higher", is_difference=True, judge=partial(_is_above_zero, 1)),
    "lower": Printed("lower", is_difference=True, judge=partial(_is_above_zero, -1)),
    "unchanged": Printed("unchanged", judge=_is_zero),
}
"""Directions to the baseline that a figure shows without a number, and a change that is 0 with every seed."""


def printed(text: str) -> Printed:
    """Return a word of WORDS, or a number with an optional unit of UNITS. Raises ValueError for anything else."""
    if text in WORDS:
        return WORDS[text]
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"got {text!r}; expected a number as it is printed, such as 3.430, 113M or -3.2%, or one of "
            f"{', '.join(WORDS)}"
        )
    number, unit = Decimal(found[1]), UNITS[found[2]]
    n_decimals = len(found[1].partition(".")[2])
    return Printed(text, float(number * unit), float(Decimal(10) ** -n_decimals * unit / 2))
