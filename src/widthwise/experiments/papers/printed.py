"""A number as a paper prints it: its digits say how exactly it is known."""

import re
from dataclasses import dataclass
from decimal import Decimal

UNITS = {"": 1, "%": Decimal("0.01"), "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_FORM = re.compile(r"([+-]?\d+(?:\.\d+)?)([%KMBT]?)")


@dataclass(frozen=True)
class Printed:
    """ "113M", "3.430", "-3.2%"."""

    text: str
    value: float
    half_unit: float
    """Half a unit of the last printed digit: what rounding may have taken away or added."""

    @classmethod
    def of(cls, text: str) -> "Printed":
        """Raises ValueError for what is no number with an optional unit of UNITS."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"got {text!r}; expected a number as it is printed, such as 3.430, 113M or -3.2%")
        number, unit = Decimal(found[1]), UNITS[found[2]]
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)  # the form admits neither infinity nor NaN
        return cls(text, float(number * unit), float(Decimal(10) ** exponent * unit / 2))

    def agrees_with(self, value: float) -> bool:
        """Whether the value, rounded to the printed digits, is the printed number; a tie may be rounded either way."""
        slack = 1e-9 * max(abs(self.value), self.half_unit)
        return abs(value - self.value) <= self.half_unit + slack
