"""What a paper prints of a quantity: a number, whose digits say how exactly it is known, or a word."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.records.paper import Answer
from widthwise.records.record import finite

UNITS = {"": 1, "%": Decimal("0.01"), "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_FORM = re.compile(r"([+-]?\d+(?:\.\d+)?)([%KMBT]?)")


@dataclass(frozen=True)
class Statement:
    """What a paper prints of a quantity; itself nothing, so that the quantity is only measured."""

    text: str = ""
    is_difference: ClassVar[bool] = False
    """Whether it is about the difference to the baseline."""

    @property
    def number(self) -> float | None:
        """The number that it says, if any."""
        return None

    def agrees_with(self, counted: float) -> bool | None:
        """Whether a number counted at the paper's size is the printed one; None where that cannot be said."""
        return None

    def reproduced_by(self, measured: Estimate) -> Answer | None:
        """Whether what was measured at another size is as printed; None for numbers, which depend on the size."""
        return None


@dataclass(frozen=True)
class Printed(Statement):
    """A number: "113M", "3.430", "-3.2%"."""

    value: float = 0.0
    half_unit: float = 0.0
    """Half a unit of the last printed digit: what rounding may have taken away or added."""

    @classmethod
    def of(cls, text: str) -> "Printed":
        """Raises ValueError for what is no number with an optional unit of UNITS."""
        found = _FORM.fullmatch(text)
        if found is None:
            words = ", ".join(WORDS)
            raise ValueError(
                f"got {text!r}; expected a number as it is printed, such as 3.430, 113M or -3.2%, or one of {words}"
            )
        number, unit = Decimal(found[1]), UNITS[found[2]]
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)  # the form admits neither infinity nor NaN
        return cls(text, float(number * unit), float(Decimal(10) ** exponent * unit / 2))

    @property
    def number(self) -> float:
        return self.value

    def agrees_with(self, counted: float) -> bool:
        """Whether the number, rounded to the printed digits, is the printed one; a tie may be rounded either way."""
        slack = 1e-9 * max(abs(self.value), self.half_unit)
        return abs(counted - self.value) <= self.half_unit + slack


@dataclass(frozen=True)
class Direction(Statement):
    """A figure that shows more or less than the baseline, without a number."""

    sign: int = 1
    is_difference: ClassVar[bool] = True

    def reproduced_by(self, measured: Estimate) -> Answer:
        """By the interval of the difference to the baseline, where there are seeds enough to say so."""
        if len(measured.per_seed) < FEWEST_SEEDS:
            return "cannot tell"
        ends = sorted(self.sign * finite(end) for end in (measured.low, measured.high))
        return "yes" if ends[0] > 0 else "no" if ends[1] < 0 else "cannot tell"


@dataclass(frozen=True)
class Unchanged(Statement):
    """A change that is 0."""

    rounding: float = 1e-12
    """The largest change that rounding may cause."""

    def reproduced_by(self, measured: Estimate) -> Answer:
        """Yes if the change is 0 up to rounding with every seed, else no."""
        return "yes" if all(abs(finite(change)) <= self.rounding for change in measured.per_seed) else "no"


WORDS: Mapping[str, Statement] = {
    each.text: each for each in (Direction("higher", 1), Direction("lower", -1), Unchanged("unchanged"))
}


def statement(text: str) -> Statement:
    """A word of WORDS or a number. Raises ValueError for anything else."""
    return WORDS.get(text) or Printed.of(text)
