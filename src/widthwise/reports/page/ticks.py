"""Numbers on axes: round steps, and labels that say exactly where each line is."""

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axis import Axis, XAxis
from matplotlib.ticker import Formatter, MaxNLocator

from widthwise.reports.page.formats import prefixed

MOST_LETTERS = 30
"""Letters that the labels below a figure may take together."""

_TOLERANCE = 1e-6
"""Share of a step by which a label may be off: binary fractions are."""


def tick_labels(values: Sequence[float], sign: str = "") -> list[str]:
    """One label for each value, with as many digits as tell it apart from the next and show the step as it is.

    sign: "+" also before positive numbers.
    """
    ordered = sorted(values)
    steps = (high - low for low, high in pairwise(ordered) if high > low)
    allowed = _TOLERANCE * min(steps, default=abs(ordered[0]) if ordered else 0.0)
    return [prefixed(0.0 if abs(value) <= allowed else value, allowed, sign if value > 0 else "") for value in values]


class TickFormatter(Formatter):
    """Writes `tick_labels`."""

    def __init__(self, sign: str = ""):
        self.sign = sign

    def __call__(self, x: float, pos: int | None = None) -> str:
        """A value alone, such as that of the pointer."""
        return tick_labels([x], self.sign)[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """All labels of an axis, whose step the digits follow."""
        return tick_labels(values, self.sign)


class RoundSteps(MaxNLocator):
    """1, 2 or 5 times a power of ten apart, and fewer where the labels would need more letters than there is room."""

    def __init__(self, n_most: int, whole: bool = False, most_letters: float = MOST_LETTERS):
        super().__init__(n_most, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1 if whole else 2)
        self.n_most, self.most_letters = n_most, most_letters

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """The values, one beyond either end included."""
        found: Sequence[float] = ()
        for n_steps in range(self.n_most, 0, -1):
            self.set_params(nbins=n_steps)
            found = super().tick_values(vmin, vmax)
            if sum(len(label) for label in tick_labels([x for x in found if vmin <= x <= vmax])) <= self.most_letters:
                break
        return found


def number_axis(axis: Axis, n_most: int = 6, whole: bool = False, sign: str = "") -> None:
    """About `n_most` round numbers on an axis. whole: of things that are counted, such as steps."""
    most_letters = MOST_LETTERS if isinstance(axis, XAxis) else math.inf
    axis.set_major_locator(RoundSteps(n_most, whole, most_letters))
    axis.set_major_formatter(TickFormatter(sign))
