"""Formats of numbers and names, the same on the page, in LaTeX and on the terminal."""

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from widthwise.mistakes import counted as counted  # for users of this module

if TYPE_CHECKING:
    from widthwise.records.estimate import Estimate
    from widthwise.records.quantities import Quantity

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
MISSING = "\N{EN DASH}"
_DURATIONS = ((24.0, "d"), (1.0, "h"), (1 / 60, "min"), (1 / 3600, "s"))
"""Hours per unit, and name of the unit."""
_HUGE = 1e7
"""Smallest number that `fixed` shows with a power of ten."""
_PREFIXES = ((1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
"""Factor and decimal prefix."""

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except newline and tab, characters that change the direction of text, and surrogates."""


def printable(text: str) -> str:
    """Return text of any origin for a terminal or a page, with replacement characters for control characters.

    Windows line ends become newlines, form feeds become spaces. Direction marks of Arabic or Hebrew text stay.
    """
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\f", " "))


def clean(text: str) -> str:
    """Return text on one line, with a space for every control character."""
    visible = "".join(" " if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") else letter for letter in text)
    return " ".join(visible.split())


def shorten(text: str, n_letters: int) -> str:
    """Return the cleaned text, cut with an ellipsis if it is longer than `n_letters`."""
    text = clean(text)
    return text if len(text) <= n_letters else text[: n_letters - 1].rstrip() + "…"


def capital(text: str) -> str:
    """Return text with a capital first letter; the rest is unchanged."""
    return text[:1].upper() + text[1:]


def percentage(confidence: float) -> str:
    """Return a confidence level in percent: 0.95 -> 95%."""
    return f"{100 * confidence:.4g}%"


def tick(value: float) -> str:
    """Return up to four significant digits with a decimal prefix, without trailing zeros, for numbers on axes."""
    size, prefix = next((row for row in _PREFIXES if abs(value) >= row[0]), _PREFIXES[-1])
    return minus(f"{value / size:.4g}{prefix}")


def si(value: float | None) -> str:
    """Return three significant digits with a decimal prefix: 1234567 -> 1.23M."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return _not_finite(value)
    size, prefix = next((row for row in _PREFIXES if abs(value) >= 0.9995 * row[0]), _PREFIXES[-1])
    if not prefix and float(value).is_integer():
        return str(int(value))
    number = value / size
    n_decimals = 2
    if abs(number) >= 99.95:
        n_decimals = 0
    elif abs(number) >= 9.995:
        n_decimals = 1
    return minus(f"{number:.{n_decimals}f}{prefix}")


def amount(value: float | None) -> str:
    """Return parameters or tokens like `si`, with B for billions as in names of models: 2170000000 -> 2.17B."""
    return si(value).replace("G", "B")


def duration(hours: float | None) -> str:
    """Return hours in the largest unit that is at most the duration."""
    if hours is None:
        return MISSING
    size, unit = next((row for row in _DURATIONS if hours >= row[0]), _DURATIONS[-1])
    return f"{hours / size:,.3g} {unit}"


def clock(seconds: float) -> str:
    """Return seconds as 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def fixed(value: float | None, n_decimals: int, with_sign: bool = False) -> str:
    """Return a number with `n_decimals` decimals, or with a power of ten if it is too long.

    with_sign: positive numbers get a plus sign.
    """
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return _not_finite(value)
    digits = f".{n_decimals}f" if abs(value) < _HUGE else ".3e"
    return minus(f"{value:+{digits}}" if with_sign else f"{value:{digits}}")


def signed(value: float | None, n_decimals: int) -> str:
    """Return a difference with its sign."""
    return fixed(value, n_decimals, with_sign=True)


def shown(value: float | None, quantity: "Quantity") -> str:
    """Return a quantity as tables show it."""
    if quantity.n_decimals is None:
        is_tiny = value is not None and 0 < abs(value) < 0.01
        return f"{value:.2e}" if is_tiny else si(value)
    return fixed(value, quantity.n_decimals, quantity.is_signed)


def interval(estimate: "Estimate", n_decimals: int, with_sign: bool = False) -> str:
    """Return an interval as `low to high`; "" without an interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{fixed(estimate.low, n_decimals, with_sign)} to {fixed(estimate.high, n_decimals, with_sign)}"


def with_interval(estimate: "Estimate", n_decimals: int) -> str:
    """Return a difference, followed by its interval in parentheses if known."""
    mean = signed(estimate.mean, n_decimals)
    ends = interval(estimate, n_decimals, with_sign=True)
    return f"{mean} ({ends})" if ends else mean


def distance(difference: float) -> str:
    """Return a difference of two losses as `0.0123 nats below` or `0.0123 nats above`."""
    return f"{fixed(abs(difference), 4)} nats {'below' if difference < 0 else 'above'}"


def ratio(value: float | None, sign: str = TIMES) -> str:
    """Return a ratio to the baseline; "" if unknown."""
    return "" if value is None or not math.isfinite(value) else f"{value:.3f}{sign}"


def hidden_widths(widths: Sequence[int]) -> str:
    """Return the hidden widths of the gated maps of a feed-forward: 1536, 4×418, or 64+32 if they differ."""
    if len(widths) > 1 and len(set(widths)) == 1:
        return f"{len(widths)}{TIMES}{widths[0]}"
    return "+".join(map(str, widths))


def plain(value: Any) -> str:
    """Return any JSON value on one line. Lists of numbers are joined by multiplication signs: 2×3."""
    match value:
        case None:
            return MISSING
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            separator = ", " if any(isinstance(item, str) for item in value) else TIMES
            return separator.join(map(plain, value))
        case dict():
            return ", ".join(f"{key}: {plain(item)}" for key, item in value.items())
        case _:
            return clean(str(value))


def minus(text: str) -> str:
    """Return text with minus signs for hyphens."""
    return text.replace("-", MINUS)


def _not_finite(value: float) -> str:
    return "not a number" if math.isnan(value) else f"{MINUS if value < 0 else ''}infinite"


_SEED = re.compile(r"[-_ ,]*seed[-_ ]?\d+$")


def without_seed(name: str) -> str:
    """Return the name of a run without its seed: `x-seed2` -> `x`."""
    return _SEED.sub("", clean(name)) or clean(name)


def joined(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
